"""The report of ``ha-engine app check``, which plans each query and starts none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ha_engine.errors import ApplicationError
from ha_engine.query.aggregation_section import misfits
from ha_engine.query.application import (
    AggregationSinkSpec,
    PostgresSinkSpec,
    PythonFunction,
    QuerySpec,
    SinkSpec,
    Standby,
    StreamApplication,
    StreamSpec,
)
from ha_engine.query.determinism import uses_python
from ha_engine.query.parent_watchdog import ProcessId
from ha_engine.query.patterns.explain import drawn, in_words
from ha_engine.query.plan import PlannedQuery, plan_query
from ha_engine.query.source_reader import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BRIEF_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that only plans queries; a second compiler and more threads do not help it."""

OnPlanned = Callable[["QueryReport", float], None]
"""Called after each query, with the seconds that the planning of the query took."""

_PYTHON = (
    "a Python function cannot be checked for differences between nodes: "
    "the nodes compare the digests of its batches instead"
)
_UNCOMPARED = "deterministic is false, so the nodes do not compare the query's batches"
_WARM = (
    "standby is warm: only the active runs the query, and a takeover waits for its state from a "
    "snapshot, or on a cluster from the former active's checkpoint"
)
_NO_SINK = "no sink: the query's batches are computed and dropped"
_NEVER_CLOSES = "no watermark on {}: state that depends on it is kept for ever"


@dataclass(frozen=True, slots=True)
class SinkReport:
    """The report on one sink: its kind, its destination and its guarantee."""

    name: str
    type: str
    shown: str
    guarantee: str


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The report on one source: the stream that it feeds, its kind and its guarantee."""

    stream: str
    name: str
    type: str
    guarantee: str


@dataclass(frozen=True, slots=True)
class PatternReport:
    """A pattern in words, and its automaton with a line for each transition."""

    words: tuple[str, ...]
    automaton: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueryReport:
    """The report on one query.

    ``columns`` are pairs (name, Arrow type). ``error`` is None if the query can run.
    """

    name: str
    output_mode: str
    streams: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    sinks: tuple[SinkReport, ...]
    notes: tuple[str, ...]
    error: str | None = None
    patterns: tuple[PatternReport, ...] = ()


@dataclass(frozen=True, slots=True)
class ApplicationReport:
    """The reports on all queries and sources. Nodes compare the application's ``digest``."""

    application: str
    digest: str
    queries: tuple[QueryReport, ...]
    sources: tuple[SourceReport, ...] = ()

    @property
    def is_good(self) -> bool:
        return all(query.error is None for query in self.queries)

    def to_json(self) -> dict[str, Any]:
        return {"good": self.is_good, **asdict(self)}


def check_application(
    application: StreamApplication,
    spark: SparkSession,
    on_planned: OnPlanned = lambda report, seconds: None,
) -> ApplicationReport:
    """Plan every query as a node would.

    An error of a query is written to the report and not raised.
    """
    queries = []
    for spec in application.queries.values():
        began = time.monotonic()
        queries.append(_check(application, spec, spark))
        on_planned(queries[-1], time.monotonic() - began)
    sources = tuple(
        SourceReport(stream.name, one.name, one.type, one.guarantee)
        for stream in application.streams.values()
        for one in stream.pulled
    )
    return ApplicationReport(application.name, application.digest, tuple(queries), sources)


def _check(application: StreamApplication, spec: QuerySpec, spark: SparkSession) -> QueryReport:
    try:
        planned = plan_query(spark, application, spec, lambda stream: _options(spec, stream))
        _check_sinks(spec, planned.schema)
    except ApplicationError as error:
        return _report(spec, error=str(error))
    return _report(spec, planned.schema, _notes(application, planned))


def _options(spec: QuerySpec, stream: StreamSpec) -> SourceOptions:
    """Source options for planning only, with which no source starts."""
    me = ProcessId.of_this()
    return SourceOptions(
        "/nowhere", "check", spec.name, stream.name, stream.arrow_schema, me, lineage="check"
    )


def _check_sinks(spec: QuerySpec, schema: pa.Schema) -> None:
    for sink in spec.sinks:
        if isinstance(sink, AggregationSinkSpec):
            for problem in misfits(sink.aggregation, schema):
                raise ApplicationError(f"query {spec.name}: sink {sink.name}: {problem}")
        for column in sink.key if isinstance(sink, PostgresSinkSpec) else ():
            if column not in schema.names:
                raise ApplicationError(
                    f"query {spec.name}: sink {sink.name} has the key {column!r}, but the query "
                    f"yields {', '.join(schema.names)}; select it, or name another key"
                )


def _notes(application: StreamApplication, planned: PlannedQuery) -> tuple[str, ...]:
    spec = planned.spec
    open_ended = [name for name in spec.streams if application.streams[name].watermark is None]
    found = [
        _PYTHON if isinstance(spec.text, PythonFunction) or uses_python(planned.frame) else "",
        "" if spec.deterministic else _UNCOMPARED,
        _WARM if spec.standby is Standby.WARM else "",
        "" if spec.sinks else _NO_SINK,
        _NEVER_CLOSES.format(", ".join(open_ended)) if open_ended else "",
    ]
    return tuple(note for note in found if note)


def _report(
    spec: QuerySpec,
    schema: pa.Schema | None = None,
    notes: tuple[str, ...] = (),
    *,
    error: str | None = None,
) -> QueryReport:
    fields = () if schema is None else tuple((field.name, str(field.type)) for field in schema)
    sinks = tuple(_sink_report(sink) for sink in spec.sinks)
    mode = spec.output_mode.value
    patterns = tuple(PatternReport(in_words(one), drawn(one)) for one in spec.patterns)
    return QueryReport(spec.name, mode, spec.streams, fields, sinks, notes, error, patterns)


def _sink_report(sink: SinkSpec) -> SinkReport:
    return SinkReport(sink.name, sink.type, sink.shown, sink.guarantee)
