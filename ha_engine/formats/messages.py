"""The formats of the messages of a broker: the keys of an application file, and the readers.

A reader turns a message into rows of JSON, so that one decoder decides what an event is. The
formats ``arrow`` and ``raw`` have no reader, since their values become columns without JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ha_engine.errors import ConfigError
from ha_engine.formats.avro import AvroMessages, RegisteredAvroMessages
from ha_engine.formats.csv_rows import CsvColumn
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.protobuf import ProtobufMessages
from ha_engine.formats.registry import Registry, RegistryClient
from ha_engine.formats.text_messages import CsvMessages, JsonMessages, NdjsonMessages

VALUE = "value"
"""The attribute of each message that is its undecoded value."""
HEADERS, HEADER = "headers", "header."


def type_of_attribute(attributes: Mapping[str, pa.DataType], name: str) -> pa.DataType:
    """The Arrow type of an attribute, where ``attributes`` are those of a kind. The attribute
    ``headers`` of a kind stands for all names ``header.NAME``. Raises KeyError."""
    if name == VALUE:
        return pa.binary()
    if name.startswith(HEADER) and name != HEADER:
        return attributes[HEADERS]
    if name == HEADERS:
        raise KeyError(name)
    return attributes[name]


FILES = ("schema_file", "descriptor_file")
"""The keys of a format whose files say what the bytes of a message mean."""


class MessageReader(Protocol):
    """Turns messages into JSON rows."""

    def rows(self, message: bytes) -> Iterable[bytes | BadRow]:
        """The rows of ``message``, and a BadRow for each part that is no row.

        Raises BadRow if the whole message is no row. Raises SourceUnavailable and SourceRefused if
        the schema of the message cannot be read.
        """
        ...


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JsonOptions(_Options):
    """Messages of JSON are an object or an array of objects."""

    type: Literal["json"]


class NdjsonOptions(_Options):
    """Messages of NDJSON have a JSON object on each line."""

    type: Literal["ndjson"]


class ArrowOptions(_Options):
    """Messages of Arrow have record batches in its IPC stream format."""

    type: Literal["arrow"]


class RawOptions(_Options):
    """Messages that are not decoded. ``columns`` maps a column to the attribute ``value``."""

    type: Literal["raw"]


class CsvOptions(_Options):
    """Messages of CSV. ``columns`` names the columns, by default the first line of each message
    does."""

    type: Literal["csv"]
    columns: tuple[str, ...] | None = Field(None, min_length=1)
    delimiter: str = Field(",", pattern=r"^[^\"\r\n]$")


SchemaId = Annotated[int, Field(ge=0, lt=1 << 31)]


class AvroOptions(_Options):
    """Messages of Avro. Either all are written with the schema of ``schema_file``, or each begins
    with the id of its schema in ``registry``. A sink writes each with the schema ``schema_id``."""

    type: Literal["avro"]
    schema_file: Path | None = None
    registry: Registry | None = None
    schema_id: SchemaId | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> AvroOptions:
        if (self.schema_file is None) == (self.registry is None):
            raise ValueError("needs either schema_file or registry")
        if self.registry is None and self.schema_id is not None:
            raise ValueError("schema_id needs registry")
        return self


class ProtobufOptions(_Options):
    """Messages of the Protobuf type ``message`` in ``descriptor_file``. ``registered`` says whether
    each begins with the id of its schema in a registry. A sink writes the id ``schema_id``."""

    type: Literal["protobuf"]
    descriptor_file: Path
    message: str
    registered: bool = False
    schema_id: SchemaId | None = None

    @model_validator(mode="after")
    def _registered(self) -> ProtobufOptions:
        if self.schema_id is not None and not self.registered:
            raise ValueError("schema_id needs registered: true")
        return self


def _from_name(written: Any) -> Any:
    """``format: json`` is short for ``format: {type: json}``."""
    return {"type": written} if isinstance(written, str) else written


FormatOptions = (
    JsonOptions
    | NdjsonOptions
    | ArrowOptions
    | RawOptions
    | CsvOptions
    | AvroOptions
    | ProtobufOptions
)


class MessageOptions(_Options):
    """The keys of a source or sink of messages. ``columns`` maps columns to attributes of a
    message, such as its key. The other columns are in the value."""

    format: Annotated[
        Annotated[FormatOptions, Field(discriminator="type")], BeforeValidator(_from_name)
    ]
    columns: dict[str, str] = {}


def open_reader(
    options: FormatOptions, columns: Sequence[CsvColumn], base: Path
) -> MessageReader | None:
    """The reader that ``options`` describe, for messages with ``columns``; None for the formats
    whose values are no JSON.

    A relative path begins at the directory ``base``. Raises ConfigError.
    """
    if isinstance(options, AvroOptions | ProtobufOptions) and options.schema_id is not None:
        raise ConfigError(
            "format.schema_id is only for a sink, since each message that a source reads has the "
            "id of its schema; remove it"
        )
    match options:
        case JsonOptions():
            return JsonMessages()
        case NdjsonOptions():
            return NdjsonMessages()
        case ArrowOptions() | RawOptions():
            return None
        case CsvOptions():
            return CsvMessages(columns, options.columns, options.delimiter)
        case AvroOptions(schema_file=None, registry=Registry() as registry):
            return RegisteredAvroMessages(RegistryClient(registry, base))
        case AvroOptions(schema_file=Path() as file):
            return AvroMessages(base / file)
        case ProtobufOptions():
            file, name = base / options.descriptor_file, options.message
            return ProtobufMessages(file, name, is_registered=options.registered)
        case _:
            raise TypeError(f"no format for {options!r}")
