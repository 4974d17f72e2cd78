"""Write one batch of a query to the outbox, and ask the node to admit the batch (RULES.md#r19).

Spark calls the writer for each batch. Only the node process renames or deletes admitted batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ha_engine.errors import BatchFailed, QueryProcessFailed
from ha_engine.outbox.batch_file import (
    WRITTEN_BY_TASKS,
    WrittenBatch,
    digest_of_table,
    write_batch_file,
)
from ha_engine.query.link import NodeLink
from ha_engine.query.object_path import CheckpointPath
from ha_engine.query.offsets import mark_of_batch
from ha_engine.query.reports import UNCOMPARED, Reports
from ha_engine.query.state_limit import StateLimit
from ha_engine.query.state_partitions import FIXED, Partitions
from ha_engine.query.watermarks import OneWatermark, Watermarks
from ha_engine.system.disk import disk
from ha_engine.v1 import local_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ha_engine.query.bucket_writer import BucketWriter

_Verdict = pb.AdmitBatchReply


class BatchDiffers(QueryProcessFailed):
    """The node admitted a batch before, but the query now produced other rows (RULES.md#i6)."""


@dataclass(frozen=True, slots=True)
class OutboxPlace:
    """The destination of a query's batches. ``directory`` is the directory of the whole outbox.
    ``lineage`` is that of the command that started the query."""

    query: str
    directory: Path
    lineage: str
    deterministic: bool = True

    @property
    def pending(self) -> Path:
        return self.directory / self.query / "pending"


class OutboxWriter:
    """The function that Spark calls for each batch.

    If there are ``buckets``, Spark's tasks write the rows to the sink, and the batch in the outbox
    has none. ``partitions`` are those of the running query's state, ``limit`` is that of its keys,
    and ``watermarks`` are those of its streams. ``error`` is the exception that ended the last
    call, in whose place Spark gets a BatchFailed.
    """

    def __init__(
        self,
        place: OutboxPlace,
        checkpoint: CheckpointPath,
        link: NodeLink,
        reports: Reports,
        buckets: BucketWriter | None = None,
        partitions: Partitions = FIXED,
        limit: StateLimit | None = None,
        watermarks: Watermarks | OneWatermark | None = None,
    ) -> None:
        self._partitions, self._limit = partitions, limit or StateLimit(None)
        self._watermarks = watermarks or OneWatermark()
        self._place, self._checkpoint, self._buckets = place, checkpoint, buckets
        self._link, self._reports = link, reports
        self.error: Exception | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        try:
            number = mark_of_batch(self._checkpoint, batch_id)
            self._partitions.require(number)
            self._limit.require()
            self._watermarks.restore(batch_id)
            if self._buckets is None:
                self.put(number, frame.toArrow())
            else:
                rows = self._buckets.write(number, frame)
                self.put(number, WRITTEN_BY_TASKS, rows)
            self._watermarks.note(batch_id)
        except Exception as error:
            self.error = error
            # When a query stops, Spark searches the text of an error by a regular expression. The
            # stack of a Java error in that text overflows the stack of Spark's thread.
            raise BatchFailed("the runner reports the reason") from None

    def put(self, number: int, table: pa.Table, written_rows: int = 0) -> None:
        """Write a batch, and return once the node has admitted it.

        ``written_rows`` is the number of further rows, which tasks have written to the sink.

        Raises BatchDiffers, DiskFailed, Superseded.
        """
        name = f"{number}.{self._link.address.incarnation}.arrow"
        written = write_batch_file(
            self._place.pending / name, table, query=self._place.query, number=number
        )
        request = self._request(number, written, written_rows)
        verdict = self._ask(request)
        if verdict == _Verdict.NEED_DIGEST:
            request.digest = self._digest(table)
            verdict = self._ask(request)
        if verdict == _Verdict.MISMATCH and not self._place.deterministic:
            verdict = _Verdict.DONE  # the rows that were admitted first remain
        match verdict:
            case _Verdict.ADMITTED:
                self._report(number, table)
            case _Verdict.DONE:
                written.path.unlink(missing_ok=True)
            case _:
                written.path.unlink(missing_ok=True)
                raise BatchDiffers(
                    f"batch {number} has other rows than when it was admitted; the query depends "
                    "on something that differs between runs: run 'ha-engine app check'"
                )

    def _ask(self, request: pb.AdmitBatchRequest) -> int:
        return self._link.call(self._link.stub.AdmitBatch, request).verdict

    def _request(
        self, number: int, written: WrittenBatch, written_rows: int
    ) -> pb.AdmitBatchRequest:
        return pb.AdmitBatchRequest(
            incarnation=self._link.address.incarnation,
            query=self._place.query,
            number=number,
            file=str(written.path.relative_to(self._place.directory)),
            rows=written.rows,
            bytes=written.bytes,
            lineage=self._place.lineage,
            written_rows=written_rows,
        )

    def _digest(self, table: pa.Table) -> str:
        return digest_of_table(table) if self._place.deterministic else UNCOMPARED

    def _report(self, number: int, table: pa.Table) -> None:
        if self._place.deterministic:
            self._reports.digest(self._place.query, number, table)
        else:
            self._reports.uncompared(self._place.query, number)


def clear_pending(place: OutboxPlace) -> None:
    """Create the directory of pending files, and delete what an earlier query process left in it.

    Raises DiskFailed.
    """
    with disk(place.pending):
        place.pending.mkdir(parents=True, exist_ok=True)
        for left in place.pending.glob("*.arrow"):
            left.unlink(missing_ok=True)
