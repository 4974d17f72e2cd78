"""Run the queries of a test over a journal with its events, and collect the output of each batch.

After the input, a test moves the watermark of each query to the end of time, unless the test file
says otherwise. Spark takes the new watermark at the next batch, which is empty. So all windows,
joins and absences end without an event that the test file does not have (docs/adr/0043).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ha_engine.app_test.cases import Case
from ha_engine.app_test.events import DecodedBatch, DecodedEvents
from ha_engine.app_test.marks import INCARNATION, MarkService
from ha_engine.core.pace import EMPTY_BATCHES_MAX
from ha_engine.errors import BatchFailed, QueryProcessFailed
from ha_engine.journal import Journal
from ha_engine.query.application import QuerySpec, StreamApplication, StreamSpec
from ha_engine.query.failure import one_line
from ha_engine.query.offsets import mark_of_batch
from ha_engine.query.parent_watchdog import ProcessId
from ha_engine.query.plan import PlannedQuery, plan_query
from ha_engine.query.progress import progress_of
from ha_engine.query.source_reader import SourceOptions
from ha_engine.types import Events, Position, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from ha_engine.v1 import local_pb2 as pb

END_OF_TIME_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, the last year of an event."""
POLL_SECONDS = 0.02
STILL_SECONDS_MAX = 600.0
"""A query that ends no batch for so long has failed."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATE_EVENTS_SHOWN_MAX = 3
_SOCKET_DIRECTORY_BYTES_MAX = 60


@dataclass(frozen=True, slots=True)
class QueryOutput:
    """The output of one query in a test.

    ``batches`` has the rows of each batch by its number, in order. ``inputs`` is the number of
    batches with input. ``error`` says why the query failed, or is None. ``notes`` are for people.
    """

    schema: pa.Schema
    batches: Mapping[int, pa.Table]
    inputs: int
    notes: tuple[str, ...] = ()
    error: str | None = None


class BatchCollector:
    """The function that Spark calls for each batch. ``error`` is the exception of a failed call."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self.batches: dict[int, pa.Table] = {}
        self.error: Exception | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self.batches[mark_of_batch(self._checkpoint, batch_id)] = frame.toArrow()
        except Exception as error:
            self.error = error
            raise BatchFailed("the test reports the reason") from None  # as in OutboxWriter


@dataclass(slots=True)
class RunningQuery:
    """A query that runs until ``stop``. ``failure`` is set once it has failed."""

    planned: PlannedQuery
    collector: BatchCollector
    streaming: StreamingQuery
    ended: int = 0
    failure: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.planned.spec.name

    def wait(self, number: int) -> None:
        """Wait until batch ``number`` has ended, or the query has failed."""
        still_since = time.monotonic()
        try:
            while self.failure is None and self.ended < number:
                if self.streaming.awaitTermination(POLL_SECONDS):
                    raise QueryProcessFailed("Spark ended the query without a request")
                latest = self.streaming.lastProgress
                ended = 0 if latest is None else progress_of(latest).number
                if ended > self.ended:
                    self.ended, still_since = ended, time.monotonic()
                if time.monotonic() - still_since > STILL_SECONDS_MAX:
                    raise QueryProcessFailed(f"no batch ended for {STILL_SECONDS_MAX:g} s")
        except Exception as error:
            batch = len(self.collector.batches) + 1
            self.failure = f"batch {batch}: {one_line(self.collector.error or error)}"

    def close(self) -> None:
        """Move the watermark to the end of time, from the next batch on.

        No batch may be running. Spark has no public call for it. A restart from a checkpoint sets
        the watermark by the same method.
        """
        self.streaming._jsq.streamingQuery().watermarkTracker().setWatermark(END_OF_TIME_MS)

    def progress(self) -> list[pb.QueryProgress]:
        """The progress of each batch."""
        return [progress_of(one) for one in self.streaming.recentProgress]


def run_case(
    spark: SparkSession,
    application: StreamApplication,
    case: Case,
    batches: Sequence[DecodedBatch],
) -> dict[str, QueryOutput]:
    """Run the queries that ``case`` expects something of, and return their output by name.

    ``batches`` are the decoded events of ``case``. Raises ApplicationError if a query cannot run.
    """
    # A query without a batch would have no watermark to move.
    batches = batches or (DecodedBatch.empty(),)
    with _directory() as directory:
        journal, ends = _journal(directory / "journal", batches)
        socket = directory / "s"
        service = MarkService(socket, journal, ends)
        running = list[RunningQuery]()
        try:
            for expected in case.expected:
                spec = application.queries[expected.query]
                running.append(_start(spark, application, spec, socket, directory))
            for query in running:
                query.wait(len(batches))
            for query in running:
                _run_empty_batches(query, service, len(batches), close=case.close)
                query.notes += _late(query, application, batches)
        finally:
            for query in running:
                query.streaming.stop()
            service.stop()
            journal.close()
    return {
        query.name: QueryOutput(
            query.planned.schema,
            dict(sorted(query.collector.batches.items())),
            len(batches),
            tuple(query.notes),
            query.failure,
        )
        for query in running
    }


