"""Read the sections of an application file that name a plug-in, for sources and for sinks."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from ha_engine.config.load import is_reference
from ha_engine.errors import ApplicationError
from ha_engine.plugins import SinkPlugin, SourcePlugin, source_kind
from ha_engine.query.application import SourceSpec
from ha_engine.query.file_words import Name, Section, found, keys_of, sentence

Kind = type[SinkPlugin] | type[SourcePlugin]


class PluginSection(Section):
    """A section that names a plug-in. The other keys of the section are the plug-in's options."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: Name
    type: str


def sources_of(where: str, raw: list[PluginSection]) -> tuple[SourceSpec, ...]:
    """Read the sources in a stream's section. Raises ApplicationError."""
    names = [source.name.lower() for source in raw]
    if len(set(names)) < len(names):
        raise ApplicationError(
            f"{where}.sources: two sources have the same name; rename one, since the journal "
            "identifies a source by name"
        )
    return tuple(_source(f"{where}.sources.{source.name}", source) for source in raw)


def _source(where: str, raw: PluginSection) -> SourceSpec:
    return SourceSpec(raw.name, raw.type, *guarantee_and_options(where, raw, source_kind))


def guarantee_and_options(
    where: str, raw: PluginSection, find: Callable[[str], Kind]
) -> tuple[str, MappingProxyType[str, Any]]:
    """The guarantee and options of the plug-in that ``find`` returns. Raises ApplicationError."""
    options = dict(raw.model_extra or {})
    try:
        kind = find(raw.type)
    except ApplicationError as error:
        raise ApplicationError(f"{where}.type: {error}") from error
    _check_options(where, kind.Options, options)
    return kind.guarantee, MappingProxyType(options)


def _check_options(where: str, model: type[BaseModel], options: dict[str, Any]) -> None:
    """Check all options except references such as to secrets, which only a node can resolve.

    Raises ApplicationError.
    """
    try:
        model.model_validate(options)
    except ValidationError as error:
        wrong = [one for one in found(error) if not is_reference(one["input"])]
        if wrong:
            raise _refusal(where, model, [_without_value(one) for one in wrong]) from None
    except Exception as error:  # a validator is other people's code
        reason = f"{where}: its keys cannot be checked: {type(error).__name__}: {error}"
        raise ApplicationError(reason) from error


def _without_value(one: ErrorDetails) -> ErrorDetails:
    """Remove the value from the details of an error, since the value may be a secret."""
    return cast(ErrorDetails, {key: part for key, part in one.items() if key != "input"})


def _refusal(where: str, model: type[BaseModel], wrong: list[ErrorDetails]) -> ApplicationError:
    return ApplicationError(f"{where}.{sentence(wrong, lambda _: keys_of(model))}")
