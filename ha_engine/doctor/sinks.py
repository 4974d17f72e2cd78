"""Check the rights of the sinks on their tables and ledgers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, text

from ha_engine.config import Config
from ha_engine.config.load import dereferenced
from ha_engine.doctor.database import PATIENCE_SECONDS, database_url
from ha_engine.doctor.finding import Finding, failed, ok, skipped
from ha_engine.errors import DatabaseUnreachable
from ha_engine.node.check import read_application
from ha_engine.node.database import database_engine
from ha_engine.plugins import keeps_ledger, sink_kind
from ha_engine.postgres.engine import translated
from ha_engine.postgres.ledger import TABLE as LEDGER
from ha_engine.postgres.sink_table import Target
from ha_engine.query.application import (
    AggregationSinkSpec,
    PluginSinkSpec,
    PostgresSinkSpec,
    SinkSpec,
)

_LEDGER_RIGHTS = ("SELECT", "INSERT", "UPDATE")
_TABLE_RIGHTS = {"insert": ("INSERT",), "upsert": ("SELECT", "INSERT", "UPDATE")}
_AGGREGATION_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


def writable(config: Config) -> Finding:
    """Whether the role of each sink may write the sink's table, and the ledger beside it."""
    application = read_application(config)
    sinks = [(query, sink) for query in application.queries.values() for sink in query.sinks]
    if not sinks:
        return skipped("the application has no sinks")
    problems = [
        f"sink {sink.name} of query {query.name} {problem}"
        for query, sink in sinks
        for problem in _problems(config, sink, application.directory_of(query))
    ]
    if problems:
        return failed(
            "; ".join(problems),
            "grant these rights to the role in the sink's url, or correct the url; a sink with "
            "auto_create makes its table",
        )
    names = ", ".join(sink.name for _, sink in sinks)
    return ok(f"these sinks may write their tables and ledgers: {names}")


def _problems(config: Config, sink: SinkSpec, base: Path) -> list[str]:
    if isinstance(sink, PluginSinkSpec) and keeps_ledger(sink_kind(sink.type)):
        return []
    try:
        url = _url(config, sink, base)
        engine = database_engine(config, url, PATIENCE_SECONDS)
        with translated(engine), engine.connect() as connection:
            schema = config.database.schema_name
            return [f"lacks {right}" for right in _lacking(connection, sink, schema)]
    except DatabaseUnreachable as error:
        return [f"cannot be checked: {str(error).partition('; ')[0]}"]


def _url(config: Config, sink: SinkSpec, base: Path) -> str:
    """The URL of the database of a sink or its ledger. Raises DatabaseUnreachable."""
    if isinstance(sink, PluginSinkSpec) or sink.url is None:
        return database_url(config)
    url = dereferenced(sink.url, base, os.environ)
    assert url is not None, "read_application refuses a reference to nothing"
    return url


def _lacking(connection: Connection, sink: SinkSpec, schema: str) -> Iterator[str]:
    """Yield what the role needs and lacks. ``schema`` has the ledgers of plug-ins."""
    match sink:
        case PostgresSinkSpec():
            target = Target(sink.table, sink.mode, sink.key, sink.auto_create)
            rights, where = _TABLE_RIGHTS[sink.mode], target.schema
            if sink.atomic:
                rights = tuple(dict.fromkeys(("SELECT", *rights)))
            yield from _on_table(connection, where, target.table, rights, target.auto_create)
            if sink.atomic and not connection.scalar(_MAY_CREATE, {"schema": where}):
                yield "the right CREATE in the schema of its table, for its staging tables"
        case AggregationSinkSpec(aggregation=aggregation):
            where = Target(aggregation.table).schema
            for granularity in aggregation.per:
                table = Target(aggregation.table_of(granularity)).table
                yield from _on_table(connection, where, table, _AGGREGATION_RIGHTS, creates=True)
        case PluginSinkSpec():
            where = schema
    yield from _on_table(connection, where, LEDGER, _LEDGER_RIGHTS, creates=True)


def _on_table(
    connection: Connection, schema: str | None, table: str, rights: tuple[str, ...], creates: bool
) -> Iterator[str]:
    """Yield what the role lacks to write ``table``. The connection's search path decides if
    ``schema`` is None."""
    name = table if schema is None else f"{schema}.{table}"
    found = connection.execute(_FIND, {"schema": schema, "table": table}).first()
    if found is not None:
        oid, space, usable = found
        missing = [r for r in rights if not connection.scalar(_MAY, {"oid": oid, "right": r})]
        if missing:
            yield f"{' and '.join(missing)} on {name}"
        if not usable:
            yield f"USAGE on the schema {space}"
    elif not creates:
        yield f"the table {name}"
    elif not connection.scalar(_MAY_CREATE, {"schema": schema}):
        yield f"the table {name}, and the right CREATE to make it"


# By its oid, since a name in a schema without USAGE would be an error.
_FIND = text(
    "SELECT c.oid, n.nspname, has_schema_privilege(n.oid, 'USAGE') FROM pg_class c"
    " JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relname = :table AND c.relkind IN ('r', 'p', 'v', 'f') AND n.nspname = ANY("
    "  CASE WHEN CAST(:schema AS text) IS NULL THEN current_schemas(false)"
    "  ELSE ARRAY[CAST(:schema AS name)] END)"
    " ORDER BY array_position(current_schemas(false), n.nspname) LIMIT 1"
)
_MAY = text("SELECT has_table_privilege(CAST(:oid AS oid), :right)")
# A schema that is missing is made too, if the application names it.
_MAY_CREATE = text(
    "SELECT coalesce((SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace"
    "  WHERE nspname = coalesce(CAST(:schema AS name), current_schema())),"
    " CAST(:schema AS text) IS NOT NULL"
    "  AND has_database_privilege(current_database(), 'CREATE'))"
)
