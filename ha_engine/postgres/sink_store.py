"""Check a sink's table, claim its ledger row, and publish batches together with the ledger row.

The module ``publish.sinks.copy_text`` converts Arrow data to the text that COPY reads.
"""

from __future__ import annotations

from typing import IO, Any

import pyarrow as pa
from sqlalchemy import Connection, Engine

from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.ledger_store import LedgerStore, Remaining
from ha_engine.postgres.sink_table import Target, prepare, quoted

_STAGE = "ha_engine_stage"


class PostgresSinkStore:
    """The table and the ledger row of one sink.

    Every method raises SinkUnavailable when a retry may help or the outcome is unknown. Every
    method raises SinkRefused when an operator must act. A method raises Fenced when the ledger row
    has a higher epoch.
    """

    def __init__(self, engine: Engine, key: LedgerKey, target: Target) -> None:
        self._ledgers = LedgerStore(engine, key, target.schema, create_schema=target.auto_create)
        self._target = target

    def prepare(self, schema: pa.Schema, remaining: Remaining) -> None:
        """Create or check the table for rows with the schema ``schema``, and create the ledger."""

        def work(connection: Connection) -> None:
            self._ledgers.prepare(connection)
            prepare(connection, self._target, schema)

        self._ledgers.transact(work, remaining)

    def claim(self, epoch: int, start_after: int, group_id: str, remaining: Remaining) -> int:
        """Raise the epoch of the ledger row, commit, and return the last published batch."""
        return self._ledgers.claim(epoch, start_after, group_id, remaining)

    def publish(
        self,
        batch: int,
        epoch: int,
        columns: tuple[str, ...],
        rows: int,
        csv: IO[bytes] | None,
        remaining: Remaining,
    ) -> None:
        """Write the rows of ``batch`` and update the ledger row in one transaction.

        Writes nothing if the ledger row has ``batch`` already. ``csv`` has ``rows`` rows in
        PostgreSQL's CSV format without a header. ``csv`` is None for a batch without rows.
        """

        def work(connection: Connection) -> None:
            # Update the ledger row first, so that a fenced node fails before it sends a row.
            advanced = self._ledgers.ledger.advance(connection, epoch, batch)
            if not advanced or csv is None:
                return
            if self._target.mode == "insert":
                self._copy(connection, self._target.quoted, columns, rows, csv)
            else:
                self._upsert(connection, columns, rows, csv)
            if remaining() <= 0:
                raise SinkUnavailable(f"batch {batch} was not written in time; the node retries")

        self._ledgers.transact(work, remaining)

    def close(self) -> None:
        """Close the connection to the sink's database; a later call opens another connection."""
        self._ledgers.close()

    # ------------------------------------------------------------------------------------------

    def _upsert(
        self, connection: Connection, columns: tuple[str, ...], rows: int, csv: IO[bytes]
    ) -> None:
        self._make_stage(connection, columns)
        self._copy(connection, f"pg_temp.{_STAGE}", columns, rows, csv)
        names = _listed(columns)
        _execute(
            connection,
            # quoted() has quoted the names of the table and its columns.
            f"INSERT INTO {self._target.quoted} ({names}) SELECT {names} FROM pg_temp.{_STAGE}"  # noqa: S608
            f" ON CONFLICT ({_listed(self._target.key)}) DO {self._replacement(columns)}",
        )

    def _make_stage(self, connection: Connection, columns: tuple[str, ...]) -> None:
        if connection.info.get(_STAGE) == columns:
            return
        _execute(connection, f"DROP TABLE IF EXISTS pg_temp.{_STAGE}")
        _execute(
            connection,
            f"CREATE TEMPORARY TABLE {_STAGE} ON COMMIT DELETE ROWS AS"  # noqa: S608 - as above
            f" SELECT {_listed(columns)} FROM {self._target.quoted} WITH NO DATA",
        )
        connection.info[_STAGE] = columns

    def _replacement(self, columns: tuple[str, ...]) -> str:
        others = [quoted(name) for name in columns if name not in self._target.key]
        if not others:
            return "NOTHING"
        return "UPDATE SET " + ", ".join(f"{name} = EXCLUDED.{name}" for name in others)

    def _copy(
        self, connection: Connection, into: str, columns: tuple[str, ...], rows: int, csv: IO[bytes]
    ) -> None:
        with _driver(connection).cursor() as cursor:
            statement = f"COPY {into} ({_listed(columns)}) FROM STDIN (FORMAT csv)"
            cursor.copy_expert(statement, csv, size=1 << 20)
            # PostgreSQL before 18 ends a COPY at a line that is only \. even inside a quoted value.
            if cursor.rowcount != rows:
                raise SinkRefused(
                    f"table {self._target.name} took {cursor.rowcount} of {rows} rows; "
                    r"does a text value contain a line that is only \. ?"
                )


def _listed(columns: tuple[str, ...]) -> str:
    return ", ".join(quoted(name) for name in columns)


def _execute(connection: Connection, statement: str) -> None:
    # Bypass SQLAlchemy, which would misread a colon or a per cent sign in a name.
    with _driver(connection).cursor() as cursor:
        cursor.execute(statement)


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection
