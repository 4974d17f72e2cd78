"""A stream application as immutable values: its streams, queries and sinks.

The module ``application_file`` reads and checks the application file. The node process imports this
module, so this module does not import Spark. Digests show whether two nodes run the same
application (RULES.md#r23).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa

from ha_engine.aggregation import Aggregation
from ha_engine.query.columns import Column
from ha_engine.query.patterns.pattern import Pattern
from ha_engine.types import Shadow

SYSTEM_COLUMNS = MappingProxyType(
    {
        "_received_at": Column("_received_at", "timestamp", nullable=False),
        "_event_id": Column("_event_id", "string", nullable=False),
    }
)
"""Columns that the engine can add to a stream. Their values are equal on every node, unlike those
of a clock or uuid()."""


class OutputMode(Enum):
    """Spark's output modes."""

    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


class OnChange(Enum):
    """The treatment of a query's state when the query's digest changes."""

    KEEP = "keep"
    RESET = "reset"
    BACKFILL = "backfill"


class Standby(Enum):
    """The part of a passive node in a query: run it too, or wait until it is the active."""

    HOT = "hot"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class Watermark:
    """The watermark of a stream. ``delay`` is a Spark interval such as ``10 minutes``."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source from which the active pulls rows.

    ``options`` are as in the application file, where a value may refer to a secret. ``messages``
    are the keys that say how the engine decodes the source's messages, or None if the source
    decodes its rows itself. ``files`` are the digests of the files that ``messages`` names.
    """

    name: str
    type: str
    guarantee: str
    options: MappingProxyType[str, Any] = field(repr=False)
    messages: MappingProxyType[str, Any] | None = field(default=None, repr=False)
    files: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        options = [self.options] if self.messages is None else [self.options, self.messages]
        return _digest(self.type, self.name, *map(_options_text, options), *self.files)


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """An input stream. ``columns`` are the columns that producers send, without the system columns.

    ``log`` is the topic in which the stream's events stay, or None if they are in the journal.

    The stream's digest leaves out ``sources``, because a query's state does not depend on them. It
    has the topic of ``log``, because Spark cannot continue a checkpoint of another kind of source.
    """

    name: str
    columns: tuple[Column, ...]
    watermark: Watermark | None = None
    system_columns: tuple[str, ...] = ()
    sources: tuple[SourceSpec, ...] = ()
    log: SourceSpec | None = None

    @property
    def drops_duplicates(self) -> bool:
        """Whether queries drop the events that are in the log twice."""
        return self.log is not None and bool(self.log.options.get("deduplicate"))

    @property
    def is_in_both(self) -> bool:
        """Whether the stream has events in the journal besides those in the log."""
        return self.log is not None and bool(self.log.options.get("journal"))

    @property
    def pulled(self) -> tuple[SourceSpec, ...]:
        """The sources, and the log, which the active reads like a source."""
        return self.sources if self.log is None else (*self.sources, self.log)

    @property
    def arrow_schema(self) -> pa.Schema:
        """Schema of the record batches in the journal: the declared columns in their order."""
        return pa.schema([column.arrow for column in self.columns])

    @property
    def spark_schema(self) -> str:
        """Spark DDL of a query's input columns: the declared columns, then the system columns."""
        added = (SYSTEM_COLUMNS[name] for name in self.system_columns)
        return ", ".join(column.ddl for column in (*self.columns, *added))

    @property
    def digest(self) -> str:
        log = [] if self.log is None else [self.log.type, str(self.log.options["topic"])]
        log += ["deduplicate"] if self.drops_duplicates else []
        log += ["journal"] if self.is_in_both else []
        return _digest(self.spark_schema, _mark_text(self.watermark), *log)


def _mark_text(watermark: Watermark | None) -> str:
    return "" if watermark is None else f"{watermark.column} {watermark.delay}"


@dataclass(frozen=True, slots=True)
class PostgresSinkSpec:
    """A table that gets the batches of a query.

    If ``url`` is None, the table is in the node's own database. If ``buckets`` is a number, so many
    tasks of Spark write each batch (RULES.md#r34). Readers then see the buckets of a batch one
    after the other, or all at once if batches are ``atomic``.
    """

    name: str
    table: str
    mode: Literal["insert", "upsert"] = "insert"
    key: tuple[str, ...] = ()
    auto_create: bool = False
    url: str | None = field(default=None, repr=False)
    buckets: int | None = None
    atomic: bool = False

    @property
    def type(self) -> str:
        return "postgres"

    @property
    def guarantee(self) -> str:
        if self.atomic:
            return "exactly once: all rows of a batch and the ledger move in one transaction"
        if self.buckets is not None:
            return "exactly once: the rows and the ledger of each bucket move in one transaction"
        return "exactly once: the rows and the ledger move in one transaction"

    @property
    def shown(self) -> str:
        """Destination of the rows, for people."""
        return f"{self.mode} into {self.table}"

    @property
    def digest(self) -> str:
        buckets = [] if self.buckets is None else [str(self.buckets)]
        atomic = ["atomic"] if self.atomic else []
        auto_create = str(self.auto_create)
        return _digest(
            "postgres", self.name, self.table, self.mode, *self.key, auto_create, *buckets, *atomic
        )


