"""The ``postgres`` sink with ``buckets``, whose rows Spark's tasks write (RULES.md#r34).

The tasks write a batch before the node admits it, so the node only finds in the ledger that every
bucket has the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ha_engine.outbox.batch_file import WRITTEN_BY_TASKS, read_batch_file
from ha_engine.outbox.outbox import OutboxBatch
from ha_engine.publish.sink import Deadline, Remaining
from ha_engine.publish.sinks.copy_text import CopyText
from ha_engine.publish.sinks.postgres import TableSink, TableStore


class BucketStore(TableStore, Protocol):
    """The database of a sink with a ledger row for each bucket."""

    def claim(
        self, epoch: int, start_after: int, group_id: str, remaining: Remaining
    ) -> tuple[int, int]: ...
    def publish(
        self, batch: int, epoch: int, parts: Iterable[CopyText] | None, remaining: Remaining
    ) -> None: ...


class BucketedSink(TableSink):
    """Implements ``publish.Sink``. ``last_mark`` returns the query's newest mark in the journal."""

    def __init__(
        self, name: str, store: BucketStore, key: tuple[str, ...], last_mark: Callable[[], int]
    ) -> None:
        super().__init__(name, store, key)
        self._store, self._last_mark = store, last_mark
        self._claimed = 0

    def is_ready(self, epoch: int) -> bool:
        """Whether tasks may write: the table is there, and ``epoch`` has claimed all buckets."""
        return self._prepared is not None and self._claimed == epoch

    def claim(self, epoch: int, start_after: int, group_id: str, deadline: Deadline) -> int:
        """Raise the epoch of all buckets, and return the last batch that every bucket has.

        A bucket may have a batch that the journal does not have, because a forced failover gave it
        up. Then return the number of that batch, which must not be used again (RULES.md#r26).
        """
        remaining = deadline.remaining_seconds
        lowest, highest = self._store.claim(epoch, start_after, group_id, remaining)
        self._claimed = epoch
        return lowest if highest <= self._last_mark() else highest

    def publish(self, number: int, batch: OutboxBatch, epoch: int, deadline: Deadline) -> None:
        """Check that every bucket has the batch.

        A batch that was admitted before the query had buckets has its rows in the outbox, and is
        written from there.
        """
        remaining, table = deadline.remaining_seconds, read_batch_file(batch.path)
        by_tasks = table.schema.equals(WRITTEN_BY_TASKS.schema)
        parts = None if by_tasks else self._parts(table, remaining)
        self._store.publish(number, epoch, parts, remaining)
