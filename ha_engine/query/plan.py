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
    """

    spec: QuerySpec
    frame: DataFrame
    schema: pa.Schema
    gets_sources: bool


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
        name: _stream_frame(spark, application, application.streams[name], options, logs)
        for name in spec.streams
    }
    frame = _frame(spark, spec, streams)
    _refuse_two_watermarks(spec.name, frame)
    if spec.deterministic:
        refuse_non_deterministic(spec.name, frame)
    refuse_unsupported(spec.name, frame, spec.output_mode)
    gets_sources = any(application.streams[name].is_in_both for name in spec.streams)
    return PlannedQuery(spec, frame, _arrow_schema(spec.name, frame), gets_sources)


def sources_of(frame: DataFrame) -> int:
    """The number of sources that Spark counts in ``frame``, which may have a stream twice."""
    nodes = (str(node.getClass().getSimpleName()) for node in plan_nodes(analyzed(frame)))
    return sum(name == "StreamingRelationV2" for name in nodes)


def _stream_frame(
    spark: SparkSession,
    application: StreamApplication,
    stream: StreamSpec,
    options: Options,
    logs: KafkaMarks | None,
) -> DataFrame:
    if stream.log is not None and logs is not None:
        logs.serve()
        frame = kafka_frame(spark, stream, application.directory, options(stream), logs.socket)
        if stream.is_in_both:
            frame = _journal_frame(spark, stream, options).union(frame)
    else:
        frame = _journal_frame(spark, stream, options)
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


def _frame(spark: SparkSession, spec: QuerySpec, streams: dict[str, DataFrame]) -> DataFrame:
    match spec.text:
        case SqlText(sql):
            frame = _sql_frame(spark, spec, sql, streams)
        case PythonFunction() as function:
            frame = _function_frame(spec.name, function, streams)
    if not frame.isStreaming:
        raise ApplicationError(f"query {spec.name} reads no stream; it must select from one")
    return frame


def _sql_frame(
    spark: SparkSession, spec: QuerySpec, sql: str, streams: dict[str, DataFrame]
) -> DataFrame:
    if spec.deterministic:
        refuse_moving_literals(spec.name, sql)
    for name, frame in streams.items():
        frame.createOrReplaceTempView(name)
    try:
        return spark.sql(sql)
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
    except Exception as error:
        raise ApplicationError(
            f"query {name}: {function.reference} raised {type(error).__name__}: {one_line(error)}"
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
