"""One query process: it asks its node for marks, and makes the batches that Spark would make.

A batch has one row for each event of its query's streams, with a running total. So a batch that
lacks an event, has one twice, or continues a wrong state, or the state of another lineage,
has other rows on one of the nodes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ha_engine import __version__
from ha_engine.errors import CheckpointTooOld, DiskFailed, StateLost
from ha_engine.journal import read_extent
from ha_engine.outbox.batch_file import digest_of_table, write_batch_file
from ha_engine.query.checkpoints import disown, offer, open_checkpoint
from ha_engine.system.disk import disk
from ha_engine.system.files import make_directory
from ha_engine.types import Events
from ha_engine.v1 import local_pb2 as pb
from tests.dst.disk import Crashed, SimulatedFiles
from tests.dst.loop import ProcessLoop
from tests.dst.pair.checkpoint import Checkpoint, CheckpointDamaged, State
from tests.dst.pair.group import PLANS, STREAMS

if TYPE_CHECKING:
    from tests.dst.pair.host import Host
    from tests.dst.pair.process import NodeProcess

AGAIN_SECONDS = 0.2
STOP_SECONDS_MAX = 1.0
SCHEMA = pa.schema([("n", pa.int64()), ("total", pa.int64()), ("lineage", pa.string())])
Verdict = pb.AdmitBatchReply


class Superseded(Exception):
    """The node runs another query process."""


class NodeGone(Exception):
    """The node process has ended without an answer."""


class QueryBroken(Exception):
    """The query cannot continue."""


class _Context:
    """The part of a gRPC context that the node's service uses."""

    async def abort(self, code: object, reason: str) -> None:
        raise Superseded(reason)


