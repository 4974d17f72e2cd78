"""The number of partitions of a query's state, which may change between two batches
(RULES.md#r35).

Spark can change the number only while the query does not run. It adds a batch of its own to the
checkpoint, which has no mark of its own and which no sink gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ha_engine.errors import QueryProcessFailed
from ha_engine.v1 import local_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING = "spark.sql.shuffle.partitions"


class RescaleDue(QueryProcessFailed):
    """The next batch needs another number of partitions, so the query must start again."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of a state after one batch.

    ``number`` is None if the checkpoint keeps the number with which it began. It holds through the
    batch with mark ``through``, or for all batches if that is None.
    """

    number: int | None
    through: int | None

    def require(self, mark: int) -> None:
        """Raise RescaleDue if the batch with this mark needs another number."""
        if self.through is not None and mark > self.through:
            raise RescaleDue(f"batch {mark} needs another number of state partitions")


FIXED = Partitions(None, None)
"""The partitions of a state whose number never changes."""


def partitions_after(mark: int, changes: Iterable[pb.StatePartitions]) -> Partitions:
    """The partitions of the state after the batch with this mark."""
    number, through = None, None
    for change in changes:
        if change.after <= mark:
            number = change.number
        elif through is None:
            through = change.after
    return Partitions(number, through)


def repartition(spark: SparkSession, checkpoint: Path, number: int) -> None:
    """Let Spark write the state in a checkpoint again, in ``number`` partitions."""
    uri = checkpoint.absolute().as_uri()
    spark._streamingCheckpointManager.repartition(uri, number)
