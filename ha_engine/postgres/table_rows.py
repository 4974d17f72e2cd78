"""Write the rows of a batch into a sink's table, in the caller's transaction.

The module ``publish.sinks.copy_text`` converts Arrow data to the text that COPY reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, Any, Protocol

from sqlalchemy import Connection

from ha_engine.errors import SinkRefused
from ha_engine.postgres.sink_table import Target, quoted

_STAGE = "ha_engine_stage"


class CsvRows(Protocol):
    """Rows in PostgreSQL's CSV format without a header."""

    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def rows(self) -> int: ...
    @property
    def body(self) -> IO[bytes]: ...


def write_rows(connection: Connection, target: Target, parts: Iterable[CsvRows]) -> None:
    """Insert or upsert the rows of all parts, which have the same columns.

    No two rows of an upsert may have the same key. Only one part is in memory at a time.

    Raises SinkRefused.
    """
    if target.mode == "insert":
        for part in parts:
            copy_rows(connection, target.name, target.quoted, part)
    else:
        _upsert(connection, target, parts)


def _upsert(connection: Connection, target: Target, parts: Iterable[CsvRows]) -> None:
    columns: tuple[str, ...] = ()
    for part in parts:
        columns = part.columns
        _make_stage(connection, target, columns)
        copy_rows(connection, target.name, f"pg_temp.{_STAGE}", part)
    if columns:
        insert_from(connection, target, columns, f"pg_temp.{_STAGE}")


def insert_from(
    connection: Connection, target: Target, columns: Sequence[str], source: str
) -> None:
    """Insert or upsert ``columns`` of all rows of ``source``, which is SQL of a FROM clause."""
    names = listed(columns)
    conflict = ""
    if target.mode == "upsert":
        conflict = f" ON CONFLICT ({listed(target.key)}) DO {_replacement(target, columns)}"
    # quoted() has quoted the names of the table and its columns.
    statement = f"INSERT INTO {target.quoted} ({names}) SELECT {names} FROM {source}"  # noqa: S608
    execute(connection, statement + conflict)


def _make_stage(connection: Connection, target: Target, columns: tuple[str, ...]) -> None:
    if connection.info.get(_STAGE) == columns:
        return
    execute(connection, f"DROP TABLE IF EXISTS pg_temp.{_STAGE}")
    execute(
        connection,
        f"CREATE TEMPORARY TABLE {_STAGE} ON COMMIT DELETE ROWS AS"  # noqa: S608 - as above
        f" SELECT {listed(columns)} FROM {target.quoted} WITH NO DATA",
    )
    connection.info[_STAGE] = columns


def _replacement(target: Target, columns: Sequence[str]) -> str:
    others = [quoted(name) for name in columns if name not in target.key]
    if not others:
        return "NOTHING"
    return "UPDATE SET " + ", ".join(f"{name} = EXCLUDED.{name}" for name in others)


def copy_rows(connection: Connection, name: str, into: str, part: CsvRows) -> None:
    """Copy ``part`` into the table ``into``, which is SQL. Errors call the table ``name``.

    Raises SinkRefused.
    """
    with _driver(connection).cursor() as cursor:
        statement = f"COPY {into} ({listed(part.columns)}) FROM STDIN (FORMAT csv)"
        cursor.copy_expert(statement, part.body, size=1 << 20)
        # PostgreSQL before 18 ends a COPY at a line that is only \. even inside a quoted value.
        if cursor.rowcount != part.rows:
            raise SinkRefused(
                f"table {name} took {cursor.rowcount} of {part.rows} rows; "
                r"does a text value contain a line that is only \. ?"
            )


def listed(columns: Iterable[str]) -> str:
    """The names of columns, quoted for SQL text."""
    return ", ".join(quoted(name) for name in columns)


def execute(connection: Connection, statement: str) -> None:
    """Run SQL text that contains names of columns."""
    # Bypass SQLAlchemy, which would misread a colon or a per cent sign in a name.
    with _driver(connection).cursor() as cursor:
        cursor.execute(statement)


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection
