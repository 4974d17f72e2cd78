"""The node's side of the local socket over a real journal and a real outbox, driven by a test.

It decides nothing: the test appends events and marks, and sees the reports of the query process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from ha_engine.journal import Journal
from ha_engine.outbox import Admission, Outbox
from ha_engine.outbox.batch_file import digest_of_table, read_batch_file
from ha_engine.query.application import QuerySpec, StreamSpec
from ha_engine.types import Body, Events, Mark, Position, Record
from ha_engine.v1 import local_pb2 as pb
from ha_engine.v1 import local_pb2_grpc as rpc
from tests.waiting import wait_until

SLICE_SECONDS = 1.0
RECEIVED_AT_US = 1_357_000_000_000_000
VERDICTS = {verdict: pb.AdmitBatchReply.Verdict.Value(verdict.name) for verdict in Admission}


@dataclass
class Seen:
    """The reports of the query process."""

    planned: dict[str, pa.Schema] = field(default_factory=dict)
    failed: dict[str, pb.QueryFailed] = field(default_factory=dict)
    progress: list[tuple[str, pb.QueryProgress]] = field(default_factory=list)
    digests: dict[tuple[str, int], str] = field(default_factory=dict)
    attended: list[str] = field(default_factory=list)
    halted: list[str] = field(default_factory=list)
    verdicts: list[tuple[str, int, Admission]] = field(default_factory=list)


class LocalNode(rpc.LocalServicer):
    """One journal, one outbox, one socket. ``incarnation`` is the only accepted caller."""

    def __init__(self, directory: Path, incarnation: str = "one") -> None:
        self.directory, self.incarnation = directory, incarnation
        self.outbox_directory = directory / "outbox"
        self.checkpoints = directory / "checkpoints"
        self.socket = directory / "s"
        self.journal = Journal.open(directory / "journal", group="test")
        self.seen = Seen()
        self.refusals: dict[str, str] = {}
        self.skipped: set[tuple[str, int]] = set()
        # By query and epoch, where tasks write the buckets of the query's sink.
        self.buckets: dict[tuple[str, int], pb.LocateBucketsReply] = {}
        # After so many answers, the log of a stream is another one.
        self.buckets_located_max: int | None = None
        # By sequence, where the log of a stream ends there.
        self.log_ends: dict[int, str] = {}
        # The journal begins after this mark of each query.
        self.trimmed_through = 0
        self._marks: dict[str, list[Mark]] = {}
        self._changed = threading.Condition()
        self._commands: list[pb.QueryCommand] = []
        self._ended = False
        self._server: grpc.Server | None = None
        self.outbox = Outbox.open(self.outbox_directory)

    # -- calls of a test ---------------------------------------------------------------------------

    def start(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(16))
        rpc.add_LocalServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(grace=0).wait()
            self._server = None

    def append(self, stream: StreamSpec, *batches: list[dict[str, Any]] | pa.RecordBatch) -> None:
        """Append one events record for each batch of rows."""
        for rows in batches:
            batch = rows
            if isinstance(batch, list):
                batch = pa.RecordBatch.from_pylist(batch, schema=stream.arrow_schema)
            body = Events(stream.name, batch.num_rows, RECEIVED_AT_US)
            self._append(body, batch.serialize().to_pybytes())
        self.journal.sync()

    def mark(self, *queries: str) -> None:
        """End the current batch of each query here."""
        for query in queries:
            known = self._marks.setdefault(query, [])
            mark = Mark(query, len(known) + 1, self.journal.last.sequence)
            self._append(mark)
            self.journal.sync()
            with self._changed:
                known.append(mark)
                self._changed.notify_all()

    def command(self, command: pb.QueryCommand) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    def end_attendance(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def admitted(self, query: str, number: int, *, within: float = 120.0) -> pa.Table:
        """Return the rows of a batch, once it is admitted."""
        wait_until(
            lambda: self.outbox.last_admitted(query) >= number or query in self.seen.failed,
            within=within,
        )
        assert query not in self.seen.failed, self.seen.failed[query].reason
        return read_batch_file(self.outbox_directory / query / f"{number}.arrow")

    def failure(self, query: str, *, within: float = 120.0) -> pb.QueryFailed:
        wait_until(lambda: query in self.seen.failed, within=within)
        return self.seen.failed[query]

    def outputs(self, query: str) -> list[str]:
        """Compute the digests of all admitted batches."""
        last = self.outbox.last_admitted(query)
        files = (self.outbox_directory / query / f"{n}.arrow" for n in range(1, last + 1))
        return [digest_of_table(read_batch_file(file)) for file in files]

    def _append(self, body: Body, payload: bytes = b"") -> None:
        position = Position(1, self.journal.last.sequence + 1)
        self.journal.append([Record(position, position.sequence - 1, body, payload)])

    # -- the protocol ------------------------------------------------------------------------------

    def Attend(  # noqa: N802
        self, request: pb.AttendRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.QueryCommand]:
        self._known(request.incarnation, context)
        self.seen.attended.append(request.incarnation)
        sent = 0
        while context.is_active():
            with self._changed:
                self._changed.wait(0.2)
                fresh, ended = self._commands[sent:], self._ended
            yield from fresh
            sent += len(fresh)
            if ended:
                return

    def AwaitMark(  # noqa: N802
        self, request: pb.AwaitMarkRequest, context: grpc.ServicerContext
    ) -> pb.AwaitMarkReply:
        self._known(request.incarnation, context)
        if request.after < self.trimmed_through:
            return pb.AwaitMarkReply(trimmed=True)
        with self._changed:
            known = self._marks.setdefault(request.query, [])
            self._changed.wait_for(lambda: len(known) > request.after, SLICE_SECONDS)
            if len(known) <= request.after:
                return pb.AwaitMarkReply(pending=True)
            mark = known[request.after]
        return pb.AwaitMarkReply(number=mark.number, sequence=mark.through)

    def Locate(  # noqa: N802
        self, request: pb.LocateRequest, context: grpc.ServicerContext
    ) -> pb.LocateReply:
        self._known(request.incarnation, context)
        if (request.query, request.number) in self.skipped:
            return pb.LocateReply(skipped=True)
        found = self.journal.locate(request.first_sequence, request.last_sequence)
        return pb.LocateReply(
            extents=[pb.Extent(path=e.path, offset=e.offset, length=e.length) for e in found]
        )

    def LogEnds(  # noqa: N802
        self, request: pb.LogEndsRequest, context: grpc.ServicerContext
    ) -> pb.LogEndsReply:
        self._known(request.incarnation, context)
        ends = self.log_ends.get(request.sequence)
        return pb.LogEndsReply(pending=True) if ends is None else pb.LogEndsReply(ends=ends)

    def Skipped(  # noqa: N802
        self, request: pb.SkippedRequest, context: grpc.ServicerContext
    ) -> pb.SkippedReply:
        self._known(request.incarnation, context)
        return pb.SkippedReply(skipped=(request.query, request.number) in self.skipped)

    def LocateBuckets(  # noqa: N802
        self, request: pb.LocateBucketsRequest, context: grpc.ServicerContext
    ) -> pb.LocateBucketsReply:
        self._known(request.incarnation, context)
        if self.buckets_located_max == 0:
            context.abort(grpc.StatusCode.ABORTED, "the topic is another one")
        place = self.buckets.get((request.query, request.epoch))
        if place is not None and self.buckets_located_max is not None:
            self.buckets_located_max -= 1
        return place or pb.LocateBucketsReply(pending=True)

    def AdmitBatch(  # noqa: N802
        self, request: pb.AdmitBatchRequest, context: grpc.ServicerContext
    ) -> pb.AdmitBatchReply:
        self._known(request.incarnation, context)
        r = request
        verdict = self.outbox.admit(r.query, r.number, r.file, r.rows, r.bytes, r.digest or None)
        self.seen.verdicts.append((r.query, r.number, verdict))
        return pb.AdmitBatchReply(verdict=VERDICTS[verdict])

    def ReportDigest(  # noqa: N802
        self, request: pb.ReportDigestRequest, context: grpc.ServicerContext
    ) -> pb.Empty:
        self._known(request.incarnation, context)
        self.outbox.report_digest(request.query, request.number, request.digest)
        self.seen.digests[request.query, request.number] = request.digest
        return pb.Empty()

    def ReportQuery(  # noqa: N802
        self, request: pb.ReportQueryRequest, context: grpc.ServicerContext
    ) -> pb.ReportQueryReply:
        self._known(request.incarnation, context)
        match request.WhichOneof("report"):
            case "planned":
                schema = pa.ipc.read_schema(pa.py_buffer(request.planned.schema))
                self.seen.planned[request.query] = schema
                return pb.ReportQueryReply(refused=self.refusals.get(request.query, ""))
            case "progress":
                self.seen.progress.append((request.query, request.progress))
            case "failed":
                self.seen.failed[request.query] = request.failed
            case "halted":
                self.seen.halted.append(request.query)
        return pb.ReportQueryReply()

    def ReportExecutors(  # noqa: N802
        self, request: pb.ReportExecutorsRequest, context: grpc.ServicerContext
    ) -> pb.Empty:
        self._known(request.incarnation, context)
        return pb.Empty()

    def _known(self, incarnation: str, context: grpc.ServicerContext) -> None:
        if incarnation != self.incarnation:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{incarnation} is not mine")


def run_command(
    spec: QuerySpec,
    *,
    lineage: str = "s",
    mark: int = 0,
    sequence: int = 0,
    partitions: Sequence[tuple[int, int]] = (),
) -> pb.RunQuery:
    return pb.RunQuery(
        query=spec.name,
        lineage=lineage,
        initial_mark=mark,
        initial_sequence=sequence,
        digest=spec.digest,
        partitions=[pb.StatePartitions(after=after, number=n) for after, n in partitions],
    )
