"""Add the rows of batches to the tables of an aggregation, one for each granularity.

Sums, counts and extremes of parts of the rows combine to those of all rows. So each batch is added
to what the tables have, in the transaction that moves the ledger row (RULES.md#i7). It does not
matter how late a row is, or where a batch ends. Only the keys of a batch's rows are read or
written.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from sqlalchemy import Column, Connection, Engine, MetaData, Numeric, Table, UniqueConstraint
from sqlalchemy.dialects import postgresql

from ha_engine.aggregation import START, Aggregation, StoredValue
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.ledger_store import LedgerStore, Remaining
from ha_engine.postgres.sink_table import Target, make_schema, prepare, quoted
from ha_engine.postgres.sink_types import column_type
from ha_engine.postgres.table_rows import CsvRows, copy_rows, execute, listed

STAGE = "ha_engine_rows"
_PURGED_MIN = 10_000
"""The number of old rows that a batch may delete besides twice its own number. So a batch deletes
old rows faster than new ones come, and never so many that its transaction takes too long."""
_SUM_OF_WHOLE = pa.decimal128(38, 0)
_MERGED = {
    "sum": "coalesce(a.{0} + EXCLUDED.{0}, a.{0}, EXCLUDED.{0})",
    "count": "a.{0} + EXCLUDED.{0}",
    "min": "least(a.{0}, EXCLUDED.{0})",
    "max": "greatest(a.{0}, EXCLUDED.{0})",
}


class AggregationStore:
    """The tables of an aggregation and the ledger row beside them; implements ``SinkStore`` of the
    ``postgres`` sink. Errors are as in ``SinkTable``."""

    def __init__(self, engine: Engine, key: LedgerKey, aggregation: Aggregation) -> None:
        self._aggregation = aggregation
        schema = Target(aggregation.table).schema
        self._ledgers = LedgerStore(engine, key, schema, create_schema=True)
        self._schema = pa.schema([])

    def prepare(self, schema: pa.Schema, remaining: Remaining) -> None:
        """Create or check the tables for rows with the schema ``schema``, and create the ledger."""
        stored = stored_schema(self._aggregation, schema)

        def work(connection: Connection) -> None:
            self._ledgers.prepare(connection)
            for granularity in self._aggregation.per:
                prepare(connection, target_of(self._aggregation, granularity), stored, _create)

        self._ledgers.transact(work, remaining)
        self._schema = schema

    def claim(self, epoch: int, start_after: int, group_id: str, remaining: Remaining) -> int:
        """Raise the epoch of the ledger row, commit, and return the last published batch."""
        return self._ledgers.claim(epoch, start_after, group_id, remaining)

    def publish(
        self, batch: int, epoch: int, parts: Iterable[CsvRows], remaining: Remaining
    ) -> bool:
        """Add the rows of ``batch`` and update the ledger row in one transaction.

        Writes nothing and returns False if the ledger row has ``batch`` already. The tables must be
        prepared, if there are parts.
        """

        def work(connection: Connection) -> bool:
            # Update the ledger row first, so that a fenced node fails before it sends a row.
            if not self._ledgers.ledger.advance(connection, epoch, batch):
                return False
            self._add(connection, parts)
            if remaining() <= 0:
                raise SinkUnavailable(f"batch {batch} was not written in time; the node retries")
            return True

        return self._ledgers.transact(work, remaining)

    def close(self) -> None:
        """Close the connection to the sink's database; a later call opens another connection."""
        self._ledgers.close()

    def _add(self, connection: Connection, parts: Iterable[CsvRows]) -> None:
        rows = 0
        for part in parts:
            self._make_stage(connection)
            copy_rows(connection, self._aggregation.table, f"pg_temp.{STAGE}", part)
            rows += part.rows
        if rows == 0:
            return
        for granularity in self._aggregation.per:
            execute(connection, _addition(self._aggregation, granularity, self._schema))
            if granularity in self._aggregation.keep:
                execute(connection, _purge(self._aggregation, granularity, rows))

    def _make_stage(self, connection: Connection) -> None:
        if connection.info.get(STAGE) == self._schema:
            return
        columns = ", ".join(_column_sql(field) for field in self._schema)
        execute(connection, f"DROP TABLE IF EXISTS pg_temp.{STAGE}")
        execute(connection, f"CREATE TEMPORARY TABLE {STAGE} ({columns}) ON COMMIT DELETE ROWS")
        connection.info[STAGE] = self._schema


