"""The gRPC service of a node for its query process, which asks for marks and reports batches.

The service translates between local.proto and the core's inputs and actions, and decides nothing.
The service refuses every caller that is not the node's current query process (RULES.md#r19).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc
import pyarrow as pa
import structlog

from ha_engine import __version__
from ha_engine.buckets.place import BucketPlace, Plugin, Table
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.errors import (
    DiskFailed,
    EngineError,
    SinkRefused,
    SinkUnavailable,
    SourceRefused,
    SourceUnavailable,
)
from ha_engine.outbox import Admission, Outbox
from ha_engine.query.range_endpoints import Endpoints
from ha_engine.system.runtime_dir import make_runtime_dir
from ha_engine.system.stuck_watch import STUCK_SECONDS, StuckWatch
from ha_engine.types import SHADOW_SIGN, Extent, Mark
from ha_engine.v1 import local_pb2 as pb
from ha_engine.v1 import local_pb2_grpc as rpc

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

log = structlog.get_logger(__name__)
T = TypeVar("T")

SLICE_SECONDS = 4.0
"""The node answers a poll for a mark with `pending` after this time, since a call of the query
process has a deadline of 10 s (CALL_SECONDS of query/link.py)."""

SOCKET_LOOK_SECONDS = 5.0
LOG_BEGINS_SECONDS = 0.2
LOG_THREADS = 2

VERDICTS = {
    Admission.ADMITTED: pb.AdmitBatchReply.ADMITTED,
    Admission.DONE: pb.AdmitBatchReply.DONE,
    Admission.NEED_DIGEST: pb.AdmitBatchReply.NEED_DIGEST,
    Admission.MISMATCH: pb.AdmitBatchReply.MISMATCH,
}


class Steps(Protocol):
    """The part of the driver that the local service uses."""

    def handle(self, event: on.Input) -> None: ...
    def fail(self, error: BaseException) -> None: ...


class Answers(Protocol):
    """Answers from the core and the journal to questions of the query process."""

    def incarnation(self) -> str | None: ...
    def skipped(self, query: str, number: int) -> bool: ...
    def may_admit(self, query: str, lineage: str) -> bool: ...
    def may_be_of_other_code(self, query: str, number: int) -> bool: ...
    def lacks_mark_after(self, query: str, number: int) -> bool: ...
    def lacks_records_from(self, first: int) -> bool: ...
    def locate(self, first: int, last: int) -> list[Extent]: ...
    def log_ends(self, stream: str, sequence: int) -> str | None: ...


class PreparedSink(Protocol):
    """A sink that can be checked against a query's output schema before the query starts."""

    def prepare(self, schema: pa.Schema) -> None: ...


class Observer(Protocol):
    """Receives the progress of the queries, for metrics and the status page."""

    def progressed(self, query: str, progress: pb.QueryProgress) -> None: ...
    def saw_executors(self, report: pb.ReportExecutorsRequest) -> None: ...
    def orphaned(self) -> None: ...