@contextmanager
def _directory() -> Iterator[Path]:
    """A temporary directory with a path that is short enough for a Unix socket in it."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _SOCKET_DIRECTORY_BYTES_MAX:
        base = "/tmp"  # noqa: S108 - the directory in it gets a random name and mode 0700
    with tempfile.TemporaryDirectory(prefix="ha-engine-", dir=base) as directory:
        yield Path(directory)


def _journal(directory: Path, batches: Sequence[DecodedBatch]) -> tuple[Journal, list[int]]:
    """A journal with the events of all batches, and the sequence of the last record of each."""
    journal, ends = Journal.open(directory, group="test"), list[int]()
    for batch in batches:
        received_at = (batch.received_at - _EPOCH) // timedelta(microseconds=1)
        for record in batch.records:
            position = Position(1, journal.last.sequence + 1)
            body = Events(record.stream, record.rows.num_rows, received_at)
            payload = record.rows.serialize().to_pybytes()
            journal.append([Record(position, position.sequence - 1, body, payload)])
        ends.append(journal.last.sequence)
    return journal, ends


def _start(
    spark: SparkSession,
    application: StreamApplication,
    spec: QuerySpec,
    socket: Path,
    directory: Path,
) -> RunningQuery:
    def options(stream: StreamSpec) -> SourceOptions:
        return SourceOptions(
            socket=str(socket),
            incarnation=INCARNATION,
            query=spec.name,
            stream=stream.name,
            schema=stream.arrow_schema,
            driver=ProcessId.of_this(),
            lineage=INCARNATION,
            tasks=spec.read_tasks,
        )

    # Without the marks of Kafka, all events are read from the journal.
    planned = plan_query(spark, application, spec, options)
    checkpoint = directory / "checkpoints" / spec.name
    collector = BatchCollector(checkpoint)
    stream = planned.frame.writeStream.queryName(spec.name).outputMode(spec.output_mode.value)
    stream = stream.option("checkpointLocation", checkpoint.as_uri())
    return RunningQuery(planned, collector, stream.foreachBatch(collector).start())


def _run_empty_batches(
    query: RunningQuery, service: MarkService, inputs: int, *, close: bool
) -> None:
    """Run empty batches after the input, as a node does when input pauses: until one yields no
    rows."""
    if query.failure is not None:
        return
    if close:
        query.close()
    for number in range(inputs + 1, inputs + EMPTY_BATCHES_MAX + 1):
        service.add(query.name)
        query.wait(number)
        if query.failure is not None or not query.collector.batches[number].num_rows:
            return


# -- late events -----------------------------------------------------------------------------------


def _late(
    query: RunningQuery, application: StreamApplication, batches: Sequence[DecodedBatch]
) -> Iterator[str]:
    """Say in which batches the query dropped late rows. Spark does not say which rows.

    Spark drops rows that are behind the watermark of the batch before, but none of a table.
    """
    streams = set(query.planned.spec.streams) - query.planned.spec.tables
    for before, progress in pairwise(query.progress()):
        if not progress.late_rows or progress.number > len(batches):
            continue
        rows = "row" if progress.late_rows == 1 else "rows"
        watermark = datetime.fromisoformat(before.watermark)
        older = [
            place
            for record in batches[progress.number - 1].records
            if record.stream in streams
            for place in _older(record, application.streams[record.stream], watermark)
        ]
        more = ", ..." if len(older) > _LATE_EVENTS_SHOWN_MAX else ""
        shown = ", ".join(older[:_LATE_EVENTS_SHOWN_MAX]) or "none"
        yield (
            f"batch {progress.number}: the query dropped {progress.late_rows} late {rows}; its "
            f"events up to the watermark {before.watermark}: {shown}{more}"
        )


def _older(record: DecodedEvents, stream: StreamSpec, watermark: datetime) -> Iterator[str]:
    if stream.watermark is None or stream.watermark.column not in record.rows.schema.names:
        return
    column = record.rows.column(stream.watermark.column)
    older = pc.less_equal(column, pa.scalar(watermark, column.type))
    for row in pc.indices_nonzero(older).to_pylist():
        yield record.place_of(row)
