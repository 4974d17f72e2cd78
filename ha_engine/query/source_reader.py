"""Read the committed records of one stream for the ``ha_journal`` source (RULES.md#r18).

Spark imports this module in several workers, so this module imports no database, HTTP or CLI. The
node process decides where a batch ends, whether it is skipped, and which bytes of the journal it
has. On a cluster, tasks on other hosts read these records from the nodes.

An offset is ``{"mark": n, "sequence": s}``: batch n ends after the record with sequence s.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from ha_engine.journal import read_extent
from ha_engine.query.parent_watchdog import ProcessId, end_with_parent
from ha_engine.query.range_endpoints import Endpoints
from ha_engine.query.record_rows import coalesced, with_system_columns
from ha_engine.types import Events, Extent, Record

if TYPE_CHECKING:
    from ha_engine.query.marks import Marks

PARTITION_BYTES = 4 << 20
"""One task reads about this many bytes of a batch, unless the query says how many tasks read it."""
SMALL_BYTES, SMALL_ROWS = 256 << 10, 5_000
"""The rows of a batch up to this size come with its plan, so no task asks a worker for them.

At three times this size the gain ends, since Spark copies such rows one by one.
"""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Text options that the query process passes to a source.

    ``schema`` is the schema of the journal's record batches. ``driver`` is the process of the Spark
    driver that the source serves. A batch has at most ``parallelism`` tasks, of PARTITION_BYTES
    each. If ``tasks`` is a number, at least so many tasks read each batch instead.
    """

    socket: str
    incarnation: str
    query: str
    stream: str
    schema: pa.Schema
    driver: ProcessId
    lineage: str
    initial_mark: int = 0
    initial_sequence: int = 0
    parallelism: int = 1
    tasks: int | None = None

    def to_text(self) -> dict[str, str]:
        return {
            "socket": self.socket,
            "incarnation": self.incarnation,
            "query": self.query,
            "stream": self.stream,
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "driver": str(self.driver),
            "lineage": self.lineage,
            "initial_mark": str(self.initial_mark),
            "initial_sequence": str(self.initial_sequence),
            "parallelism": str(self.parallelism),
            "tasks": str(self.tasks or 0),
        }

    def marks(self, socket: Path) -> dict[str, str]:
        """The options with which a source in the JVM asks for marks, see ``kafka_marks``."""
        return {
            "socket": str(socket),
            "incarnation": self.incarnation,
            "query": self.query,
            "stream": self.stream,
            "lineage": self.lineage,
            "mark": str(self.initial_mark),
            "sequence": str(self.initial_sequence),
        }

    @classmethod
    def from_text(cls, text: dict[str, str]) -> SourceOptions:
        return cls(
            socket=text["socket"],
            incarnation=text["incarnation"],
            query=text["query"],
            stream=text["stream"],
            schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text["schema"]))),
            driver=ProcessId.parse(text["driver"]),
            lineage=text["lineage"],
            initial_mark=int(text["initial_mark"]),
            initial_sequence=int(text["initial_sequence"]),
            parallelism=int(text["parallelism"]),
            tasks=int(text["tasks"]) or None,
        )


