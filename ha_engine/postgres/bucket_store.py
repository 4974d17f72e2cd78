"""The ledger rows of a sink's buckets, whose rows Spark's tasks write."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, Engine

from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.postgres.ledger import Ledger, LedgerKey, require_same_buckets
from ha_engine.postgres.ledger_store import Remaining
from ha_engine.postgres.sink_store import SinkTable
from ha_engine.postgres.sink_table import Target
from ha_engine.postgres.table_rows import CsvRows, write_rows


class PostgresBucketStore(SinkTable):
    """The table of a sink, and one ledger row for each of its ``buckets``.

    A batch is published once every bucket has it. Buckets differ by at most one batch, since a
    query begins a batch after every bucket has the batch before. If batches are ``atomic``, the
    sink has one ledger row, and all its buckets have the same batches.
    """

    def __init__(
        self, engine: Engine, key: LedgerKey, target: Target, buckets: int, *, atomic: bool = False
    ) -> None:
        super().__init__(engine, key, target)
        keys = [key.of_bucket(bucket, buckets) for bucket in range(buckets)]
        if atomic:
            keys = [key.of_batch()]
        self._key, self._names = key, [one.sink for one in keys]
        self._buckets = [Ledger(one, target.schema) for one in keys]

    def claim(
        self, epoch: int, start_after: int, group_id: str, remaining: Remaining
    ) -> tuple[int, int]:
        """Raise the epoch of all ledger rows, commit, and return the lowest and the highest last
        batch of a bucket."""

        def work(connection: Connection) -> list[int]:
            require_same_buckets(connection, self._buckets[0].table, self._key, self._names)
            return [
                bucket.claim(connection, epoch, start_after, group_id) for bucket in self._buckets
            ]

        self._ledgers.transact(self._ledgers.prepare, remaining)
        last = self._ledgers.transact(work, remaining)
        return min(last), max(last)

    def publish(
        self, batch: int, epoch: int, parts: Iterable[CsvRows] | None, remaining: Remaining
    ) -> None:
        """Return if every bucket has ``batch``.

        If no bucket has the batch, write ``parts`` and update all ledger rows in one transaction.
        ``parts`` is None for a batch that tasks have written.
        """

        def work(connection: Connection) -> None:
            advanced = [bucket.advance(connection, epoch, batch) for bucket in self._buckets]
            if not any(advanced):
                return
            if parts is None:
                raise SinkRefused(
                    f"the ledger of sink {self._key.sink} lacks batch {batch}, which was written; "
                    "check whether its database was restored to an older state"
                )
            if not all(advanced):
                raise SinkUnavailable(f"the query still writes batch {batch}; the node retries")
            write_rows(connection, self._target, parts)

        self._ledgers.transact(work, remaining)
