"""Read the sections of an application file that name a plug-in, for sources and for sinks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from ha_engine.config.load import is_reference
from ha_engine.errors import ApplicationError
from ha_engine.formats.messages import MessageOptions
from ha_engine.plugins import SinkPlugin, SourcePlugin, attributes_of, source_kind
from ha_engine.plugins.interface import HEADER, HEADERS
from ha_engine.query.application import SourceSpec
from ha_engine.query.file_words import Name, Section, found, keys_of, sentence

Kind = TypeVar("Kind", SinkPlugin, SourcePlugin)


class PluginSection(Section):
    """A section that names a plug-in. The other keys of the section are the plug-in's options."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: Name
    type: str


def sources_of(
    where: str, raw: list[PluginSection], columns: Sequence[str]
) -> tuple[SourceSpec, ...]:
    """Read the sources in the section of a stream with these columns. Raises ApplicationError."""
    names = [source.name.lower() for source in raw]
    if len(set(names)) < len(names):
        raise ApplicationError(
            f"{where}.sources: two sources have the same name; rename one, since the journal "
            "identifies a source by name"
        )
    return tuple(_source(f"{where}.sources.{source.name}", source, columns) for source in raw)


def _source(where: str, raw: PluginSection, columns: Sequence[str]) -> SourceSpec:
    kind, options = _kind(where, raw, source_kind), dict(raw.model_extra or {})
    attributes = attributes_of(kind)
    if attributes is None:
        _check_options(where, kind.Options, options)
        return SourceSpec(raw.name, raw.type, kind.guarantee, MappingProxyType(options))
    keys = MessageOptions.model_fields
    messages = {key: options.pop(key) for key in keys if key in options}
    _check_messages(where, messages, columns, attributes)
    _check_options(where, kind.Options, options, known_too=keys)
    return SourceSpec(
        raw.name, raw.type, kind.guarantee, MappingProxyType(options), MappingProxyType(messages)
    )


def _check_messages(
    where: str, written: dict[str, Any], columns: Sequence[str], attributes: Collection[str]
) -> None:
    """Check the keys that say how messages become rows. Raises ApplicationError."""
    _check_options(where, MessageOptions, written)
    for column, attribute in written.get("columns", {}).items():
        if column not in columns:
            raise ApplicationError(
                f"{where}.columns: the stream has no column {column!r}; it has {', '.join(columns)}"
            )
        if not (attribute in attributes or (HEADERS in attributes and _is_header(attribute))):
            known = ", ".join("header.NAME" if one == HEADERS else one for one in attributes)
            raise ApplicationError(
                f"{where}.columns.{column}: a message has no attribute {attribute!r}; known are "
                f"{known}"
            )


def _is_header(attribute: str) -> bool:
    return attribute.startswith(HEADER) and attribute != HEADER


def guarantee_and_options(
    where: str, raw: PluginSection, find: Callable[[str], type[Kind]]
) -> tuple[str, MappingProxyType[str, Any]]:
    """The guarantee and options of the plug-in that ``find`` returns. Raises ApplicationError."""
    kind, options = _kind(where, raw, find), dict(raw.model_extra or {})
    _check_options(where, kind.Options, options)
    return kind.guarantee, MappingProxyType(options)


def _kind(where: str, raw: PluginSection, find: Callable[[str], type[Kind]]) -> type[Kind]:
    try:
        return find(raw.type)
    except ApplicationError as error:
        raise ApplicationError(f"{where}.type: {error}") from error


def _check_options(
    where: str, model: type[BaseModel], options: dict[str, Any], known_too: Collection[str] = ()
) -> None:
    """Check all options except references such as to secrets, which only a node can resolve.

    ``known_too`` are keys that the section may have besides those of ``model``. Raises
    ApplicationError.
    """
    try:
        model.model_validate(options)
    except ValidationError as error:
        wrong = [one for one in found(error) if not is_reference(one["input"])]
        if wrong:
            known = [*keys_of(model), *known_too]
            told = sentence([_without_value(one) for one in wrong], lambda _: known)
            raise ApplicationError(f"{where}.{told}") from None
    except Exception as error:  # a validator is other people's code
        reason = f"{where}: its keys cannot be checked: {type(error).__name__}: {error}"
        raise ApplicationError(reason) from error


def _without_value(one: ErrorDetails) -> ErrorDetails:
    """Remove the value from the details of an error, since the value may be a secret."""
    return cast(ErrorDetails, {key: part for key, part in one.items() if key != "input"})
