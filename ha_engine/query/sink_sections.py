"""Read the sinks of an application file, each with the keys of its type."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from ha_engine.errors import ApplicationError
from ha_engine.plugins import may_have_buckets, sink_kind
from ha_engine.query.aggregation_section import AggregationSection, aggregation_of
from ha_engine.query.application import (
    AggregationSinkSpec,
    OutputMode,
    PluginSinkSpec,
    PostgresSinkSpec,
    SinkSpec,
)
from ha_engine.query.file_words import Name, Section, found, keys_of, sentence
from ha_engine.query.plugin_sections import PluginSection, read_section

M = TypeVar("M", bound=BaseModel)

BUCKETS_MAX = 1024
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")


def _table(value: str) -> str:
    if not _TABLE.fullmatch(value):
        raise ValueError(f"{value!r} is not a table; write table or schema.table")
    return value


Buckets = Annotated[int, Field(ge=1, le=BUCKETS_MAX)]


class BucketsSection(Section):
    """The keys by which Spark's tasks write the sink, each bucket or all of a batch at once."""

    buckets: Buckets | None = None
    atomic: Literal["batch"] | None = None


class PostgresSinkSection(BucketsSection):
    table: Annotated[str, AfterValidator(_table)]
    mode: Literal["insert", "upsert"] = "insert"
    key: list[Name] = Field(default_factory=list)
    auto_create: bool = False
    url: str | None = None


def sinks_of(
    where: str,
    raw: list[PluginSection],
    mode: OutputMode,
    base: Path,
    *,
    runs_once: bool,
) -> tuple[SinkSpec, ...]:
    """Read the sinks in a query's section. A relative path begins at the directory ``base``.
    ``runs_once`` is True if only the active runs the query, and each run of a batch makes the same
    rows. Raises ApplicationError."""
    names = [sink.name for sink in raw]
    if len(set(names)) < len(names):
        raise ApplicationError(
            f"{where}.sinks: two sinks have the same name; rename one, since the ledger "
            "identifies a sink by name"
        )
    sinks = tuple(_sink(f"{where}.sinks.{sink.name}", sink, mode, base) for sink in raw)
    for sink in sinks:
        if sink.buckets is not None:
            _require_buckets_fit(f"{where}.sinks.{sink.name}.buckets", sinks, runs_once=runs_once)
    return sinks


def _require_buckets_fit(where: str, sinks: tuple[SinkSpec, ...], *, runs_once: bool) -> None:
    if not runs_once:
        raise ApplicationError(
            f"{where}: buckets need standby: warm, so that only one node writes them, and a "
            "deterministic query, so that a batch can be continued; set standby: warm and remove "
            "deterministic: false, or remove buckets"
        )
    if len(sinks) > 1:
        raise ApplicationError(
            f"{where}: a query whose sink has buckets has no other sink, since its rows do not "
            "pass the node; move the other sinks to a second query, or remove buckets"
        )


def _sink(where: str, raw: PluginSection, mode: OutputMode, base: Path) -> SinkSpec:
    if raw.type == "postgres":
        options = raw.model_extra or {}
        return _postgres_sink(where, raw.name, _fitting(where, PostgresSinkSection, options), mode)
    if raw.type == "aggregation":
        section = _fitting(where, AggregationSection, dict(raw.model_extra or {}))
        return _aggregation_sink(where, raw.name, section, mode)
    return _plugin_sink(where, raw, base)


def _aggregation_sink(
    where: str, name: str, raw: AggregationSection, mode: OutputMode
) -> AggregationSinkSpec:
    if mode is not OutputMode.APPEND:
        raise ApplicationError(
            f"{where}: output_mode {mode.value} yields a group again when it changes, and the "
            "aggregation would add it twice; use append"
        )
    return AggregationSinkSpec(aggregation_of(where, name, raw), raw.url)


def _plugin_sink(where: str, raw: PluginSection, base: Path) -> PluginSinkSpec:
    options = dict(raw.model_extra or {})
    given = {key: options.pop(key) for key in BucketsSection.model_fields if key in options}
    without = PluginSection(name=raw.name, type=raw.type, **options)
    read = read_section(where, without, sink_kind, base)
    section = _fitting(where, BucketsSection, given)
    if section.atomic:
        raise ApplicationError(
            f"{where}.atomic: only a sink of type postgres has atomic batches of several tasks; "
            "remove atomic"
        )
    buckets = section.buckets
    if buckets is not None and not may_have_buckets(sink_kind(raw.type)):
        raise ApplicationError(
            f"{where}.buckets: a sink of type {raw.type} has no buckets; remove buckets"
        )
    guarantee = read.guarantee if buckets is None else f"{read.guarantee}; each bucket by itself"
    return PluginSinkSpec(
        raw.name, raw.type, guarantee, read.options, read.messages, read.files, buckets
    )


def _fitting(where: str, model: type[M], options: dict[str, Any]) -> M:
    try:
        return model.model_validate(options)
    except ValidationError as error:
        raise ApplicationError(
            f"{where}.{sentence(found(error), lambda _: keys_of(model))}"
        ) from None


def _postgres_sink(
    where: str, name: str, raw: PostgresSinkSection, mode: OutputMode
) -> PostgresSinkSpec:
    if raw.mode == "upsert" and not raw.key:
        raise ApplicationError(f"{where}: mode upsert needs key, the columns that identify a row")
    if raw.mode == "insert" and raw.key:
        raise ApplicationError(
            f"{where}: key is only for mode upsert; remove it or set mode: upsert"
        )
    if raw.atomic and raw.buckets is None:
        raise ApplicationError(
            f"{where}.atomic: atomic is for a sink with buckets, since any other sink writes a "
            "batch at once; set buckets, or remove atomic"
        )
    if raw.mode == "insert" and mode is OutputMode.COMPLETE:
        raise ApplicationError(
            f"{where}: output_mode complete repeats the whole result in each batch; "
            "use mode: upsert with key"
        )
    return PostgresSinkSpec(
        name,
        raw.table,
        raw.mode,
        tuple(raw.key),
        raw.auto_create,
        raw.url,
        raw.buckets,
        raw.atomic is not None,
    )
