"""Bounds the keys that the patterns of a query have in Spark's state.

Spark counts the keys when a batch has ended, so the next batch fails. After a restart the first
batch is not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ha_engine.errors import StateTooLarge

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

PATTERN_OPERATOR = "flatMapGroupsWithState"


@dataclass(slots=True)
class StateLimit:
    """The most keys of a query's patterns, or None for a query without one. ``streaming`` is the
    query once it runs."""

    keys_max: int | None
    streaming: StreamingQuery | None = None

    def require(self) -> None:
        """Raise StateTooLarge if the batch before left more keys than the query may have."""
        if self.keys_max is None or self.streaming is None:
            return
        progress = self.streaming.lastProgress
        operators = progress.stateOperators if progress else []
        keys = sum(one.numRowsTotal for one in operators if one.operatorName == PATTERN_OPERATOR)
        if keys > self.keys_max:
            raise StateTooLarge(
                f"the state has {keys:,} keys; the limit is max_keys, {self.keys_max:,}: raise it, "
                "shorten within, or make the conditions of the first step stricter"
            )
