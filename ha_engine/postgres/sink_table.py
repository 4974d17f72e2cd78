"""Create the table that a query writes to, or check it against the query's output schema.

Each function runs in its caller's transaction, and raises SinkRefused if an operator must act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from sqlalchemy import Column, Connection, MetaData, Table, func, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateSchema

from ha_engine.errors import SinkRefused
from ha_engine.postgres.sink_types import column_type

_NAME_BYTES_MAX = 63
# With the driver's own paramstyle, SQLAlchemy would double a per cent sign in a name.
_PREPARER = postgresql.dialect(paramstyle="named").identifier_preparer  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Target:
    """The table into which a sink writes rows.

    The table's ``name`` may include a schema, as in ``reports.delays``.
    """

    name: str
    mode: Literal["insert", "upsert"] = "insert"
    key: tuple[str, ...] = ()
    auto_create: bool = False

    @property
    def schema(self) -> str | None:
        """The schema in the table's name, or None if the connection's search path decides."""
        head, dot, _ = self.name.partition(".")
        return head if dot else None

    @property
    def table(self) -> str:
        """The table's name without the schema."""
        head, dot, tail = self.name.partition(".")
        return tail if dot else head

    @property
    def quoted(self) -> str:
        """The table's name, quoted for SQL text."""
        parts = [part for part in (self.schema, self.table) if part is not None]
        return ".".join(quoted(part) for part in parts)


@dataclass(frozen=True, slots=True)
class _Existing:
    type: str
    must_be_given: bool
    writable: bool


def quoted(name: str) -> str:
    """The identifier ``name``, quoted for SQL text."""
    return _PREPARER.quote_identifier(name)


def create(connection: Connection, target: Target, schema: pa.Schema) -> None:
    """Create the table for rows with the schema ``schema``, unless the table exists."""
    make_schema(connection, target.schema)
    columns = [
        Column(field.name, column_type(field).created, primary_key=field.name in target.key)
        for field in schema
    ]
    table = Table(target.table, MetaData(), *columns, schema=target.schema)
    for column in table.primary_key:
        column.autoincrement = False
    table.create(connection, checkfirst=True)


Create = Callable[[Connection, Target, pa.Schema], None]


def prepare(
    connection: Connection, target: Target, schema: pa.Schema, create: Create = create
) -> None:
    """Create the table if ``auto_create`` is set, then check that the table fits ``schema``."""
    _check_names(target, schema)
    _lock(connection, f"sink {target.name}")
    if target.auto_create:
        create(connection, target, schema)
    _check_columns(target, schema, _columns_of(connection, target))
    if target.mode == "upsert":
        _check_key(connection, target)


def prepare_ledger(connection: Connection, ledger: Table, *, create_schema: bool) -> None:
    """Create the ledger's table, which does not depend on the schema of the sink's rows."""
    _lock(connection, "ledger")
    if create_schema:
        make_schema(connection, ledger.schema)
    ledger.create(connection, checkfirst=True)


def _lock(connection: Connection, what: str) -> None:
    # A lock is needed, because one of two concurrent CREATE TABLE IF NOT EXISTS fails.
    key = func.hashtextextended(f"ha-engine {what}", 0)
    connection.execute(select(func.pg_advisory_xact_lock(key)))


def _check_names(target: Target, schema: pa.Schema) -> None:
    for name in (target.table, *schema.names):
        if not name or len(name.encode()) > _NAME_BYTES_MAX or "\0" in name:
            raise SinkRefused(
                f"{name!r} is not a PostgreSQL name (1 to {_NAME_BYTES_MAX} bytes); "
                "give the column an alias, or rename the table"
            )
    if len(set(schema.names)) != len(schema.names):
        raise SinkRefused(
            f"two output columns for table {target.name} have the same name; give them aliases"
        )
    for name in target.key:
        if name not in schema.names:
            raise SinkRefused(
                f"key column {name} of table {target.name} is not in the query's output "
                f"({', '.join(schema.names)}); select it, or name another key"
            )


def make_schema(connection: Connection, schema: str | None) -> None:
    """Create the schema, unless it exists or the connection's search path decides."""
    if (
        schema is not None
        and connection.execute(select(func.to_regnamespace(quoted(schema)).is_(None))).scalar_one()
    ):
        connection.execute(CreateSchema(schema, if_not_exists=True))


_COLUMNS = text("""
    SELECT attname, format_type(atttypid, NULL) AS type,
           attnotnull AND NOT atthasdef AND attidentity = '' AS must_be_given,
           attgenerated = '' AND attidentity <> 'a' AS writable
    FROM pg_attribute
    WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped
""")

# The indexes that ON CONFLICT can use: unique, valid, not partial, not deferrable, on columns.
_UNIQUE_KEYS = text("""
    SELECT array_agg(a.attname::text) AS columns
    FROM pg_index i
    CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
    LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = to_regclass(:name) AND k.place <= i.indnkeyatts
      AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
    GROUP BY i.indexrelid
""")


def _columns_of(connection: Connection, target: Target) -> dict[str, _Existing]:
    rows: Iterable[Any] = connection.execute(_COLUMNS, {"name": target.quoted})
    return {row.attname: _Existing(row.type, row.must_be_given, row.writable) for row in rows}


def _check_columns(target: Target, schema: pa.Schema, existing: dict[str, _Existing]) -> None:
    if not existing:
        raise SinkRefused(
            f"table {target.name} does not exist; create it, or set auto_create: true"
        )
    for field in schema:
        _check_column(target, field, existing.get(field.name))
    for name, column in existing.items():
        if column.must_be_given and name not in schema.names:
            raise SinkRefused(
                f"column {name} of table {target.name} must not be null and has no default, "
                "but the query does not select it; select it, or give it a default"
            )


def _check_column(target: Target, field: pa.Field, column: _Existing | None) -> None:
    wanted = column_type(field)
    if column is None:
        raise SinkRefused(
            f"table {target.name} has no column {field.name}, which the query selects; "
            "add it, or leave it out of the query"
        )
    if column.type not in wanted.accepted or not column.writable:
        raise SinkRefused(
            f"column {field.name} of table {target.name} is {column.type}"
            f"{'' if column.writable else ' and generated'}, but the query gives {field.type}; "
            f"make it {' or '.join(sorted(wanted.accepted))}, or cast in the query"
        )


def _check_key(connection: Connection, target: Target) -> None:
    keys = connection.execute(_UNIQUE_KEYS, {"name": target.quoted}).scalars()
    if not any(set(columns) == set(target.key) for columns in keys):
        raise SinkRefused(
            f"table {target.name} has no unique index on ({', '.join(target.key)}), "
            "which upsert needs; create one, or make it the primary key"
        )