class LocalService(rpc.LocalServicer):
    """The gRPC service of one node process, and the driver's QueryProcessLink.

    ``endpoints`` says where tasks on other hosts read a range of the journal that ends at the given
    sequence, or None with a local master.
    If streams have logs of their own, ``check_logs`` raises SourceRefused if those that a query
    reads are others than before, or SourceUnavailable; it blocks.
    ``buckets`` says for each query whose sink has buckets where the tasks of the given epoch write
    them, or None while they may not. ``claim_again`` makes the node claim the sink of such a query
    again, because only the ledger has the reason why a task could not write.
    ``application`` is the path of the application file, or None for the one that the query process
    got at its start. ``shadow`` is the one of the shadow, if the node runs a shadow.
    ``on_stuck`` is called when the disk of the outbox has not answered for ``stuck_after`` seconds.
    """

    def __init__(
        self,
        steps: Steps,
        answers: Answers,
        outbox: Outbox,
        sinks: Callable[[str], Mapping[str, PreparedSink]],
        admitted: Callable[[str, int], None],
        observer: Observer,
        on_stuck: Callable[[], None] = lambda: None,
        stuck_after: float = STUCK_SECONDS,
        endpoints: Callable[[int], Endpoints | None] = lambda last: None,
        check_logs: Callable[[str], None] | None = None,
        buckets: Mapping[str, Callable[[int], BucketPlace | None]] = MappingProxyType({}),
        claim_again: Callable[[str], None] = lambda query: None,
        application: Path | None = None,
        shadow: Path | None = None,
    ) -> None:
        self._steps, self._answers, self._outbox = steps, answers, outbox
        self._sinks, self._admitted, self._observer = sinks, admitted, observer
        self._endpoints, self._check_logs = endpoints, check_logs
        self._buckets, self._claim_again = buckets, claim_again
        self._application = "" if application is None else str(application)
        self._shadow = "" if shadow is None else str(shadow)
        # By query, the columns of its batches, which those of its shadow must equal.
        self._schemas: dict[str, pa.Schema] = {}
        # Threads of their own, since all others may wait for a sink.
        self._log_threads = ThreadPoolExecutor(LOG_THREADS, thread_name_prefix="logs")
        # By query and lineage: a query that Spark has not stopped yet may wait beside the new one.
        self._waiting: dict[tuple[str, str], asyncio.Future[Mark]] = {}
        self._to_query: asyncio.Queue[pb.QueryCommand] = asyncio.Queue()
        self._admissions: set[asyncio.Task[Admission]] = set()
        self._orphans: set[str] = set()
        # Its own thread, so that no call of a sink delays a change of the outbox: a late change
        # shows that the disk hangs.
        self._outbox_thread = ThreadPoolExecutor(1, thread_name_prefix="outbox")
        self._outbox_watch = StuckWatch(on_stuck, stuck_after)

    # -- the driver's link -------------------------------------------------------------------------

    def run_query(self, query: do.RunQuery) -> None:
        run = pb.RunQuery(
            query=query.query,
            lineage=query.lineage,
            initial_mark=query.initial.number,
            initial_sequence=query.initial.through,
            must_resume=query.must_resume,
            digest=query.digest,
            epoch=query.takeover.epoch if query.takeover else 0,
            buckets=query.query in self._buckets,
            partitions=[
                pb.StatePartitions(after=after, number=number) for after, number in query.partitions
            ],
            application=self._application if query.shadow_of is None else self._shadow,
            shadow_of=query.shadow_of or "",
            adopts=query.adopts[0] if query.adopts else "",
            adopts_lineage=query.adopts[1] if query.adopts else "",
        )
        self._to_query.put_nowait(pb.QueryCommand(run=run))

    def halt_query(self, query: str) -> None:
        self._to_query.put_nowait(pb.QueryCommand(halt=pb.HaltQuery(query=query)))

    def answer_mark(self, mark: Mark, lineage: str) -> None:
        waiting = self._waiting.pop((mark.query, lineage), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(mark)

    @property
    def outbox_is_late(self) -> bool:
        """Whether a change of the outbox has not returned for some seconds."""
        return self._outbox_watch.is_late

    @property
    def polls_pending(self) -> int:
        """The number of queries that wait for a mark."""
        return sum(not waiting.done() for waiting in self._waiting.values())

    # -- query process -----------------------------------------------------------------------------

    async def Attend(  # noqa: N802
        self, request: pb.AttendRequest, context: Context
    ) -> AsyncIterator[pb.QueryCommand]:
        await self._known(request.incarnation, context)
        if request.release != __version__:
            reason = f"query process {request.incarnation} is not of release {__version__}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        commands: asyncio.Queue[pb.QueryCommand] = asyncio.Queue()
        self._to_query = commands
        self._steps.handle(on.QueryProcessAttended(request.incarnation))
        while True:
            yield await commands.get()

    async def AwaitMark(  # noqa: N802
        self, request: pb.AwaitMarkRequest, context: Context
    ) -> pb.AwaitMarkReply:
        await self._known(request.incarnation, context)
        if SHADOW_SIGN in request.query:
            await self._require_present(request.query, request.lineage, context)
        if self._answers.lacks_mark_after(request.query, request.after):
            return pb.AwaitMarkReply(trimmed=True)
        waiting: asyncio.Future[Mark] = asyncio.get_running_loop().create_future()
        which = request.query, request.lineage
        self._waiting[which] = waiting
        self._steps.handle(on.MarkWanted(request.query, request.after, request.lineage))
        try:
            mark = await asyncio.wait_for(waiting, SLICE_SECONDS)
        except TimeoutError:
            return pb.AwaitMarkReply(pending=True)
        finally:
            if self._waiting.get(which) is waiting:
                del self._waiting[which]
        return pb.AwaitMarkReply(number=mark.number, sequence=mark.through)

    async def Locate(  # noqa: N802
        self, request: pb.LocateRequest, context: Context
    ) -> pb.LocateReply:
        await self._known(request.incarnation, context)
        if self._answers.skipped(request.query, request.number):
            return pb.LocateReply(skipped=True)
        if self._answers.lacks_records_from(request.first_sequence):
            return pb.LocateReply(trimmed=True)
        found = await asyncio.to_thread(
            self._answers.locate, request.first_sequence, request.last_sequence
        )
        extents = [pb.Extent(path=e.path, offset=e.offset, length=e.length) for e in found]
        endpoints = self._endpoints(request.last_sequence)
        if endpoints is None:
            return pb.LocateReply(extents=extents)
        return pb.LocateReply(extents=extents, endpoints=_to_message(endpoints))

    async def LogEnds(  # noqa: N802
        self, request: pb.LogEndsRequest, context: Context
    ) -> pb.LogEndsReply:
        await self._known(request.incarnation, context)
        ends = self._answers.log_ends(request.stream, request.sequence)
        if ends is None:
            # The active writes the first record of a log as soon as it has asked the brokers.
            await asyncio.sleep(LOG_BEGINS_SECONDS)
            return pb.LogEndsReply(pending=True)
        return pb.LogEndsReply(ends=ends)

    async def Skipped(  # noqa: N802
        self, request: pb.SkippedRequest, context: Context
    ) -> pb.SkippedReply:
        await self._known(request.incarnation, context)
        return pb.SkippedReply(skipped=self._answers.skipped(request.query, request.number))

    async def LocateBuckets(  # noqa: N802
        self, request: pb.LocateBucketsRequest, context: Context
    ) -> pb.LocateBucketsReply:
        await self._known(request.incarnation, context)
        await self._require_same_logs(request.query, context)
        locate = self._buckets.get(request.query)
        place = locate(request.epoch) if locate is not None else None
        if place is None:
            return pb.LocateBucketsReply(pending=True)
        return _to_reply(place)

    async def AdmitBatch(  # noqa: N802
        self, request: pb.AdmitBatchRequest, context: Context
    ) -> pb.AdmitBatchReply:
        await self._known(request.incarnation, context)
        await self._require_same_logs(request.query.partition(SHADOW_SIGN)[0], context)
        await self._require_present(request.query, request.lineage, context)
        verdict = await asyncio.shield(self._admission(request))
        return pb.AdmitBatchReply(verdict=VERDICTS[verdict])

    async def _require_present(self, query: str, lineage: str, context: Context) -> None:
        """End a run that the core does not want any more, although Spark has not stopped it yet."""
        if not self._answers.may_admit(query, lineage):
            reason = f"this run of query {query} is over; another one has its place"
            await context.abort(grpc.StatusCode.ABORTED, reason)

    async def _require_same_logs(self, query: str, context: Context) -> None:
        if self._check_logs is None:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._log_threads, self._check_logs, query)
        except SourceUnavailable as error:
            # The query process asks again, until the log answers.
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except SourceRefused as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))

    def _admission(self, request: pb.AdmitBatchRequest) -> asyncio.Task[Admission]:
        """Start the admission of a batch as a separate task, which the death of the caller does not
        cancel.

        The caller may die while the outbox admits batch n in a thread. If the death of the caller
        cancelled the admission, the core would never learn of batch n. The next batch would then
        break RULES.md#i6.
        """
        name = f"admit {request.query} {request.number}"
        task = asyncio.get_running_loop().create_task(self._admit(request), name=name)
        self._admissions.add(task)
        task.add_done_callback(self._admissions.discard)
        return task

    async def _admit(self, r: pb.AdmitBatchRequest) -> Admission:
        try:
            verdict = await self._on_disk(
                self._outbox.admit, r.query, r.number, r.file, r.rows, r.bytes, r.digest or None
            )
        except DiskFailed as error:
            self._steps.fail(error)
            raise
        # A query process may end after the node admits a batch and before the process reports the
        # digest. The next query process makes the batch again. The second request for an admission
        # has the verdict DONE, and gives the digest to the core (RULES.md#i6, RULES.md#r28).
        reported = r.digest if verdict is Admission.DONE else ""
        if verdict is Admission.MISMATCH and self._answers.may_be_of_other_code(r.query, r.number):
            verdict = Admission.DONE
        if verdict in (Admission.ADMITTED, Admission.DONE):
            rows = r.rows + r.written_rows
            self._steps.handle(on.BatchAdmitted(r.query, r.number, rows, r.bytes, r.lineage))
            self._admitted(r.query, r.number)
            if reported:
                self._steps.handle(on.BatchDigested(r.query, r.number, reported))
        elif verdict is Admission.MISMATCH:
            log.error("batch differs from its admitted output", query=r.query, batch=r.number)
        return verdict

    async def _on_disk(self, change: Callable[..., T], *arguments: Any) -> T:
        """Change the outbox in its thread. If its disk hangs, ``on_stuck`` is called, because no
        query could continue here."""
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._outbox_thread, change, *arguments)
        self._outbox_watch.begin()
        done.add_done_callback(lambda _: self._outbox_watch.end())
        return await done

    async def ReportDigest(  # noqa: N802
        self, request: pb.ReportDigestRequest, context: Context
    ) -> pb.Empty:
        await self._known(request.incarnation, context)
        await self._on_disk(
            self._outbox.report_digest, request.query, request.number, request.digest
        )
        self._steps.handle(on.BatchDigested(request.query, request.number, request.digest))
        return pb.Empty()

    async def ReportQuery(  # noqa: N802
        self, request: pb.ReportQueryRequest, context: Context
    ) -> pb.ReportQueryReply:
        await self._known(request.incarnation, context)
        reply = pb.ReportQueryReply()
        match request.WhichOneof("report"):
            case "planned":
                reply.refused = await self._prepare(request)
            case "progress":
                self._observer.progressed(request.query, request.progress)
            case "failed":
                self._on_failed(request.query, request.failed, request.lineage)
            case "halted":
                self._steps.handle(on.QueryHalted(request.query))
        return reply

    async def ReportExecutors(  # noqa: N802
        self, request: pb.ReportExecutorsRequest, context: Context
    ) -> pb.Empty:
        await self._known(request.incarnation, context)
        self._observer.saw_executors(request)
        return pb.Empty()

    def _on_failed(self, query: str, failed: pb.QueryFailed, lineage: str) -> None:
        number, reason = failed.number, failed.reason
        log.warning("query failed", query=query, batch=number, reason=reason)
        self._steps.handle(on.QueryFailed(query, number, reason, lineage, failed.by_host))
        if query in self._buckets:
            self._claim_again(query)

    async def _prepare(self, request: pb.ReportQueryRequest) -> str:
        """The reason why the query must not start, or an empty string. An unavailable sink does not
        prevent the start, because the publish stage retries it."""
        query, arrow = request.query, pa.ipc.read_schema(pa.py_buffer(request.planned.schema))
        self._schemas[query] = arrow
        checks = [self._check(query, sink, arrow) for sink in self._sinks(query).values()]
        reason = next(filter(None, await asyncio.gather(*checks)), "")
        if SHADOW_SIGN in query:
            reason = _other_columns(self._schemas.get(query.partition(SHADOW_SIGN)[0]), arrow)
        if reason:
            self._steps.handle(on.QueryRefused(query, reason, request.lineage))
        self._refuse_shadow_of(query)
        return reason

    def _refuse_shadow_of(self, query: str) -> None:
        """Refuse the shadow of ``query`` if it reported its columns first, and they differ."""
        for name, columns in self._schemas.items():
            if name.startswith(f"{query}{SHADOW_SIGN}"):
                reason = _other_columns(self._schemas[query], columns)
                if reason:
                    self._steps.handle(on.QueryRefused(name, reason, ""))

    async def _check(self, query: str, sink: PreparedSink, schema: pa.Schema) -> str:
        try:
            await asyncio.to_thread(sink.prepare, schema)
        except SinkRefused as error:
            return str(error)
        except SinkUnavailable as error:
            log.warning("sink not checked", query=query, reason=str(error))
        return ""

    async def _known(self, incarnation: str, context: Context) -> None:
        if incarnation != self._answers.incarnation():
            self._note_orphan(incarnation)
            reason = f"query process {incarnation} is not the one that this node runs"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)

    def _note_orphan(self, incarnation: str) -> None:
        """Count each orphaned query process once, however often it calls before it ends."""
        if incarnation not in self._orphans:
            self._orphans.add(incarnation)
            self._observer.orphaned()


