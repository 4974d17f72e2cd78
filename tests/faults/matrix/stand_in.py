"""The query process of tier 1: it computes ``SELECT id, text FROM events`` without Spark.

It is a process as the real one, with the same arguments, and reads the journal with the same
reader. So the rows of a batch are a function of the journal, and both nodes write the same bytes.
Its checkpoint has the files that Spark writes for a query without state, so that snapshots have it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from ha_engine.errors import (
    CheckpointTooOld,
    DiskFailed,
    JournalDamaged,
    QueryProcessFailed,
    StateLost,
)
from ha_engine.journal import read_extent
from ha_engine.query.application_versions import ApplicationVersions
from ha_engine.query.checkpoint_files import last_finished
from ha_engine.query.checkpoints import disown, open_checkpoint
from ha_engine.query.link import Address, Superseded, open_channel
from ha_engine.query.parent_watchdog import end_without
from ha_engine.query.process import FAILED_EXIT_CODE, Attendance
from ha_engine.query.settings import Settings
from ha_engine.query.start_report import READY, StartReport
from ha_engine.types import Events, Extent, Mark
from ha_engine.v1 import local_pb2 as pb
from tests.e2e.query_stand_in import BatchFails, QueryStandIn

STREAM, COLUMNS = "events", ["id", "text"]
HEADING = "v1\n{}\n"
BATCHES_KEPT = 100


class JournalCopies(QueryStandIn):
    """Copies two columns of the events of one stream."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            Address(settings.socket, settings.incarnation), settings.directories.outbox
        )
        self._versions = ApplicationVersions(settings.application)
        self._checkpoints = settings.directories.checkpoints
        self._opened: dict[str, Path] = {}

    def _run_batches(self, run: pb.RunQuery) -> None:
        try:
            super()._run_batches(run)
        except (Superseded, StateLost, CheckpointTooOld):
            raise
        except QueryProcessFailed as failure:
            _end(failure)

    def prepare(self, run: pb.RunQuery) -> None:
        """Load the version of the application that the node runs."""
        streams = self._versions.holding(run.query, run.digest).streams
        self._events = streams[STREAM].arrow_schema
        self.schema = pa.schema([self._events.field(name) for name in COLUMNS])

    def last_batch(self, run: pb.RunQuery) -> Mark:
        checkpoint = open_checkpoint(
            self._checkpoints, run.query, run.lineage, must_resume=run.must_resume
        )
        self._opened[run.query] = checkpoint
        if (last := last_finished(checkpoint)) is None:
            return Mark(run.query, run.initial_mark, run.initial_sequence)
        offset = json.loads((checkpoint / "offsets" / str(last)).read_text().splitlines()[-1])
        return Mark(run.query, offset["mark"], offset["through"])

    def disown(self, run: pb.RunQuery) -> None:
        disown(self._opened[run.query])

    def rows(self, run: pb.RunQuery, before: Mark, mark: Mark) -> pa.Table:
        request = pb.LocateRequest(
            incarnation=self.link.address.incarnation,
            query=run.query,
            number=mark.number,
            first_sequence=before.through + 1,
            last_sequence=mark.through,
        )
        if mark.through <= before.through:
            return self.schema.empty_table()
        reply = self.link.call(self.link.stub.Locate, request)
        if reply.trimmed:
            raise CheckpointTooOld(f"there are no records of batch {mark.number}")
        extents = () if reply.skipped else reply.extents
        try:
            batches = [
                pa.ipc.read_record_batch(record.payload, self._events).select(COLUMNS)
                for extent in extents
                for record in read_extent(
                    Extent(extent.path, extent.offset, extent.length), stream=STREAM
                )
                if before.through < record.position.sequence <= mark.through
                and isinstance(record.body, Events)
            ]
        except (JournalDamaged, DiskFailed) as error:
            raise BatchFails(str(error)) from error
        return pa.Table.from_batches(batches, self.schema)

    def batch_ended(self, run: pb.RunQuery, mark: Mark) -> None:
        write_offset(self._opened[run.query], mark)


def write_offset(checkpoint: Path, mark: Mark, **state: int) -> None:
    """Write the files of the batch that ends at ``mark``, with further numbers of its ``state``."""
    name = str(mark.number)
    offset = json.dumps({"mark": mark.number, "through": mark.through, **state})
    logs = {"offsets": HEADING + offset, "commits": HEADING}
    if not (checkpoint / "metadata").exists():
        _replace(checkpoint / "metadata", '{"id": "stand-in"}')
    for log, content in logs.items():
        (checkpoint / log).mkdir(exist_ok=True)
        _replace(checkpoint / log / name, content)
        (checkpoint / log / str(mark.number - BATCHES_KEPT)).unlink(missing_ok=True)


def _replace(path: Path, content: str) -> None:
    """Write a file that a loss of power leaves whole; Spark's boot stamp does not see such a loss
    on a host that continues."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _end(failure: BaseException | None) -> NoReturn:
    """End the process after an error that is not the batch's, as when its disk is full."""
    traceback.print_exception(failure)
    os._exit(FAILED_EXIT_CODE)


def serve(arguments: list[str], queries: type[JournalCopies]) -> NoReturn:
    """Run ``queries`` as the query process with these arguments, and end this process."""
    exit_code = _served(arguments, queries)
    logging.shutdown()
    os._exit(exit_code)


def _served(arguments: list[str], queries: type[JournalCopies]) -> int:
    settings = Settings.parse(arguments)
    end_without(arguments[arguments.index("--parent") + 1])
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    threading.excepthook = lambda failure: _end(failure.exc_value)
    stand_in = queries(settings)
    StartReport.of(os.environ).step(READY)
    address = Address(settings.socket, settings.incarnation)
    try:
        for command in Attendance(address, open_channel(address)).commands():
            if command.WhichOneof("command") == "halt":
                stand_in.halt(command.halt.query)
                stand_in.report_halt(command.halt.query)
            else:
                stand_in.prepare(command.run)
                stand_in.run(command.run)
    except Superseded:
        return FAILED_EXIT_CODE
    return 0


if __name__ == "__main__":
    serve(sys.argv[1:], JournalCopies)