class QueryProcess:
    """The query process ``incarnation`` on ``host``."""

    def __init__(self, host: Host, incarnation: str) -> None:
        self.host, self.incarnation = host, incarnation
        self.files = SimulatedFiles(host.disk, self.kill)
        self.loop = ProcessLoop(host.history.agenda, host.history.random, self.files.take_delay)
        self._random = host.history.random
        self._streams = {plan.name: plan.streams for plan in PLANS}
        # By query, the command that it follows, and its tasks. All but the last are to be stopped.
        self._commands: dict[str, pb.RunQuery] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._to_obey = deque[pb.QueryCommand]()
        # In the order of the calls, so that a history can be repeated.
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self.dead = False

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        self.loop.call_soon(lambda: self.loop.create_task(self._watched(self._attend())))

    def kill(self, reason: str = "killed") -> None:
        if not self.dead:
            self.dead = self.files.dead = True
            self.loop.kill()
            self.host.history.agenda.after(0.0, self.loop.dispose)
            self.host.spark_died(self, reason)

    def node_died(self) -> None:
        for waiting in self._waiting:
            self.loop.call_soon(_fail, waiting, NodeGone())

    async def _watched(self, work: Awaitable[None]) -> None:
        try:
            await work
        except (Superseded, Crashed) as error:
            self.kill(type(error).__name__)
        except DiskFailed as error:
            self.kill(f"its disk failed: {error}")
        except Exception as error:
            self.host.history.require(False, f"the query process fails: {error!r}")

    # -- calls of the node -------------------------------------------------------------------------

    async def _call(self, method: str, request: Any) -> Any:
        """Call the node until one of its processes answers. Raises Superseded, QueryBroken."""
        while True:
            process = self.host.process
            if process is not None and process.serves:
                try:
                    return await self._ask(process, method, request)
                except NodeGone:
                    pass
            await asyncio.sleep(AGAIN_SECONDS)

    async def _ask(self, process: NodeProcess, method: str, request: Any) -> Any:
        answer, agenda = self.loop.create_future(), self.host.history.agenda
        self._waiting[answer] = None
        service = getattr(process.local, method)

        def answered(outcome: Any) -> None:
            agenda.after(self._way(), lambda: self._settle(answer, outcome))

        process.serve(lambda: service(request, _Context()), answered)
        try:
            return await answer
        finally:
            self._waiting.pop(answer, None)

    def _settle(self, future: asyncio.Future[Any], outcome: Any) -> None:
        self.loop.call_soon(_settle, future, outcome)

    def _way(self) -> float:
        return self._random.uniform(0.0001, 0.002)

    async def _attend(self) -> None:
        while True:
            process = self.host.process
            if process is not None and process.serves:
                await self._take_commands(process)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _take_commands(self, process: NodeProcess) -> None:
        over, agenda = self.loop.create_future(), self.host.history.agenda
        self._waiting[over] = None

        async def attend() -> None:
            request = pb.AttendRequest(incarnation=self.incarnation, release=__version__)
            async for command in process.local.Attend(request, _Context()):  # type: ignore[arg-type]
                agenda.after(self._way(), lambda one=command: obey(one))  # type: ignore[misc]

        def obey(command: pb.QueryCommand) -> None:
            if not process.dead:
                self._to_obey.append(command)
                self.loop.call_soon(self._obey_next)

        process.serve(attend, lambda outcome: self._settle(over, outcome))
        try:
            await over
        except NodeGone:
            pass
        finally:
            self._waiting.pop(over, None)

    # -- queries -----------------------------------------------------------------------------------

    def _obey_next(self) -> None:
        command = self._to_obey.popleft()
        if command.WhichOneof("command") == "halt":
            self._halt(command.halt.query)
        else:
            self._obey(command.run)

    def _obey(self, run: pb.RunQuery) -> None:
        """Run a query. A restarted node repeats its command."""
        tasks = self._tasks.setdefault(run.query, [])
        if self._commands.get(run.query) == run and not tasks[-1].done():
            return
        self._commands[run.query] = run
        tasks.append(self.loop.create_task(self._watched(self._serve(run))))

    def _halt(self, query: str) -> None:
        self._commands.pop(query, None)
        tasks = self._tasks.setdefault(query, [])
        tasks.append(self.loop.create_task(self._watched(self._report_halt(query))))

    async def _report_halt(self, query: str) -> None:
        await self._stop_former(query)
        request = pb.ReportQueryRequest(
            incarnation=self.incarnation, query=query, halted=pb.Empty()
        )
        await self._call("ReportQuery", request)

    async def _serve(self, run: pb.RunQuery) -> None:
        try:
            await self._stop_former(run.query)
            await self._run_batches(run)
        except StateLost as error:
            self.host.history.counts["lost states"] += 1
            self.host.lost_states.add(run.query)
            await self._report_failure(run, str(error))
        except (CheckpointTooOld, CheckpointDamaged) as error:
            self.host.history.counts["useless checkpoints"] += 1
            disown(self.host.checkpoints / run.query, self.files)
            await self._report_failure(run, str(error))
        except QueryBroken as error:
            await self._report_failure(run, str(error))

    async def _stop_former(self, query: str) -> None:
        """Stop what ran under the command before. Spark needs time for that, in which the former
        run of the query may poll for a mark or end its batch."""
        tasks = self._tasks[query]
        if any(not task.done() for task in tasks[:-1]):
            await asyncio.sleep(self._random.uniform(0.0, STOP_SECONDS_MAX))
        for former in tasks[:-1]:
            former.cancel()
        del tasks[:-1]

    async def _report_failure(self, run: pb.RunQuery, reason: str) -> None:
        if self._commands.get(run.query) is run:
            del self._commands[run.query]
        failed = pb.QueryFailed(number=0, reason=reason, by_host=True)
        await self._call(
            "ReportQuery",
            pb.ReportQueryRequest(
                incarnation=self.incarnation, query=run.query, failed=failed, lineage=run.lineage
            ),
        )

    async def _run_batches(self, run: pb.RunQuery) -> None:
        self._require_definition(run)
        checkpoint = self._open(run)
        while True:
            number, through, total = checkpoint.state
            mark = await self._next_mark(run, number)
            checkpoint.plan(mark.number, mark.sequence)
            await asyncio.sleep(self._random.uniform(0.005, self.host.batch_seconds))
            rows = await self._rows(run.query, mark, through)
            totals = range(total + 1, total + 1 + len(rows))
            lineage = run.lineage.rpartition(":")[2]
            table = pa.table([rows, totals, [lineage] * len(rows)], schema=SCHEMA)
            self.host.history.judge.computed(self.host.name, run, mark.number, total, table)
            checkpoint.keep_state(len(rows))
            await self._put(run, mark.number, table)
            checkpoint.end(State(mark.number, mark.sequence, total + len(rows)))

    def _require_definition(self, run: pb.RunQuery) -> None:
        """Run no definition but that of the application file, which the operator may have changed
        since the node read it (RULES.md#r23)."""
        if self.host.application.definition_of(run.query) != run.digest:
            self.host.history.counts["definitions that have changed"] += 1
            raise QueryBroken(f"the application file has no {run.digest} of {run.query}")

    def _open(self, run: pb.RunQuery) -> Checkpoint:
        """Raises StateLost, CheckpointDamaged."""
        place = open_checkpoint(
            self.host.checkpoints,
            run.query,
            run.lineage,
            must_resume=run.must_resume,
            files=self.files,
            delete=self._delete,
        )
        if run.epoch:
            offer(place, run.epoch, self.files)
        pending = self.host.home / "outbox" / run.query / "pending"
        with disk(pending):
            make_directory(pending, files=self.files)
            for left in pending.glob("*.arrow"):
                self.files.unlink(left, missing_ok=True)
        self.host.lost_states.discard(run.query)
        return Checkpoint(place, State(run.initial_mark, run.initial_sequence, 0), self.files)

    def _delete(self, checkpoints: Sequence[Path]) -> None:
        for checkpoint in checkpoints:
            self.files.rmtree(checkpoint)

    async def _next_mark(self, run: pb.RunQuery, after: int) -> pb.AwaitMarkReply:
        request = pb.AwaitMarkRequest(
            incarnation=self.incarnation, query=run.query, after=after, lineage=run.lineage
        )
        while (reply := await self._call("AwaitMark", request)).pending:
            pass
        if reply.trimmed:
            raise CheckpointTooOld(f"no mark after {after}")
        if reply.number != after + 1:
            raise QueryBroken(f"got mark {reply.number} after {after}")
        return reply  # type: ignore[no-any-return]

    async def _rows(self, query: str, mark: pb.AwaitMarkReply, after: int) -> list[int]:
        request = pb.LocateRequest(
            incarnation=self.incarnation,
            query=query,
            number=mark.number,
            first_sequence=after + 1,
            last_sequence=mark.sequence,
        )
        reply = await self._call("Locate", request)
        if reply.trimmed:
            raise CheckpointTooOld(f"no records of batch {mark.number}")
        found: list[int] = []
        for extent in () if reply.skipped else reply.extents:
            for record in read_extent(extent):
                body = record.body
                if isinstance(body, Events) and body.stream in self._streams[query]:
                    schema = STREAMS[body.stream]
                    batch = pa.ipc.read_record_batch(pa.py_buffer(record.payload), schema)
                    found += batch.column(0).to_pylist()
        return found

    async def _put(self, run: pb.RunQuery, number: int, table: pa.Table) -> None:
        outbox, query = self.host.home / "outbox", run.query
        name = f"{query}/pending/{number}.{self.incarnation}.arrow"
        written = write_batch_file(
            outbox / name, table, query=query, number=number, files=self.files
        )
        request = pb.AdmitBatchRequest(
            incarnation=self.incarnation,
            query=query,
            number=number,
            file=name,
            rows=written.rows,
            bytes=written.bytes,
            lineage=run.lineage,
        )
        verdict = (await self._call("AdmitBatch", request)).verdict
        digest = digest_of_table(table)
        if verdict == Verdict.NEED_DIGEST:
            request.digest = digest
            verdict = (await self._call("AdmitBatch", request)).verdict
        if verdict == Verdict.ADMITTED:
            report = pb.ReportDigestRequest(
                incarnation=self.incarnation, query=query, number=number, digest=digest
            )
            await self._call("ReportDigest", report)
        elif verdict == Verdict.DONE:
            self.host.history.counts["batches made again"] += 1
            with disk(outbox):
                self.files.unlink(written.path, missing_ok=True)
        else:
            self.host.history.require(False, f"{query} {number} differs from what was admitted")


def _settle(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, Superseded):
        future.set_exception(outcome)
    elif isinstance(outcome, Exception):
        future.set_exception(QueryBroken(str(outcome)))
    else:
        future.set_result(outcome)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