def target_of(aggregation: Aggregation, granularity: str) -> Target:
    """The table of a granularity, whose key is the start of a period and the keys of the rows."""
    return Target(
        aggregation.table_of(granularity), "upsert", (START, *aggregation.by), auto_create=True
    )


def stored_schema(aggregation: Aggregation, schema: pa.Schema) -> pa.Schema:
    """The columns of each table, for rows with the schema ``schema``. Raises SinkRefused."""
    for column in aggregation.sources:
        if column not in schema.names:
            raise SinkRefused(
                f"the query of aggregation {aggregation.name} does not yield {column}; select it"
            )
    fields = [pa.field(START, pa.timestamp("us", "UTC"))]
    fields += [schema.field(column) for column in aggregation.by]
    fields += [pa.field(one.column, _stored_type(one, schema)) for one in aggregation.stored]
    return pa.schema(fields)


def _stored_type(value: StoredValue, schema: pa.Schema) -> pa.DataType:
    if value.function == "count":
        return pa.int64()
    kind = schema.field(value.source).type
    if value.function != "sum":
        return kind
    return pa.float64() if pa.types.is_floating(kind) else _SUM_OF_WHOLE


def _create(connection: Connection, target: Target, stored: pa.Schema) -> None:
    make_schema(connection, target.schema)
    columns = [
        # Without a precision, so that no sum is too large.
        Column(field.name, Numeric() if _is_sum(field) else column_type(field).created)
        for field in stored
    ]
    key = UniqueConstraint(*target.key, postgresql_nulls_not_distinct=True)
    table = Table(target.table, MetaData(), *columns, key, schema=target.schema)
    table.create(connection, checkfirst=True)


def _is_sum(field: pa.Field) -> bool:
    return bool(field.type == _SUM_OF_WHOLE)


def _column_sql(field: pa.Field) -> str:
    kind = column_type(field).created.compile(postgresql.dialect())  # type: ignore[no-untyped-call]
    return f"{quoted(field.name)} {kind}"


def _addition(aggregation: Aggregation, granularity: str, schema: pa.Schema) -> str:
    """The statement that adds the rows of the stage to the table of ``granularity``."""
    target, by, at = target_of(aggregation, granularity), aggregation.by, quoted(aggregation.at)
    columns = listed([*target.key, *(one.column for one in aggregation.stored)])
    start = f"date_trunc('{granularity}', {at}, '{aggregation.time_zone}')"
    values = [_computed(one, schema) for one in aggregation.stored]
    computed = ", ".join([start, *map(quoted, by), *values])
    merged = ", ".join(
        f"{quoted(one.column)} = {_MERGED[one.function].format(quoted(one.column))}"
        for one in aggregation.stored
    )
    rows = f"pg_temp.{STAGE} WHERE {at} IS NOT NULL"
    if granularity in aggregation.keep:
        # A row that is older than the oldest period would begin a period again that is purged.
        rows += f" AND {at} >= {_oldest(aggregation, granularity)}"
    groups = ", ".join(str(place + 1) for place in range(1 + len(by)))
    return (
        f"INSERT INTO {target.quoted} AS a ({columns}) SELECT {computed} FROM {rows}"  # noqa: S608
        f" GROUP BY {groups} ON CONFLICT ({listed(target.key)}) DO UPDATE SET {merged}"
    )


def _computed(value: StoredValue, schema: pa.Schema) -> str:
    if value.source is None:
        return "count(*)"
    source = quoted(value.source)
    if value.function == "sum" and pa.types.is_floating(schema.field(value.source).type):
        source = f"CAST({source} AS double precision)"
    return f"{value.function}({source})"


def _purge(aggregation: Aggregation, granularity: str, rows: int) -> str:
    table = target_of(aggregation, granularity).quoted
    limit = _PURGED_MIN + 2 * rows
    old = f"{quoted(START)} < {_oldest(aggregation, granularity)}"
    return (
        f"DELETE FROM {table} WHERE ctid = ANY(ARRAY("  # noqa: S608
        f"SELECT ctid FROM {table} WHERE {old} LIMIT {limit}))"
    )


def _oldest(aggregation: Aggregation, granularity: str) -> str:
    """The start of the oldest period that the table keeps, by the clock of the database. The clock
    of the events would delete everything after one event with a wrong year."""
    since = f"now() - interval '{aggregation.keep[granularity]} seconds'"
    return f"date_trunc('{granularity}', {since}, '{aggregation.time_zone}')"
