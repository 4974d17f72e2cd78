"""The sinks of an application file: each with the keys of its kind."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ha_engine.config.load import is_reference
from ha_engine.errors import ApplicationError
from ha_engine.plugins import sink_kind
from ha_engine.query.application import (
    OutputMode,
    PluginSinkSpec,
    PostgresSinkSpec,
    SinkSpec,
)
from ha_engine.query.file_words import Name, Section, found, keys_of, sentence

M = TypeVar("M", bound=BaseModel)

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")


def _table(value: str) -> str:
    if not _TABLE.fullmatch(value):
        raise ValueError(f"{value!r} is not a table; write table or schema.table")
    return value


class SinkSection(Section):
    """What each kind of sink has; the other keys are those of its kind."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: Name
    type: str


class _PostgresSink(Section):
    table: Annotated[str, AfterValidator(_table)]
    mode: Literal["insert", "upsert"] = "insert"
    key: list[Name] = Field(default_factory=list)
    auto_create: bool = False
    url: str | None = None


def sinks_of(where: str, raw: list[SinkSection], mode: OutputMode) -> tuple[SinkSpec, ...]:
    """Raises ApplicationError."""
    names = [sink.name for sink in raw]
    if len(set(names)) < len(names):
        raise ApplicationError(
            f"{where}.sinks: two sinks have the same name; the ledger tells them apart by it"
        )
    return tuple(_sink(f"{where}.sinks.{sink.name}", sink, mode) for sink in raw)


def _sink(where: str, raw: SinkSection, mode: OutputMode) -> SinkSpec:
    options = dict(raw.model_extra or {})
    if raw.type == "postgres":
        return _postgres_sink(where, raw.name, _fitting(where, _PostgresSink, options), mode)
    try:
        kind = sink_kind(raw.type)
    except ApplicationError as error:
        raise ApplicationError(f"{where}.type: {error}") from error
    _check_options(where, kind.Options, options)
    return PluginSinkSpec(raw.name, raw.type, kind.guarantee, MappingProxyType(options))


def _fitting(where: str, model: type[M], options: dict[str, Any]) -> M:
    try:
        return model.model_validate(options)
    except ValidationError as error:
        raise ApplicationError(
            f"{where}.{sentence(found(error), lambda _: keys_of(model))}"
        ) from None


def _check_options(where: str, model: type[BaseModel], options: dict[str, Any]) -> None:
    """What a reference stands for, only a node knows."""
    try:
        model.model_validate(options)
    except ValidationError as error:
        wrong = [one for one in found(error) if not is_reference(one["input"])]
        if wrong:
            raise _refusal(where, model, [_without_value(one) for one in wrong]) from None
    except Exception as error:  # a validator is other people's code
        told = f"{where}: its keys cannot be checked: {type(error).__name__}: {error}"
        raise ApplicationError(told) from error


def _without_value(one: ErrorDetails) -> ErrorDetails:
    """It may be a secret."""
    return cast(ErrorDetails, {key: part for key, part in one.items() if key != "input"})


def _refusal(where: str, model: type[BaseModel], wrong: list[ErrorDetails]) -> ApplicationError:
    return ApplicationError(f"{where}.{sentence(wrong, lambda _: keys_of(model))}")


def _postgres_sink(where: str, name: str, raw: _PostgresSink, mode: OutputMode) -> PostgresSinkSpec:
    if raw.mode == "upsert" and not raw.key:
        raise ApplicationError(f"{where}: mode upsert needs key, the columns that tell rows apart")
    if raw.mode == "insert" and raw.key:
        raise ApplicationError(
            f"{where}: key is only for mode upsert; remove it or set mode: upsert"
        )
    if raw.mode == "insert" and mode is OutputMode.COMPLETE:
        raise ApplicationError(
            f"{where}: output_mode complete repeats the whole result in each batch; "
            "use mode: upsert with key"
        )
    return PostgresSinkSpec(name, raw.table, raw.mode, tuple(raw.key), raw.auto_create, raw.url)
