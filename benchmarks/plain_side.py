"""The plain job as the benchmark sees it: a spool of Arrow files in, commit times out."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks.database import Database
from benchmarks.plain_source import file_of
from benchmarks.processes import session_of
from benchmarks.waiting import wait_until
from benchmarks.workload import BATCH_EVENTS, FIRST_EVENT, REQUEST_ROWS, SCHEMA, WORKLOADS, Workload

START_SECONDS = 120.0
ROUND_SECONDS = 300.0
PAIR_TABLES = ("plain", "other")


class PlainSide:
    """Implements the side's protocol: ``stage`` what a round reads, then ``run`` it."""

    def __init__(
        self,
        directory: Path,
        database: Database,
        spark: Mapping[str, str],
        workloads: Sequence[Workload] = WORKLOADS,
        tables: str = "plain",
    ) -> None:
        self._directory, self._workloads, self.tables = directory, workloads, (tables,)
        self._spool, self._report = directory / "spool", directory / "report.jsonl"
        self._staged: dict[str, list[Path]] = {}
        self._next = {workload.name: 1 for workload in workloads}
        self._lines: list[dict[str, Any]] = []
        self._read = 0
        for workload in workloads:
            (self._spool / workload.name).mkdir(parents=True)
        settings = {
            "spool": str(self._spool),
            "checkpoint": str(directory / "checkpoints"),
            "report": str(self._report),
            "url": database.libpq_url,
            "tables": tables,
            "workloads": [workload.name for workload in workloads],
            "files_per_batch": BATCH_EVENTS // REQUEST_ROWS,
            "tasks": 2,
            "spark": dict(spark),
        }
        (directory / "settings.json").write_text(json.dumps(settings))
        self._report.touch()
        self._process: subprocess.Popen[bytes] | None = None

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.plain_job",
            str(self._directory / "settings.json"),
        ]
        with (self._directory / "plain.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(lambda: bool(self._find("started")), within=START_SECONDS)
        for workload in self._workloads:
            self.put(workload.name, FIRST_EVENT)
            self.wait_read(workload.name)

    def stop(self) -> None:
        """Its session ends with it: Spark's workers outlive a killed driver."""
        if self._process is None:
            return
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait()

    def processes(self) -> list[psutil.Process]:
        """The driver, the JVM and the workers."""
        assert self._process is not None
        return session_of(self._process.pid)

    # -- rounds ------------------------------------------------------------------------------------

    def put(self, stream: str, batch: pa.RecordBatch) -> float:
        """Make one file readable; the time from which it was."""
        path = self._write(stream, batch)
        path.rename(path.with_suffix(""))
        return time.time()

    def stage(self, stream: str, batches: Sequence[pa.RecordBatch]) -> None:
        self._staged[stream] = [self._write(stream, batch) for batch in batches]

    def run(self, stream: str) -> float:
        """Seconds from the files' being readable to the commit of the last one's batch."""
        began = time.time()
        self.release(stream)
        return self.wait_read(stream) - began

    def release(self, stream: str) -> None:
        """Make what was staged readable."""
        for path in self._staged.pop(stream):
            path.rename(path.with_suffix(""))

    def wait_read(self, stream: str) -> float:
        """When the batch of the newest file was committed."""
        last = self._next[stream] - 1
        found: list[float] = []

        def committed() -> bool:
            for line in self._find("progress", query=stream):
                if line["file"] >= last:
                    commit = self._find("commit", query=stream, batch=line["batch"])
                    found.append(commit[-1]["at"])
                    return True
            return False

        wait_until(committed, within=ROUND_SECONDS)
        return found[-1]

    def progress_since(self, stream: str, lines: int) -> list[dict[str, Any]]:
        """Spark's progress of each batch that was reported after the first ``lines`` lines."""
        self._poll()
        late = self._lines[lines:]
        return [line for line in late if line["kind"] == "progress" and line["query"] == stream]

    def lines(self) -> int:
        self._poll()
        return len(self._lines)

    # ----------------------------------------------------------------------------------------------

    def _write(self, stream: str, batch: pa.RecordBatch) -> Path:
        final = file_of(self._spool / stream, self._next[stream])
        self._next[stream] += 1
        path = final.with_suffix(".arrow.unread")
        with pa.ipc.new_file(str(path), SCHEMA) as writer:
            writer.write_batch(batch)
        return path

    def _find(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        self._poll()
        return [
            line
            for line in self._lines
            if line["kind"] == kind and all(line[key] == value for key, value in wanted.items())
        ]

    def _poll(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"the plain job ended; see {self._directory / 'plain.log'}")
        with self._report.open() as report:
            report.seek(self._read)
            text = report.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole.encode())
        self._lines += [json.loads(line) for line in whole.splitlines()]
        died = [line for line in self._lines if line["kind"] == "died"]
        if died:
            raise RuntimeError(f"a query of the plain job died: {died[0]['reason']}")


class PlainPair:
    """Two plain jobs at once, each over all events and with tables of its own: what two hosts
    without the engine would do."""

    tables = PAIR_TABLES

    def __init__(self, sides: Sequence[PlainSide]) -> None:
        self._sides = sides

    def processes(self) -> list[psutil.Process]:
        return [process for side in self._sides for process in side.processes()]

    def stage(self, stream: str, batches: Sequence[pa.RecordBatch]) -> None:
        for side in self._sides:
            side.stage(stream, batches)

    def run(self, stream: str) -> float:
        """Seconds until the slower one has committed its last batch."""
        began = time.time()
        for side in self._sides:
            side.release(stream)
        return max(side.wait_read(stream) for side in self._sides) - began


@contextmanager
def plain_pair(
    directory: Path, database: Database, workloads: Sequence[Workload]
) -> Iterator[PlainPair]:
    with ExitStack() as stack:
        sides = [
            stack.enter_context(
                plain_side(directory / tables, database, workloads=workloads, tables=tables)
            )
            for tables in PAIR_TABLES
        ]
        yield PlainPair(sides)


@contextmanager
def plain_side(
    directory: Path,
    database: Database,
    spark: Mapping[str, str] | None = None,
    *,
    workloads: Sequence[Workload] = WORKLOADS,
    tables: str = "plain",
) -> Iterator[PlainSide]:
    directory.mkdir(parents=True)
    side = PlainSide(directory, database, spark or {}, workloads, tables)
    try:
        side.start()
        yield side
    finally:
        side.stop()