@dataclass(frozen=True, slots=True)
class AggregationSinkSpec:
    """Tables to which the rows of a query are added. ``url`` is as in PostgresSinkSpec."""

    aggregation: Aggregation
    url: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.aggregation.name

    @property
    def type(self) -> str:
        return "aggregation"

    @property
    def buckets(self) -> None:
        """Only the node adds the rows."""
        return None

    @property
    def guarantee(self) -> str:
        return "exactly once: all tables and the ledger move in one transaction"

    @property
    def shown(self) -> str:
        """Destination of the rows, for people."""
        return ", ".join(map(self.aggregation.table_of, self.aggregation.per))

    @property
    def digest(self) -> str:
        one = self.aggregation
        values = [f"{value.name} {value.function} {value.source}" for value in one.values]
        keep = sorted(f"keep {name} {seconds}" for name, seconds in one.keep.items())
        by, per = json.dumps(one.by), json.dumps(one.per)
        words = (one.name, one.table, one.at, by, per, one.time_zone, *values, *keep)
        return _digest("aggregation", *words)


@dataclass(frozen=True, slots=True)
class PluginSinkSpec:
    """A sink of a plug-in.

    ``options`` are as in the application file, where a value may refer to a secret. ``messages``
    are the keys that say how the engine writes messages, or None if the sink writes rows.
    ``files`` are the digests of the files that ``messages`` names. ``buckets`` is as in
    PostgresSinkSpec.
    """

    name: str
    type: str
    guarantee: str
    options: MappingProxyType[str, Any] = field(repr=False)
    messages: MappingProxyType[str, Any] | None = field(default=None, repr=False)
    files: tuple[str, ...] = ()
    buckets: int | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that are the key of a message."""
        columns = {} if self.messages is None else self.messages.get("columns", {})
        return tuple(column for column, attribute in columns.items() if attribute == "key")

    @property
    def shown(self) -> str:
        return self.type

    @property
    def digest(self) -> str:
        options = [self.options] if self.messages is None else [self.options, self.messages]
        buckets = [] if self.buckets is None else [str(self.buckets)]
        texts = map(_options_text, options)
        return _digest(self.type, self.name, *texts, *self.files, *buckets)


def _options_text(options: Any) -> str:
    return json.dumps(_named(options), sort_keys=True, default=str)


def _named(options: Any) -> Any:
    """Turn the keys of ``options`` into texts, since YAML allows keys that cannot be sorted."""
    match options:
        case Mapping():
            return {str(key): _named(value) for key, value in options.items()}
        case list():
            return [_named(value) for value in options]
        case _:
            return options


SinkSpec = PostgresSinkSpec | AggregationSinkSpec | PluginSinkSpec


@dataclass(frozen=True, slots=True)
class SqlText:
    """A query in Spark SQL.

    ``for_spark`` is the text for Spark, with a view in place of each MATCH_RECOGNIZE clause, and
    ``patterns`` has the patterns of these views.
    """

    text: str
    for_spark: str
    patterns: MappingProxyType[str, Pattern] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A query as a Python function, whose argument maps names of streams to DataFrames.

    ``reference`` is ``module:function``, and ``source`` is the module's file.
    """

    reference: str
    source: Path
    source_digest: str

    @property
    def module(self) -> str:
        return self.reference.partition(":")[0]

    @property
    def function(self) -> str:
        return self.reference.partition(":")[2]


