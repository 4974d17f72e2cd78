"""One sink's work in its database: check, claim, and publish a batch with its ledger row.

Each method is one transaction on one connection that stays open between batches, and ends, one way
or the other, when ``remaining()`` seconds are over (R17). Not for turning Arrow into text: that is
``publish.sinks.copy_text``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any, TypeVar

import pyarrow as pa
from sqlalchemy import Connection, Engine

from ha_engine.errors import DatabaseUnreachable, SinkRefused, SinkUnavailable
from ha_engine.postgres.engine import first_line, place, sqlstate
from ha_engine.postgres.ledger import Ledger, LedgerKey
from ha_engine.postgres.session import Session
from ha_engine.postgres.sink_table import Target, prepare, prepare_ledger, quoted

T = TypeVar("T")

Remaining = Callable[[], float]

_STAGE = "ha_engine_stage"
_FOR_EVER = ("0A", "22", "23", "28", "3D", "3F", "42", "44", "P0")
"""SQLSTATE classes that a retry of the same rows meets again: value, constraint, right, schema."""


class PostgresSinkStore:
    """The table and the ledger row of one sink.

    Every method raises SinkUnavailable when a retry may help or the outcome is unknown, SinkRefused
    when an operator must act, and Fenced when the ledger carries a higher epoch.
    """

    def __init__(self, engine: Engine, key: LedgerKey, target: Target) -> None:
        self._session = Session(
            engine, name=f"sink {key.query}/{key.sink}", translation=_sink_error
        )
        self._ledger, self._target = Ledger(key, target.schema), target

    def prepare(self, schema: pa.Schema, remaining: Remaining) -> None:
        """Make or check the table for rows of ``schema``, and make the ledger."""

        def work(connection: Connection) -> None:
            prepare_ledger(connection, self._target, self._ledger.table)
            prepare(connection, self._target, schema)

        self._transact(work, remaining)

    def claim(self, epoch: int, start_after: int, group_id: str, remaining: Remaining) -> int:
        """Raise the ledger's epoch, commit, and answer the last batch that is published."""

        def work(connection: Connection) -> int:
            return self._ledger.claim(connection, epoch, start_after, group_id)

        def prepared(connection: Connection) -> None:
            prepare_ledger(connection, self._target, self._ledger.table)

        self._transact(prepared, remaining)
        return self._transact(work, remaining)

    def publish(
        self,
        batch: int,
        epoch: int,
        columns: tuple[str, ...],
        rows: int,
        csv: IO[bytes] | None,
        remaining: Remaining,
    ) -> None:
        """Write ``rows`` rows and move the ledger to ``batch``, or find it there already.

        ``csv`` are lines in PostgreSQL's CSV without a header; None for a batch without rows.
        """

        def work(connection: Connection) -> None:
            # The ledger first: who is fenced learns it before it sends a row.
            if not self._ledger.advance(connection, epoch, batch) or csv is None:
                return
            if self._target.mode == "insert":
                self._copy(connection, self._target.quoted, columns, rows, csv)
            else:
                self._upsert(connection, columns, rows, csv)
            if remaining() <= 0:
                raise SinkUnavailable(f"batch {batch} was not written in time; it is tried again")

        self._transact(work, remaining)

    def close(self) -> None:
        """End the connection; a later call opens another."""
        self._session.close()

    def shut(self) -> None:
        """Close for good."""
        self._session.shut()

    # ------------------------------------------------------------------------------------------

    def _transact(self, work: Callable[[Connection], T], remaining: Remaining) -> T:
        def transaction(connection: Connection) -> T:
            with connection.begin():
                return work(connection)

        try:
            return self._session.call(transaction, remaining)
        except DatabaseUnreachable as error:
            raise SinkUnavailable(str(error)) from error

    def _upsert(
        self, connection: Connection, columns: tuple[str, ...], rows: int, csv: IO[bytes]
    ) -> None:
        self._make_stage(connection, columns)
        self._copy(connection, f"pg_temp.{_STAGE}", columns, rows, csv)
        names = _listed(columns)
        _execute(
            connection,
            f"INSERT INTO {self._target.quoted} ({names}) SELECT {names} FROM pg_temp.{_STAGE}"
            f" ON CONFLICT ({_listed(self._target.key)}) DO {self._replacement(columns)}",
        )

    def _make_stage(self, connection: Connection, columns: tuple[str, ...]) -> None:
        if connection.info.get(_STAGE) == columns:
            return
        _execute(connection, f"DROP TABLE IF EXISTS pg_temp.{_STAGE}")
        _execute(
            connection,
            f"CREATE TEMPORARY TABLE {_STAGE} ON COMMIT DELETE ROWS AS"
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
            # Servers before 18 take a line of \. alone for the end, even inside a quoted value.
            if cursor.rowcount != rows:
                raise SinkRefused(
                    f"table {self._target.name} took {cursor.rowcount} of {rows} rows; "
                    r"does a text value contain a line that is only \. ?"
                )


def _listed(columns: tuple[str, ...]) -> str:
    return ", ".join(quoted(name) for name in columns)


def _execute(connection: Connection, statement: str) -> None:
    # Past SQLAlchemy and without parameters: names may contain a colon or a per cent sign.
    with _driver(connection).cursor() as cursor:
        cursor.execute(statement)


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _sink_error(engine: Engine, error: BaseException) -> Exception:
    where, state = place(engine), sqlstate(error)
    words = first_line(error) + _row_of(error)
    if state.startswith(_FOR_EVER):
        return SinkRefused(f"the sink database {where} refuses: {words}; mend it, then it goes on")
    return SinkUnavailable(
        f"the sink database {where} is not available: {words}; it is tried again"
    )


def _row_of(error: BaseException) -> str:
    """Where in the batch: the server tells the line of a COPY."""
    context = getattr(getattr(error, "diag", None), "context", None) or ""
    found = context.split(", line ", 1)
    return f" (row {found[1].split(':')[0].split(',')[0]} of the batch)" if len(found) == 2 else ""
