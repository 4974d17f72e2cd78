"""Read the application file with pydantic, and convert it to a ``StreamApplication``.

The error for an unknown key names the nearest known key. The module ``plan`` finds the errors that
only Spark can find, such as bad SQL or an unknown column.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from ha_engine.errors import ApplicationError
from ha_engine.formats import strict_yaml
from ha_engine.query.aggregation_section import refuse_same_names
from ha_engine.query.application import (
    SYSTEM_COLUMNS,
    AggregationSinkSpec,
    OnChange,
    OutputMode,
    PythonFunction,
    QuerySpec,
    QueryText,
    SqlText,
    Standby,
    StreamApplication,
    StreamSpec,
    Watermark,
    query_digest,
    source_digest,
)
from ha_engine.query.columns import Column, parse_column
from ha_engine.query.file_words import Name, Section, found, keys_of, nearest, sentence
from ha_engine.query.patterns.match_recognize import patterns_in
from ha_engine.query.patterns.pattern import Pattern
from ha_engine.query.patterns.section import PatternSection, pattern_of
from ha_engine.query.plugin_sections import LogSection, PluginSection, log_of, sources_of
from ha_engine.query.sink_sections import sinks_of
from ha_engine.query.sql_words import names_in, watermarked_in
from ha_engine.types import STATE_PARTITIONS_MAX

_SHORT_DELAY = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DELAY = re.compile(r"\d+ (millisecond|second|minute|hour|day|week)s?")


def _delay(value: str) -> str:
    if short := _SHORT_DELAY.fullmatch(value):
        return f"{short[1]} {_UNITS[short[2]]}"
    if not _DELAY.fullmatch(value):
        raise ValueError(f"{value!r} is not a delay; write one such as '10 minutes' or '30s'")
    return value


class _Watermark(Section):
    column: str
    delay: Annotated[str, AfterValidator(_delay)]


class _Stream(Section):
    columns: dict[Name, str] = Field(alias="schema", min_length=1)
    watermark: _Watermark | None = None
    system_columns: list[Literal["_received_at", "_event_id"]] = Field(default_factory=list)
    sources: list[PluginSection] = Field(default_factory=list)
    log: LogSection | None = None


class _Query(Section):
    sql: str | None = None
    function: str | None = Field(None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    pattern: PatternSection | None = None
    streams: list[str] | None = None
    output_mode: Literal["append", "update", "complete"] = "append"
    on_change: Literal["keep", "reset", "backfill"] | None = None
    deterministic: bool = True
    standby: Literal["hot", "warm"] = "hot"
    read_tasks: int | None = Field(None, ge=1, le=1_000)
    state_partitions: int | None = Field(None, ge=1, le=STATE_PARTITIONS_MAX)
    sinks: list[PluginSection] = Field(default_factory=list)


class _Application(Section):
    name: Name
    streams: dict[Name, _Stream] = Field(min_length=1)
    queries: dict[Name, _Query] = Field(min_length=1)


def read_application(path: Path) -> StreamApplication:
    """Read and check the application file.

    Raises ApplicationError, whose one sentence names the file, the key and what to do.
    """
    try:
        parsed = _Application.model_validate(_read_yaml(path))
        _refuse_twins("stream", parsed.streams)
        _refuse_twins("query", parsed.queries)
        streams = {name: _stream(name, raw, path) for name, raw in parsed.streams.items()}
        queries = {name: _query(name, raw, streams, path) for name, raw in parsed.queries.items()}
        sinks = [sink for query in queries.values() for sink in query.sinks]
        refuse_same_names(s.aggregation for s in sinks if isinstance(s, AggregationSinkSpec))
    except ValidationError as error:
        raise ApplicationError(f"{path}: {sentence(found(error), _keys_at)}") from None
    except ApplicationError as error:
        raise ApplicationError(f"{path}: {error}") from None
    return StreamApplication(
        parsed.name, MappingProxyType(streams), MappingProxyType(queries), path.resolve()
    )


def _read_yaml(path: Path) -> object:
    try:
        return strict_yaml.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ApplicationError(f"cannot be read: {error.strerror}; check the path") from None
    except (strict_yaml.NotYaml, UnicodeDecodeError) as error:
        raise ApplicationError(f"is not YAML: {error}") from None


def _refuse_twins(what: str, names: Mapping[str, object]) -> None:
    """Refuse names that differ only in case, which Spark and some file systems treat as equal."""
    seen: dict[str, str] = {}
    for name in names:
        if other := seen.get(name.lower()):
            raise ApplicationError(
                f"{what} {name!r} differs from {other!r} only in case; rename one"
            )
        seen[name.lower()] = name


# -- streams ---------------------------------------------------------------------------------------


def _stream(name: str, raw: _Stream, path: Path) -> StreamSpec:
    columns = tuple(_column(name, column, text) for column, text in raw.columns.items())
    if len(set(raw.system_columns)) < len(raw.system_columns):
        raise ApplicationError(f"streams.{name}.system_columns names a column twice; remove one")
    watermark = _watermark(name, raw.watermark, columns, raw.system_columns)
    names = [column.name for column in columns]
    sources = sources_of(f"streams.{name}", raw.sources, names, path.resolve().parent)
    log = log_of(f"streams.{name}", raw.log, names) if raw.log else None
    if log and sources:
        raise ApplicationError(
            f"streams.{name}: a stream with a log of its own has no sources; remove one of the two"
        )
    stream = StreamSpec(name, columns, watermark, tuple(raw.system_columns), sources, log)
    if stream.drops_duplicates and watermark is None:
        raise ApplicationError(
            f"streams.{name}.log.deduplicate: the stream has no watermark, so Spark would remember "
            "every event for ever; give the stream a watermark"
        )
    return stream


def _column(stream: str, name: str, text: str) -> Column:
    if name in SYSTEM_COLUMNS:
        raise ApplicationError(
            f"streams.{stream}.schema: {name} is the engine's own column; list it in system_columns"
        )
    try:
        return parse_column(name, text)
    except ApplicationError as error:
        raise ApplicationError(f"streams.{stream}.schema.{name}: {error}") from None


def _watermark(
    stream: str, raw: _Watermark | None, columns: tuple[Column, ...], system: list[Any]
) -> Watermark | None:
    if raw is None:
        return None
    known = {c.name: c.sql for c in (*columns, *(SYSTEM_COLUMNS[name] for name in system))}
    if known.get(raw.column) != "timestamp":
        raise ApplicationError(
            f"streams.{stream}.watermark.column: {raw.column!r} is not a timestamp column of "
            "the stream"
        )
    return Watermark(raw.column, raw.delay)


# -- queries ---------------------------------------------------------------------------------------


def _query(name: str, raw: _Query, streams: Mapping[str, StreamSpec], path: Path) -> QuerySpec:
    where = f"queries.{name}"
    text = _text(where, raw, path, streams)
    read = _streams_read(where, raw, text, streams)
    mode, standby = OutputMode(raw.output_mode), Standby(raw.standby)
    if isinstance(text, Pattern) and mode is not OutputMode.APPEND:
        raise ApplicationError(
            f"{where}.output_mode: the matches of a pattern are final; use append"
        )
    return QuerySpec(
        name=name,
        text=text,
        streams=read,
        digest=query_digest(text, mode, tuple(streams[stream] for stream in read), raw.read_tasks),
        output_mode=mode,
        on_change=OnChange(raw.on_change) if raw.on_change else None,
        deterministic=raw.deterministic,
        standby=standby,
        read_tasks=raw.read_tasks,
        state_partitions=raw.state_partitions,
        sinks=sinks_of(
            where,
            raw.sinks,
            mode,
            path.resolve().parent,
            runs_once=standby is Standby.WARM and raw.deterministic,
        ),
    )


def _text(where: str, raw: _Query, path: Path, streams: Mapping[str, StreamSpec]) -> QueryText:
    match raw.sql, raw.function, raw.pattern:
        case str(sql), None, None:
            found = patterns_in(f"{where}.sql", sql, streams)
            return SqlText(sql, found.text, found.patterns)
        case None, None, PatternSection() as section:
            return pattern_of(f"{where}.pattern", section, streams)
        case None, str(reference), None:
            source = _source_of(where, reference.partition(":")[0], path.resolve().parent)
            return PythonFunction(reference, source, source_digest(source.read_bytes()))
        case _:
            raise ApplicationError(f"{where} needs one of sql, function and pattern, and no other")


def _source_of(where: str, module: str, directory: Path) -> Path:
    """Find a module's file beside the application file or on Python's path, without an import."""
    beside = directory.joinpath(*module.split(".")).with_suffix(".py")
    if beside.is_file():
        return beside
    try:
        found = importlib.util.find_spec(module)
    except ImportError:
        found = None
    if found is None or not found.origin or not Path(found.origin).is_file():
        raise ApplicationError(
            f"{where}.function: there is no module {module!r}; "
            f"put {beside.name} beside the application file"
        )
    return Path(found.origin)


def _streams_read(
    where: str, raw: _Query, text: QueryText, streams: Mapping[str, StreamSpec]
) -> tuple[str, ...]:
    match text:
        case SqlText(text=sql):
            read = tuple(name for name in streams if name.lower() in names_in(sql))
            _refuse_two_watermarks(where, sql, read, streams)
            if raw.streams is not None:
                raise ApplicationError(f"{where}.streams is only for a function; remove it")
        case Pattern():
            read = text.inputs
            if raw.streams is not None:
                raise ApplicationError(f"{where}.streams is only for a function; use pattern.from")
        case PythonFunction():
            read = tuple(raw.streams) if raw.streams is not None else tuple(streams)
    for name in read:
        if name not in streams:
            raise ApplicationError(
                f"{where}.streams: there is no stream {name!r}{nearest(name, streams)}"
            )
    if not read:
        raise ApplicationError(f"{where} reads no stream of this application: {', '.join(streams)}")
    return read


def _refuse_two_watermarks(
    where: str, sql: str, read: tuple[str, ...], streams: Mapping[str, StreamSpec]
) -> None:
    for name in read:
        if streams[name].watermark and watermarked_in(sql, name):
            raise ApplicationError(
                f"{where}: stream {name!r} has a watermark in the file "
                "and a WATERMARK clause in the SQL; keep one"
            )


def _keys_at(place: list[str]) -> list[str]:
    model: type[BaseModel]
    match place:
        case []:
            model = _Application
        case ["streams", _]:
            model = _Stream
        case ["streams", _, "watermark"]:
            model = _Watermark
        case ["queries", _, "pattern"]:
            model = PatternSection
        case _:
            model = _Query
    return keys_of(model)