QueryText = SqlText | PythonFunction | Pattern


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """One streaming query.

    ``digest`` changes with everything that changes the query's state or output.

    ``streams`` are the streams that the query reads; for SQL, the streams that the text names. If
    ``deterministic`` is False, the nodes do not compare the digests of the query's batches. If
    ``read_tasks`` is a number, so many tasks read each batch, and otherwise its size decides. The
    state begins with ``state_partitions`` partitions, or with those of the config if that is None.
    """

    name: str
    text: QueryText
    streams: tuple[str, ...]
    digest: str
    output_mode: OutputMode = OutputMode.APPEND
    on_change: OnChange | None = None
    deterministic: bool = True
    standby: Standby = Standby.HOT
    read_tasks: int | None = None
    state_partitions: int | None = None
    sinks: tuple[SinkSpec, ...] = ()

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns of the query."""
        match self.text:
            case Pattern() as pattern:
                return (pattern,)
            case SqlText(patterns=patterns):
                return tuple(patterns.values())
            case PythonFunction():
                return ()

    @property
    def tables(self) -> frozenset[str]:
        """The streams that a pattern of the query reads as tables."""
        return frozenset(name for pattern in self.patterns for name in pattern.tables)

    @property
    def keys_max(self) -> int | None:
        """The most keys that the state of the patterns may have, or None without a pattern."""
        return sum(pattern.keys_max for pattern in self.patterns) or None


@dataclass(frozen=True, slots=True)
class StreamApplication:
    """All streams and queries that a node runs.

    The mappings are read-only and keep the order of the application file ``path``. ``archive``
    names the deployment that has the file, as ``types.Deployed.runs`` does, or is None. If the node
    runs several applications, this is their union, ``parts`` has each, and ``path`` is the
    directory of all. ``shadow`` is the shadow that runs beside one of the queries, or None.
    """

    name: str
    streams: MappingProxyType[str, StreamSpec]
    queries: MappingProxyType[str, QuerySpec]
    path: Path
    archive: str | None = None
    parts: tuple[StreamApplication, ...] = ()
    shadow: RunningShadow | None = None

    @property
    def applications(self) -> tuple[StreamApplication, ...]:
        """The applications of which this is the union, or this one."""
        return self.parts or (self,)

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directory of each application file, from which Python imports its modules."""
        return tuple(one.path.parent for one in self.applications)

    def directory_of(self, one: StreamSpec | QuerySpec) -> Path:
        """The directory of the application file with this stream or query, from which paths in it
        are relative."""
        of = attrgetter("streams" if isinstance(one, StreamSpec) else "queries")
        return next(part.path.parent for part in self.applications if one.name in of(part))

    @property
    def has_functions(self) -> bool:
        """Whether a query is a Python function."""
        return any(isinstance(query.text, PythonFunction) for query in self.queries.values())

    @property
    def has_patterns(self) -> bool:
        return any(query.patterns for query in self.queries.values())

    @property
    def has_several_watermarks(self) -> bool:
        """Whether a query reads more than one stream with a watermark in the file."""
        return any(
            sum(self.streams[name].watermark is not None for name in query.streams) > 1
            for query in self.queries.values()
        )

    @property
    def digest(self) -> str:
        """The digest of all streams, sources, queries and sinks.

        The digest does not depend on the URL of a database or on the layout of the file.
        """
        streams = [f"{s.name} {s.digest}" for s in self.streams.values()]
        queries = [
            f"{q.name} {q.digest} {q.deterministic} " + " ".join(s.digest for s in q.sinks)
            for q in self.queries.values()
        ]
        queries += [f"{q.name} warm" for q in self.queries.values() if q.standby is Standby.WARM]
        queries += [
            f"{q.name} {q.state_partitions} state partitions"
            for q in self.queries.values()
            if q.state_partitions is not None
        ]
        pulled = [f"{s.name} {one.digest}" for s in self.streams.values() for one in s.pulled]
        return _digest(self.name, *sorted(streams), *sorted(queries), *sorted(pulled))


@dataclass(frozen=True, slots=True)
class RunningShadow:
    """The shadow of a query, and the application from which it comes (RULES.md#r38)."""

    record: Shadow
    application: StreamApplication

    @property
    def spec(self) -> QuerySpec:
        """The changed query."""
        return self.application.queries[self.record.query]


def query_digest(
    text: QueryText,
    mode: OutputMode,
    streams: tuple[StreamSpec, ...],
    read_tasks: int | None = None,
) -> str:
    match text:
        case SqlText(text=sql):
            words = ["sql", sql.strip()]
        case PythonFunction(reference, _, source_digest):
            words = ["function", reference, source_digest]
        case Pattern():
            words = ["pattern", text.definition]
    read = sorted(f"{s.name} {s.digest}" for s in streams)
    tasks = [] if read_tasks is None else [f"read_tasks {read_tasks}"]  # which sums depend on
    return _digest(*words, mode.value, *read, *tasks)


def source_digest(source: bytes) -> str:
    """The digest of a file of the application, such as a Python module."""
    return hashlib.blake2b(source, digest_size=16).hexdigest()


def _digest(*words: str) -> str:
    return hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()


def load_application(path: Path | str) -> StreamApplication:
    """Read and check an application file, or a directory with one or several applications.

    Raises ApplicationError, which names the faulty place and what to do.
    """
    from ha_engine.query.application_file import read_application
    from ha_engine.query.composition import read_applications

    path = Path(path)
    return read_applications(path) if path.is_dir() else read_application(path)
