"""Turn the application's queries into Spark data frames, and check them before any query runs.

The ``ha_journal`` source calls no node until a query starts, so ``app check`` plans exactly what a
node plans. ``runner`` runs the queries.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ha_engine.errors import ApplicationError
from ha_engine.query.application import (
    PythonFunction,
    QuerySpec,
    SqlText,
    StreamApplication,
    StreamSpec,
    source_digest,
)
from ha_engine.query.determinism import (
    analyzed,
    plan_nodes,
    refuse_moving_literals,
    refuse_non_deterministic,
    refuse_unsupported,
)
from ha_engine.query.failure import one_line
from ha_engine.query.kafka_stream import IDENTITY, kafka_frame, without_duplicates
from ha_engine.query.patterns.pattern import Pattern
from ha_engine.query.patterns.plan import EVENT_ID, pattern_frame
from ha_engine.query.source import FORMAT
from ha_engine.query.source_reader import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ha_engine.query.kafka_marks import KafkaMarks

Options = Callable[[StreamSpec], SourceOptions]
"""The options of a stream's source, which a node and ``app check`` set differently."""


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A checked query, which may start.

    ``schema`` is the Arrow schema of the query's batches. ``gets_sources`` says whether the query
    may have more sources than its checkpoint, since a stream is in the journal and in a topic.
    ``has_several_watermarks`` says whether more than one stream has a watermark.
    """

    spec: QuerySpec
    frame: DataFrame
    schema: pa.Schema
    gets_sources: bool
    has_several_watermarks: bool


def plan_query(
    spark: SparkSession,
    application: StreamApplication,
    spec: QuerySpec,
    options: Options,
    logs: KafkaMarks | None = None,
) -> PlannedQuery:
    """Plan and check one query.

    ``logs`` answers Spark's Kafka source. Without ``logs``, all streams are planned as if their
    events were in the journal, since a plan does not depend on where they are.

    Raises ApplicationError (bad SQL, unsupported mode, ...) or NonDeterministicQuery.
    """
    streams = {
        name: _stream_frame(
            spark,
            application,
            _stream_of(spec, application, name),
            options,
            logs,
            as_table=name in spec.tables,
        )
        for name in spec.streams
    }
    frame, expressions = _frame(spark, application, spec, streams)
    _refuse_two_watermarks(spec.name, frame)
    if spec.deterministic:
        for one in (frame, *expressions):
            refuse_non_deterministic(spec.name, one)
    refuse_unsupported(spec.name, frame, spec.output_mode)
    gets_sources = any(application.streams[name].is_in_both for name in spec.streams)
    schema = _arrow_schema(spec.name, frame)
    return PlannedQuery(spec, frame, schema, gets_sources, _watermarks(frame) > 1)


def sources_of(frame: DataFrame) -> int:
    """The number of sources that Spark counts in ``frame``, which may have a stream twice."""
    nodes = (str(node.getClass().getSimpleName()) for node in plan_nodes(analyzed(frame)))
    return sum(name == "StreamingRelationV2" for name in nodes)


def _stream_of(spec: QuerySpec, application: StreamApplication, name: str) -> StreamSpec:
    """The stream as the query reads it. A pattern needs the ids of events for their order."""
    stream = application.streams[name]
    if not any(name in one.inputs for one in spec.patterns) or EVENT_ID in stream.system_columns:
        return stream
    return replace(stream, system_columns=(*stream.system_columns, EVENT_ID))


def _stream_frame(
    spark: SparkSession,
    application: StreamApplication,
    stream: StreamSpec,
    options: Options,
    logs: KafkaMarks | None,
    *,
    as_table: bool,
) -> DataFrame:
    if stream.log is not None and logs is not None:
        logs.serve()
        directory = application.directory_of(stream)
        frame = kafka_frame(spark, stream, directory, options(stream), logs.socket)
        if stream.is_in_both:
            frame = _journal_frame(spark, stream, options).union(frame)
    else:
        frame = _journal_frame(spark, stream, options)
    if as_table:
        # A table that seldom changes must not hold the query's watermark back. Without a watermark,
        # Spark cannot drop duplicates.
        return frame
    if stream.watermark is not None:
        frame = frame.withWatermark(stream.watermark.column, stream.watermark.delay)
    return without_duplicates(frame) if stream.drops_duplicates else frame


def _journal_frame(spark: SparkSession, stream: StreamSpec, options: Options) -> DataFrame:
    """The frame of the stream's events in the journal, with the columns of ``kafka_frame``."""
    reader = spark.readStream.format(FORMAT).options(**options(stream).to_text())
    if not stream.drops_duplicates:
        return reader.schema(stream.spark_schema).load()
    names = [f"`{column.name}`" for column in stream.columns] + list(stream.system_columns)
    system = tuple(dict.fromkeys([*stream.system_columns, "_event_id"]))
    frame = reader.schema(replace(stream, system_columns=system).spark_schema).load()
    return frame.selectExpr(*names, f"_event_id AS {IDENTITY}")


