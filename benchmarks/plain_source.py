"""The data source of the plain job: Arrow files in a directory, in the order of their numbers.

What somebody writes who knows Spark's Python data sources: record batches instead of rows, files
mapped into memory, a poll that waits inside ``latestOffset`` instead of spinning through Spark, a
bounded batch, and one task for each core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

FORMAT = "bench_spool"
POLL_SECONDS = 0.001


def file_of(directory: Path, number: int) -> Path:
    return directory / f"{number:08}.arrow"


@dataclass
class Files(InputPartition):  # type: ignore[misc]
    """Files first..last, read by one task."""

    first: int
    last: int


class SpoolSource(DataSource):  # type: ignore[misc]
    """Options: ``directory``, ``files_per_batch``, ``tasks``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> SpoolReader:  # noqa: N802
        return SpoolReader(dict(self.options))


class SpoolReader(DataSourceStreamReader):  # type: ignore[misc]
    """An offset is ``{"file": n}``: everything up to file n is read."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._directory = Path(options["directory"])
        self._files_per_batch, self._tasks = int(options["files_per_batch"]), int(options["tasks"])

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"file": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802
        first = start["file"] + 1
        parent = os.getppid()
        while not file_of(self._directory, first).exists():
            if os.getppid() != parent:
                raise SystemExit("the driver is gone")
            time.sleep(POLL_SECONDS)
        last = first
        while last - first + 1 < self._files_per_batch:
            if not file_of(self._directory, last + 1).exists():
                break
            last += 1
        return {"file": last}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Files]:
        first, last = start["file"] + 1, end["file"]
        count = last - first + 1
        tasks = min(self._tasks, count)
        edges = [first + count * part // tasks for part in range(tasks + 1)]
        return [Files(edges[part], edges[part + 1] - 1) for part in range(tasks)]

    def read(self, partition: Files) -> Iterator[pa.RecordBatch]:
        for number in range(partition.first, partition.last + 1):
            with pa.memory_map(str(file_of(self._directory, number))) as file:
                yield from pa.ipc.open_file(file).read_all().to_batches()
