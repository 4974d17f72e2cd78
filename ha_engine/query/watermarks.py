"""Keep the watermark of each stream of a query over a restart (RULES.md#i6).

A query's watermark is the one of its slowest stream. Spark keeps the watermarks of the streams in
memory, and writes only the query's watermark to the checkpoint. After a restart, a stream without
new events would hold the query's watermark back on this node, and not on a node that ran on. The
two nodes would yield the same rows in different batches.

So each batch notes the watermarks of the streams in Spark's offset log. The first batch after a
start gives them back to Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ha_engine.query.object_path import CheckpointPath
from ha_engine.query.offsets import note_watermarks, watermarks_before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from ha_engine.query.application import QuerySpec


class Watermarks:
    """The watermarks of the streams of a query. Call both methods in Spark's thread of the query,
    ``restore`` before a batch and ``note`` after its rows were computed."""

    def __init__(self, spark: SparkSession, query: QuerySpec, checkpoint: CheckpointPath) -> None:
        self._spark, self._query, self._checkpoint = spark, query, checkpoint
        self._of_spark: Any = None

    def restore(self, batch_id: int) -> None:
        """Before the first batch, give Spark the watermarks that the checkpoint has.

        Raises OSError.
        """
        if self._of_spark is not None:
            return
        classes = self._spark.sparkContext._jvm.haengine.streaming
        self._of_spark = classes.Watermarks(self._started()._jsq)
        kept = watermarks_before(self._checkpoint, batch_id, self._query.digest)
        self._of_spark.restore(kept)

    def note(self, batch_id: int) -> None:
        """Write the watermarks after a batch to the checkpoint. Raises DiskFailed."""
        watermarks = list(self._of_spark.after())
        note_watermarks(self._checkpoint, batch_id, self._query.digest, watermarks)

    def _started(self) -> StreamingQuery:
        return next(one for one in self._spark.streams.active if one.name == self._query.name)


class OneWatermark:
    """Replaces ``Watermarks`` for a query with at most one watermark, which Spark itself keeps."""

    def restore(self, batch_id: int) -> None:
        pass

    def note(self, batch_id: int) -> None:
        pass