def _frame(
    spark: SparkSession,
    application: StreamApplication,
    spec: QuerySpec,
    streams: dict[str, DataFrame],
) -> tuple[DataFrame, tuple[DataFrame, ...]]:
    """The frame of a query, and frames with expressions that its plan does not show."""
    expressions: tuple[DataFrame, ...] = ()
    match spec.text:
        case SqlText() as sql:
            frame, expressions = _sql_frame(spark, application, spec, sql, streams)
        case PythonFunction() as function:
            frame = _function_frame(spec.name, function, streams)
        case Pattern() as pattern:
            frame, expressions = _pattern_frame(spark, application, spec, pattern, streams)
    if not frame.isStreaming:
        raise ApplicationError(f"query {spec.name} reads no stream; it must select from one")
    return frame, expressions


def _pattern_frame(
    spark: SparkSession,
    application: StreamApplication,
    spec: QuerySpec,
    pattern: Pattern,
    streams: dict[str, DataFrame],
) -> tuple[DataFrame, tuple[DataFrame, ...]]:
    if spec.deterministic:
        for text in pattern.expressions:
            refuse_moving_literals(spec.name, text)
    watermarks = {name: application.streams[name].watermark for name in pattern.inputs}
    times = {name: one.column for name, one in watermarks.items() if one is not None}
    try:
        planned = pattern_frame(spark, pattern, streams, times)
    except ApplicationError as error:
        raise ApplicationError(f"query {spec.name}: {error}") from error
    return planned.frame, planned.checked


def _sql_frame(
    spark: SparkSession,
    application: StreamApplication,
    spec: QuerySpec,
    sql: SqlText,
    streams: dict[str, DataFrame],
) -> tuple[DataFrame, tuple[DataFrame, ...]]:
    if spec.deterministic:
        refuse_moving_literals(spec.name, sql.for_spark)
    views = dict(streams)
    expressions: list[DataFrame] = []
    for name, pattern in sql.patterns.items():
        views[name], checked = _pattern_frame(spark, application, spec, pattern, streams)
        expressions += checked
    for name, frame in views.items():
        if name in streams and EVENT_ID not in application.streams[name].system_columns:
            frame = frame.drop(EVENT_ID)  # which only the patterns need
        frame.createOrReplaceTempView(name)
    try:
        return spark.sql(sql.for_spark), tuple(expressions)
    except Exception as error:
        raise ApplicationError(f"query {spec.name}: {one_line(error)}") from error


def _function_frame(
    name: str, function: PythonFunction, streams: dict[str, DataFrame]
) -> DataFrame:
    from pyspark.sql import DataFrame

    try:
        frame = _load(function)(streams)
    except ApplicationError:
        raise
    # A module that exits would end the queries of all applications.
    except (Exception, SystemExit) as error:
        raise ApplicationError(
            f"query {name}: {function.reference} raised {one_line(error)}"
        ) from error
    if not isinstance(frame, DataFrame):
        raise ApplicationError(
            f"query {name}: {function.reference} returned {type(frame).__name__}, not a DataFrame"
        )
    return frame


def _load(function: PythonFunction) -> Any:
    """Load the function of a query from its file.

    Spark's workers get the function by value, because they cannot import its module.

    The function is compiled from the bytes that the query's digest covers, not from Python's cache
    of modules.
    """
    from pyspark import cloudpickle

    source = function.source.read_bytes()
    if source_digest(source) != function.source_digest:
        raise ApplicationError(
            f"{function.source} changed since the application was loaded; restart ha-engine run"
        )

    found = importlib.util.spec_from_file_location(function.module, function.source)
    if found is None:
        raise ImportError(f"{function.source} is not a Python module")
    module = importlib.util.module_from_spec(found)
    sys.modules[function.module] = module
    code = compile(source, str(function.source), "exec")
    exec(code, module.__dict__)  # noqa: S102 - the operator installs the application's code
    cloudpickle.register_pickle_by_value(module)
    return getattr(module, function.function)


def _refuse_two_watermarks(name: str, frame: DataFrame) -> None:
    for node in plan_nodes(analyzed(frame)):
        if _is_watermark(node) and any(map(_is_watermark, _single_line(node))):
            raise ApplicationError(
                f"query {name} sets a watermark on a stream that has one in the file; keep one"
            )


def _watermarks(frame: DataFrame) -> int:
    """The number of watermarks that Spark keeps for ``frame``, which may have one twice."""
    nodes = filter(_is_watermark, plan_nodes(analyzed(frame)))
    return len({str(node.nodeId()) for node in nodes})


def _is_watermark(node: Any) -> bool:
    return str(node.getClass().getSimpleName()) == "EventTimeWatermark"


def _single_line(node: Any) -> list[Any]:
    """The plan nodes below ``node``, as long as each plan node has only one child.

    The list ends before an aggregate or a deduplication.
    """
    below = []
    while node.children().size() == 1:
        node = node.children().apply(0)
        if str(node.getClass().getSimpleName()) in ("Aggregate", "Deduplicate"):
            break
        below.append(node)
    return below


def _arrow_schema(name: str, frame: DataFrame) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    names = [field.name.lower() for field in frame.schema.fields]
    if twins := sorted({column for column in names if names.count(column) > 1}):
        raise ApplicationError(
            f"query {name} yields the column {twins[0]!r} twice; give one of them another name"
        )
    try:
        return to_arrow_schema(frame.schema, timezone="UTC")
    except Exception as error:
        raise ApplicationError(
            f"query {name} yields a type that has no Arrow form; cast it ({one_line(error)})"
        ) from error
