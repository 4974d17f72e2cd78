"""Write rows as the values of messages, for sinks of message brokers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from google.protobuf import json_format

from ha_engine.errors import ConfigError, SinkRefused
from ha_engine.formats.messages import (
    ArrowOptions,
    AvroOptions,
    CsvOptions,
    FormatOptions,
    JsonOptions,
    NdjsonOptions,
    ProtobufOptions,
    RawOptions,
)
from ha_engine.formats.protobuf import type_in
from ha_engine.formats.values import json_text, require_form, rows_of

ROWS_OF_A_MESSAGE = 1_000


class MessageWriter(Protocol):
    """Writes the values of messages."""

    @property
    def rows_per_message(self) -> int:
        """The most rows of one message."""
        ...

    def require_fit(self, schema: pa.Schema) -> None:
        """Raise SinkRefused if rows of ``schema`` have no form in the format."""
        ...

    def values(self, rows: pa.Table) -> Sequence[bytes | None]:
        """The values of the messages, in the order of ``rows``.

        Raises SinkRefused for a row that does not fit the format.
        """
        ...


def open_writer(options: FormatOptions, base: Path) -> MessageWriter | None:
    """The writer that ``options`` describe, or None for the format ``raw``.

    A relative path begins at the directory ``base``. Raises ConfigError.
    """
    match options:
        case JsonOptions():
            return JsonWriter()
        case NdjsonOptions():
            return NdjsonWriter()
        case ArrowOptions():
            return ArrowWriter()
        case RawOptions():
            return None
        case CsvOptions():
            return CsvWriter(options.columns, options.delimiter)
        case AvroOptions():
            raise ConfigError("format: a sink cannot write avro yet; use json, arrow or protobuf")
        case ProtobufOptions(registered=False):
            return ProtobufWriter(base / options.descriptor_file, options.message)
        case _:
            raise ConfigError(
                "format.registered: a sink cannot write the id of a schema; remove it"
            )


class JsonWriter:
    """One JSON object a message, with all columns, even null ones."""

    rows_per_message = 1

    def require_fit(self, schema: pa.Schema) -> None:
        require_form(schema)

    def values(self, rows: pa.Table) -> list[bytes]:
        return [json_text(row).encode() for row in rows_of(rows)]


class NdjsonWriter:
    """Several JSON objects a message, one on each line."""

    rows_per_message = ROWS_OF_A_MESSAGE

    def require_fit(self, schema: pa.Schema) -> None:
        require_form(schema)

    def values(self, rows: pa.Table) -> list[bytes]:
        lines = [f"{json_text(row)}\n".encode() for row in rows_of(rows)]
        size = self.rows_per_message
        return [b"".join(lines[at : at + size]) for at in range(0, len(lines), size)]


class ArrowWriter:
    """Several rows a message, as a record batch in Arrow's IPC stream format."""

    rows_per_message = ROWS_OF_A_MESSAGE

    def require_fit(self, schema: pa.Schema) -> None:
        pass  # every type of a query's column has a form in Arrow

    def values(self, rows: pa.Table) -> list[bytes]:
        whole, size = rows.combine_chunks(), self.rows_per_message
        return [_ipc(whole.slice(at, size)) for at in range(0, whole.num_rows, size)]


def _ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    written: bytes = sink.getvalue().to_pybytes()
    return written


class CsvWriter:
    """One row of CSV a message, in the order of ``names`` if they are given. Otherwise each message
    begins with a header line. A null is an empty cell."""

    rows_per_message = 1

    def __init__(self, names: Sequence[str] | None, delimiter: str) -> None:
        self._names, self._delimiter = names, delimiter

    def require_fit(self, schema: pa.Schema) -> None:
        require_form(schema)
        if self._names is not None and sorted(self._names) != sorted(schema.names):
            raise SinkRefused(
                f"format.columns names {', '.join(self._names)}, and the message has "
                f"{', '.join(schema.names)}; name the same columns"
            )

    def values(self, rows: pa.Table) -> list[bytes]:
        if self._names is not None:
            rows = rows.select(list(self._names))
        header = b"" if self._names is not None else self._line(rows.column_names) + b"\n"
        return [header + self._line(map(_cell, row.values())) for row in rows_of(rows)]

    def file(self, rows: pa.Table) -> bytes:
        """A header line and a line for each row."""
        lines = [self._line(rows.column_names)]
        lines += [self._line(map(_cell, row.values())) for row in rows_of(rows)]
        return b"".join(line + b"\n" for line in lines)

    def _line(self, cells: Iterable[str]) -> bytes:
        line = io.StringIO()
        # Only with this terminator does the library quote a cell with a line break.
        csv.writer(line, delimiter=self._delimiter, lineterminator="\r\n").writerow(cells)
        return line.getvalue().removesuffix("\r\n").encode()


def _cell(value: Any) -> str:
    """The form that the engine reads from a cell: a text as it is, any other value as in JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json_text(value).strip('"')


class ProtobufWriter:
    """One Protobuf message a message, whose fields are the columns of the same names."""

    rows_per_message = 1

    def __init__(self, descriptor_file: Path, name: str) -> None:
        """Raises ConfigError."""
        self._type = type_in(descriptor_file, name)

    def require_fit(self, schema: pa.Schema) -> None:
        require_form(schema)
        fields = self._type.DESCRIPTOR.fields_by_name
        for name in schema.names:
            if name not in fields:
                raise SinkRefused(
                    f"the Protobuf type {self._type.DESCRIPTOR.full_name} has no field {name!r}; "
                    "rename the column in the query"
                )

    def values(self, rows: pa.Table) -> list[bytes]:
        return [self._value(row) for row in rows_of(rows)]

    def _value(self, row: dict[str, Any]) -> bytes:
        message = self._type()
        try:
            json_format.Parse(json_text(row), message)
        except json_format.ParseError as error:
            name = message.DESCRIPTOR.full_name
            raise SinkRefused(f"a row does not fit the Protobuf type {name}: {error}") from error
        written: bytes = message.SerializeToString(deterministic=True)
        return written