@dataclass
class SequenceRange(InputPartition):  # type: ignore[misc]
    """The records with first <= sequence <= last. Each record is divided into ``slices`` equal
    parts, of which the task reads the one with the number ``slice``.

    A task reads the records from the files in ``extents`` on its host, or from ``endpoints`` if
    they are set.
    """

    first: int
    last: int
    extents: tuple[Extent, ...]
    endpoints: Endpoints | None = None
    slice: int = 0
    slices: int = 1

    def sliced(self, count: int) -> list[SequenceRange]:
        return [replace(self, slice=number, slices=count) for number in range(count)]

    def part_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        low = rows.num_rows * self.slice // self.slices
        return rows.slice(low, rows.num_rows * (self.slice + 1) // self.slices - low)


class JournalReader(_SimpleStreamReaderWrapper):  # type: ignore[misc]
    """The reader of one stream.

    One Python worker plans batches with the reader, and Spark's tasks call ``read``.

    The base class is private to Spark, but the planning worker accepts rows with a plan from no
    other class.
    """

    simple_reader = None

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._rows_schema = to_arrow_schema(schema, timezone="UTC")
        # Spark fails to copy a row in a plan if the row has an array of numbers with a null.
        self._nested = any(pa.types.is_nested(field.type) for field in self._rows_schema)
        self._small: SequenceRange | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_marks"}

    @cached_property
    def _marks(self) -> Marks:
        """The node's marks, connected at the first planning call, since tasks need no gRPC."""
        from ha_engine.query.marks import Marks

        end_with_parent(self._options.driver)
        return Marks(self._options)

    def initialOffset(self) -> dict[str, int]:
        return {"mark": self._options.initial_mark, "sequence": self._options.initial_sequence}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the mark that follows ``start``.

        Wait for the mark as long as necessary, and never return ``start``. A source that returns
        ``start`` could disagree with another source of the query:

        1. Source a stops waiting after mark n and answers n. 2. Mark n+1 is committed. 3. Spark
        asks source b, which answers n+1. 4. The batch reads a to mark n and b to mark n+1, but
        every other node reads both to the same mark (RULES.md#r18).
        """
        mark = self._marks.after(start["mark"])
        if mark.number <= start["mark"]:
            raise ValueError(
                f"the node answered mark {mark.number}, which is not after {start['mark']}"
            )
        return {"mark": mark.number, "sequence": mark.through}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[SequenceRange]:
        self._small = None
        first, last = start["sequence"] + 1, end["sequence"]
        if last < first:
            return []
        whole = self._located(end["mark"], first, last)
        size = sum(extent.length for extent in whole.extents)
        if not size:
            return []
        tasks = self._options.tasks
        pieces = min(tasks or self._options.parallelism, size // PARTITION_BYTES, last - first + 1)
        ranges = [whole]
        if pieces > 1:
            ranges = [self._located(end["mark"], *piece) for piece in split(first, last, pieces)]
        if tasks is not None:
            return [part for one in ranges for part in one.sliced(math.ceil(tasks / len(ranges)))]
        if size <= SMALL_BYTES and not self._nested:
            self._small = replace(whole, endpoints=None)  # this worker is on the node's host
        return ranges

    def getCache(
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of a small batch, which come with its plan, or None for a larger batch.

        Spark calls ``partitions`` before ``getCache``.
        """
        if self._small is None:
            return None
        batches = list(self.read(self._small))
        few = sum(batch.num_rows for batch in batches) <= SMALL_ROWS
        return iter(batches) if few else None

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing, since the node knows each batch that ended and the reader stores none."""

    def _located(self, number: int, first: int, last: int) -> SequenceRange:
        found = self._marks.located(number, first, last)
        return SequenceRange(first, last, found.extents, found.endpoints)

    def read(self, partition: SequenceRange) -> Iterator[pa.RecordBatch]:
        return coalesced(self._batches(partition))

    def _batches(self, partition: SequenceRange) -> Iterator[pa.RecordBatch]:
        for record in self._records(partition):
            inside = partition.first <= record.position.sequence <= partition.last
            if inside and isinstance(record.body, Events):
                rows = pa.ipc.read_record_batch(record.payload, self._options.schema)
                yield partition.part_of(with_system_columns(rows, record, self._rows_schema))

    def _records(self, partition: SequenceRange) -> Iterator[Record]:
        stream, endpoints = self._options.stream, partition.endpoints
        if endpoints is None:
            for extent in partition.extents:
                yield from read_extent(extent, stream=stream)
        else:
            from ha_engine.query.range_reader import read_range

            yield from read_range(endpoints, stream, partition.first, partition.last)


def split(first: int, last: int, pieces: int) -> list[tuple[int, int]]:
    """Divide [first, last] into ``pieces`` ranges, by sequence and not by bytes of a file.

    Both nodes must give the same rows to the same task, or sums of floating-point numbers differ
    (RULES.md#i6). The segment files of two nodes may end at different records.
    """
    count = last - first + 1
    edges = [first + count * piece // pieces for piece in range(pieces + 1)]
    return [(low, high - 1) for low, high in pairwise(edges)]
