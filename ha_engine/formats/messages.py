"""The formats of the messages of a broker, each of which becomes rows in JSON or Arrow."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ha_engine.formats.avro import AvroMessages, RegisteredAvroMessages
from ha_engine.formats.csv_rows import CsvColumn, CsvRows, whole_rows
from ha_engine.formats.json_rows import BadRow, objects_of
from ha_engine.formats.lines import LINE_BYTES_MAX, Line, lines_of
from ha_engine.formats.protobuf import ProtobufMessages
from ha_engine.formats.registry import Registry, RegistryClient

_BLANK = b" \t\r\n"


class MessageFormat(Protocol):
    """Turns messages into JSON rows."""

    def rows(self, message: bytes) -> Iterator[bytes | BadRow]:
        """Yield the rows of ``message``, and a BadRow for each part that is no row.

        Raises BadRow if the whole message is no row. Raises SourceUnavailable and SourceRefused if
        the schema of the message cannot be read.
        """
        ...


# -- options ---------------------------------------------------------------------------------------


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TextOptions(_Options):
    """Messages of JSON are an object or an array of objects. NDJSON has an object on each line.
    Arrow is its IPC stream format."""

    type: Literal["json", "ndjson", "arrow"]


class CsvOptions(_Options):
    """Messages of CSV. ``columns`` names the columns, by default the first line of each message
    does."""

    type: Literal["csv"]
    columns: tuple[str, ...] | None = None
    delimiter: str = Field(",", min_length=1, max_length=1)


class AvroOptions(_Options):
    """Messages of Avro. Either all are written with the schema of ``schema_file``, or each begins
    with the id of its schema in ``registry``."""

    type: Literal["avro"]
    schema_file: Path | None = None
    registry: Registry | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> AvroOptions:
        if (self.schema_file is None) == (self.registry is None):
            raise ValueError("needs either schema_file or registry")
        return self


class ProtobufOptions(_Options):
    """Messages of the Protobuf type ``message`` in ``descriptor_file``. ``registered`` says whether
    each begins with the id of its schema in a registry."""

    type: Literal["protobuf"]
    descriptor_file: Path
    message: str
    registered: bool = False


def _from_name(written: Any) -> Any:
    """``format: json`` is short for ``format: {type: json}``."""
    return {"type": written} if isinstance(written, str) else written


FormatOptions = TextOptions | CsvOptions | AvroOptions | ProtobufOptions


class MessageOptions(_Options):
    """The keys of a source whose rows are messages. ``columns`` names the columns of the stream
    that get an attribute of the message, such as its key."""

    format: Annotated[
        Annotated[FormatOptions, Field(discriminator="type")], BeforeValidator(_from_name)
    ]
    columns: dict[str, str] = {}


def open_format(
    options: FormatOptions, columns: Sequence[CsvColumn], base: Path
) -> MessageFormat | None:
    """The format that ``options`` describe, for a stream with ``columns``, or None for Arrow, whose
    rows are no JSON.

    A relative path begins at the directory ``base``. Raises ConfigError.
    """
    match options:
        case TextOptions(type="json"):
            return JsonMessages()
        case TextOptions(type="ndjson"):
            return NdjsonMessages()
        case TextOptions():
            return None
        case CsvOptions():
            return CsvMessages(columns, options.columns, options.delimiter)
        case AvroOptions(schema_file=None, registry=Registry() as registry):
            return RegisteredAvroMessages(RegistryClient(registry))
        case AvroOptions(schema_file=Path() as file):
            return AvroMessages(base / file)
        case ProtobufOptions():
            file, name = base / options.descriptor_file, options.message
            return ProtobufMessages(file, name, is_registered=options.registered)
        case _:
            raise TypeError(f"no format for {options!r}")


# -- text ------------------------------------------------------------------------------------------


class JsonMessages:
    """Messages of JSON."""

    def rows(self, message: bytes) -> Iterator[bytes]:
        """Yield the object that ``message`` is, or each object of its array. Raises BadRow."""
        try:
            found = list(objects_of(message.decode()))
        except UnicodeDecodeError as error:
            raise BadRow(f"byte {error.start} of the message is not UTF-8") from None
        except json.JSONDecodeError as error:
            raise BadRow(f"{error.msg} at line {error.lineno} column {error.colno}") from None
        except RecursionError:
            raise BadRow("the message is nested too deep") from None
        for row in found:
            yield row.encode()


class NdjsonMessages:
    """Messages of JSON objects, one on each line."""

    def rows(self, message: bytes) -> Iterator[bytes]:
        """Yield the lines of ``message`` that are not blank. Raises BadRow."""
        found = [line.strip(_BLANK) for line in message.split(b"\n")]
        if not any(found):
            raise BadRow("the message is empty")
        yield from filter(None, found)


class CsvMessages:
    """Messages of CSV. ``names`` are the columns of a message without a header line."""

    def __init__(
        self, columns: Sequence[CsvColumn], names: Sequence[str] | None, delimiter: str
    ) -> None:
        self._columns, self._delimiter = columns, delimiter
        self._header = None if names is None else delimiter.join(names).encode()

    def rows(self, message: bytes) -> Iterator[bytes | BadRow]:
        """Yield the rows of ``message``, and a BadRow for each bad one. Raises BadRow."""
        lines = lines_of(io.BytesIO(message))
        header = self._header
        if header is None:
            first = next(lines, None)
            if first is None:
                raise BadRow("the message is empty")
            header = first.raw
        rows = CsvRows(header, self._columns, self._delimiter)
        for gathered in whole_rows(lines, rows.is_row):
            yield from _csv_row(rows, gathered)


def _csv_row(rows: CsvRows, lines: list[Line]) -> Iterator[bytes | BadRow]:
    raw = b"".join(line.raw for line in lines)
    if not raw.strip():
        return
    if not all(line.is_whole for line in lines):
        yield BadRow(f"a line is longer than {LINE_BYTES_MAX} bytes")
        return
    try:
        yield rows.to_json(raw)
    except BadRow as bad:
        yield bad
