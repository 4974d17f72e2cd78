"""Read the sections of an application file that name a plug-in, for sources and for sinks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, cast

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from ha_engine.config.load import is_reference
from ha_engine.connectors.kafka.log import KafkaLog, KafkaLogOptions
from ha_engine.errors import ApplicationError
from ha_engine.formats.messages import (
    FILES,
    HEADER,
    HEADERS,
    VALUE,
    MessageOptions,
    type_of_attribute,
)
from ha_engine.plugins import SinkPlugin, SourcePlugin, attributes_of, source_kind
from ha_engine.plugins.options import options_of
from ha_engine.query.application import SourceSpec, source_digest
from ha_engine.query.file_words import Name, Section, found, keys_of, sentence
from ha_engine.types import LOG

Kind = TypeVar("Kind", SinkPlugin, SourcePlugin)


_NO_SECTION = ("dict_type", "model_type", "model_attributes_type", "union_tag_invalid")


class PluginSection(Section):
    """A section that names a plug-in. The other keys of the section are the plug-in's options."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: Name
    type: str


class LogSection(Section):
    """The section of a stream's log. The other keys of the section are the log's options."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    type: Literal["kafka"]


def log_of(where: str, raw: LogSection, columns: Sequence[str]) -> SourceSpec:
    """Read the log of a stream with these columns. Raises ApplicationError."""
    options = dict(raw.model_extra or {})
    _check_options(f"{where}.log", KafkaLog.Options, options)
    for column in options.get("partition_by") or ():
        if column not in columns:
            raise ApplicationError(
                f"{where}.log.partition_by: the stream has no column {column!r}; it has "
                f"{', '.join(columns)}"
            )
    return SourceSpec(LOG, raw.type, KafkaLog.guarantee, MappingProxyType(options))


def log_options(stream: str, log: SourceSpec, base: Path) -> KafkaLogOptions:
    """The options of a stream's log, with references resolved. Raises ConfigError."""
    options = options_of(f"stream {stream}: log", KafkaLogOptions, log.options, base)
    assert isinstance(options, KafkaLogOptions)
    return options


def sources_of(
    where: str, raw: list[PluginSection], columns: Sequence[str], base: Path
) -> tuple[SourceSpec, ...]:
    """Read the sources in the section of a stream with these columns. A relative path begins at the
    directory ``base``. Raises ApplicationError."""
    names = [*(source.name.lower() for source in raw), LOG]
    if len(set(names)) < len(names):
        raise ApplicationError(
            f"{where}.sources: two sources have the same name, or one is named {LOG}; rename one, "
            "since the journal identifies a source by name"
        )
    return tuple(_source(f"{where}.sources.{source.name}", source, columns, base) for source in raw)


def _source(where: str, raw: PluginSection, columns: Sequence[str], base: Path) -> SourceSpec:
    read = read_section(where, raw, source_kind, base)
    _require_columns(where, read, columns)
    return SourceSpec(raw.name, raw.type, *read)


class ReadSection(NamedTuple):
    """The guarantee of a kind, the plug-in's options, and the keys that say what a message is, or
    None if the kind has rows instead of messages. ``files`` are the digests of the files that these
    keys name."""

    guarantee: str
    options: MappingProxyType[str, Any]
    messages: MappingProxyType[str, Any] | None
    files: tuple[str, ...] = ()


def read_section(
    where: str, raw: PluginSection, find: Callable[[str], type[Kind]], base: Path
) -> ReadSection:
    """Read a section of the kind that ``find`` returns. Raises ApplicationError."""
    kind, options = _kind(where, raw, find), dict(raw.model_extra or {})
    attributes = attributes_of(kind)
    if attributes is None:
        _check_options(where, kind.Options, options)
        return ReadSection(kind.guarantee, MappingProxyType(options), None)
    keys = MessageOptions.model_fields
    messages = {key: options.pop(key) for key in keys if key in options}
    _check_options(where, MessageOptions, messages)
    _require_attributes(where, messages, attributes)
    _check_options(where, kind.Options, options, known_too=keys)
    files = _digests_of_files(messages["format"], base)
    return ReadSection(kind.guarantee, MappingProxyType(options), MappingProxyType(messages), files)


def _digests_of_files(form: Any, base: Path) -> tuple[str, ...]:
    """The digests of the files that say what the bytes of a message mean. A file that cannot be
    read has none, and stops a node when it opens the format."""
    if not isinstance(form, dict):
        return ()
    digests = []
    for key in FILES:
        if isinstance(named := form.get(key), str):
            with contextlib.suppress(OSError, ValueError):  # ValueError: a path with U+0000
                digests.append(source_digest((base / named).read_bytes()))
    return tuple(digests)


def _require_attributes(
    where: str, messages: dict[str, Any], attributes: Mapping[str, pa.DataType]
) -> None:
    """Require that a message has each attribute that ``columns`` names. Raises
    ApplicationError."""
    columns = _columns_of(messages)
    for column, attribute in columns.items():
        try:
            type_of_attribute(attributes, attribute)
        except KeyError:
            names = [f"{HEADER}NAME" if one == HEADERS else one for one in (*attributes, VALUE)]
            raise ApplicationError(
                f"{where}.columns.{column}: a message has no attribute {attribute!r}; known are "
                f"{', '.join(names)}"
            ) from None
    if _form_of(messages) == "raw" and VALUE not in columns.values():
        raise ApplicationError(
            f"{where}.columns: in the format raw, one column has the attribute {VALUE!r}; name it"
        )


def _require_columns(where: str, read: ReadSection, columns: Sequence[str]) -> None:
    """Require that a stream has the columns that its source names. Raises ApplicationError."""
    if read.messages is None:
        return
    mapped, form = _columns_of(read.messages), _form_of(read.messages)
    for column in mapped:
        if column not in columns:
            raise ApplicationError(
                f"{where}.columns: the stream has no column {column!r}; it has {', '.join(columns)}"
            )
    if form != "raw" and set(columns) <= set(mapped):
        raise ApplicationError(
            f"{where}.columns: every column has an attribute, so nothing is left of the value; "
            "use format: raw"
        )


def _columns_of(messages: Mapping[str, Any]) -> dict[str, str]:
    columns: dict[str, str] = messages.get("columns", {})
    return columns


def _form_of(messages: Mapping[str, Any]) -> str:
    form = messages["format"]
    return str(form["type"] if isinstance(form, dict) else form)


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
        # A whole section must be written out, so that the engine can read it without secrets.
        wrong = [
            one
            for one in found(error)
            if not is_reference(one["input"]) or one["type"] in _NO_SECTION
        ]
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
