"""Check a sink's table, claim its ledger row, and publish batches together with the ledger row."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from sqlalchemy import Connection, Engine

from ha_engine.errors import SinkUnavailable
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.ledger_store import LedgerStore, Remaining
from ha_engine.postgres.sink_table import Target, prepare
from ha_engine.postgres.table_rows import CsvRows, write_rows


class SinkTable:
    """The table of a sink, and the ledger beside it.

    ``group_id`` is the group's UUID, for a caller that does not claim the ledger row itself.

    Every method raises SinkUnavailable when a retry may help or the outcome is unknown. Every
    method raises SinkRefused when an operator must act. A method raises Fenced when the ledger row
    has a higher epoch.
    """

    def __init__(
        self, engine: Engine, key: LedgerKey, target: Target, *, group_id: str = ""
    ) -> None:
        self._ledgers = LedgerStore(
            engine, key, target.schema, create_schema=target.auto_create, group_id=group_id
        )
        self._target = target

    def prepare(self, schema: pa.Schema, remaining: Remaining) -> None:
        """Create or check the table for rows with the schema ``schema``, and create the ledger."""

        def work(connection: Connection) -> None:
            self._ledgers.prepare(connection)
            prepare(connection, self._target, schema)

        self._ledgers.transact(work, remaining)

    def close(self) -> None:
        """Close the connection to the sink's database; a later call opens another connection."""
        self._ledgers.close()


class PostgresSinkStore(SinkTable):
    """The table and the ledger row of one sink, or of one bucket of a sink."""

    def claim(self, epoch: int, start_after: int, group_id: str, remaining: Remaining) -> int:
        """Raise the epoch of the ledger row, commit, and return the last published batch."""
        return self._ledgers.claim(epoch, start_after, group_id, remaining)

    def publish(
        self, batch: int, epoch: int, parts: Iterable[CsvRows], remaining: Remaining
    ) -> bool:
        """Write the rows of ``batch`` and update the ledger row in one transaction.

        Writes nothing and returns False if the ledger row has ``batch`` already.
        """

        def work(connection: Connection) -> bool:
            # Update the ledger row first, so that a fenced node fails before it sends a row.
            if not self._ledgers.ledger.advance(connection, epoch, batch):
                return False
            write_rows(connection, self._target, parts)
            if remaining() <= 0:
                raise SinkUnavailable(f"batch {batch} was not written in time; the node retries")
            return True

        return self._ledgers.transact(work, remaining)