def _other_columns(live: pa.Schema | None, shadow: pa.Schema) -> str:
    """Why the rows of a shadow do not fit the sinks of its query, or an empty string."""
    if live is None:
        return ""
    ours, theirs = (dict(zip(one.names, one.types, strict=True)) for one in (live, shadow))
    if ours == theirs:
        return ""
    return (
        f"the shadow yields the columns {_shown(theirs)}, but the sinks of the query get "
        f"{_shown(ours)}; give the query a sink of its own instead"
    )


def _shown(columns: Mapping[str, pa.DataType]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _to_reply(place: BucketPlace) -> pb.LocateBucketsReply:
    reply = pb.LocateBucketsReply(
        timeout=place.timeout,
        group=place.group,
        group_id=place.group_id,
        sink=place.sink,
        key=place.key,
        buckets=place.buckets,
    )
    match place.target:
        case Table(url, connect_timeout, name, mode, atomic):
            table = pb.BucketTable(
                url=url, connect_timeout=connect_timeout, name=name, mode=mode, atomic=atomic
            )
            reply.table.CopyFrom(table)
        case Plugin(kind, options, messages, directory):
            plugin = pb.BucketPlugin(
                kind=kind, options=options, messages=messages, directory=directory
            )
            reply.plugin.CopyFrom(plugin)
    return reply


def _to_message(endpoints: Endpoints) -> pb.RangeEndpoints:
    return pb.RangeEndpoints(
        addresses=endpoints.addresses,
        token=endpoints.token,
        ca=endpoints.ca or b"",
        group_id=endpoints.group_id,
        last_epoch=endpoints.last_epoch,
    )


class LocalServer:
    """Serves the service on a Unix socket, and makes the socket again if it is deleted.

    A cleaner of temporary files may delete the socket or its directory. The query process that is
    connected does not notice, but a new query process could not connect.
    """

    def __init__(self, service: LocalService, socket: Path) -> None:
        self._service, self._socket = service, socket
        self._servers: list[grpc.aio.Server] = []
        self._stopped = False

    async def start(self) -> None:
        """Make the runtime directory and listen on the socket. Raises ConfigError, OSError and
        RuntimeError."""
        make_runtime_dir(self._socket.parent)
        server = grpc.aio.server(options=(("grpc.http2.bdp_probe", 0),))  # as in link.py
        rpc.add_LocalServicer_to_server(self._service, server)
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        self._servers.append(server)

    async def watch(self, pause_seconds: float = SOCKET_LOOK_SECONDS) -> None:
        """Make the socket again whenever it is deleted. Try again later if that is not possible,
        since the present query process needs no new socket."""
        while not self._stopped:
            await asyncio.sleep(pause_seconds)
            if self._stopped or self._socket.exists():
                continue
            log.warning("the local socket was deleted; making it again", path=str(self._socket))
            try:
                await self.start()
            except (EngineError, OSError, RuntimeError) as error:
                log.warning("the local socket was not made", reason=str(error))

    async def stop(self) -> None:
        """End the calls and stop listening."""
        self._stopped = True
        for server in self._servers:
            await server.stop(grace=0.2)
