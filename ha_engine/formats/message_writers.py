"""Write rows as the values of messages, for sinks of message brokers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from google.protobuf import json_format

from ha_engine.errors import ConfigError, SinkRefused
from ha_engine.formats.avro import record_in
from ha_engine.formats.avro_schema import Record, parsed_record
from ha_engine.formats.avro_writer import RowWriter, without_nulls
from ha_engine.formats.json_lines import json_rows
from ha_engine.formats.json_rows import BadRow
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
from ha_engine.formats.protobuf import position_of, type_in, written_position
from ha_engine.formats.protobuf_columns import require_fields
from ha_engine.formats.registry import Registry, RegistryClient, head_of
from ha_engine.formats.values import json_text, require_form, rows_of

ROWS_OF_A_MESSAGE, BYTES_OF_A_MESSAGE = 1_000, 512 << 10
"""The most rows of one message, and its most bytes unless it has one row. Brokers refuse larger
messages: by default, NATS and Kafka take 1 MiB."""


class MessageWriter(Protocol):
    """Writes the values of messages."""

    @property
    def rows_per_message(self) -> int:
        """The most rows of one message."""
        ...

    def require_fit(self, schema: pa.Schema) -> None:
        """Raise SinkRefused if rows of ``schema`` have no form in the format, and SinkUnavailable
        while a schema registry does not answer."""
        ...

    def values(self, rows: pa.Table) -> Sequence[bytes | None]:
        """The values of the messages, in the order of ``rows``.

        Raises SinkRefused for a row that does not fit the format, and SinkUnavailable while a
        schema registry does not answer.
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
        case AvroOptions(schema_file=Path() as file):
            record = record_in(base / file)
            return AvroWriter(lambda: record)
        case AvroOptions(registry=Registry() as registry, schema_id=int() as number):
            client = RegistryClient(registry, base)
            return AvroWriter(lambda: _registered_record(client, number), head_of(number))
        case ProtobufOptions(registered=False):
            return ProtobufWriter(base / options.descriptor_file, options.message)
        case ProtobufOptions(schema_id=int() as number):
            return ProtobufWriter(base / options.descriptor_file, options.message, number)
        case _:
            raise ConfigError(
                "format.schema_id: a sink needs the id of the schema in the registry with which it "
                "writes; the registry returns the id when you register the schema"
            )


class JsonWriter:
    """One JSON object a message, with all columns, even null ones."""

    rows_per_message = 1

    def require_fit(self, schema: pa.Schema) -> None:
        require_form(schema)

    def values(self, rows: pa.Table) -> list[bytes]:
        return [row.encode() for row in json_rows(rows)]


class NdjsonWriter:
    """Several JSON objects a message, one on each line."""

    rows_per_message = ROWS_OF_A_MESSAGE

    def require_fit(self, schema: pa.Schema) -> None:
        require_form(schema)

    def values(self, rows: pa.Table) -> list[bytes]:
        return list(_joined(f"{row}\n".encode() for row in json_rows(rows)))


def _joined(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield messages that have as many of ``lines`` as they may have."""
    message, size = list[bytes](), 0
    for line in lines:
        is_full = len(message) == ROWS_OF_A_MESSAGE or size + len(line) > BYTES_OF_A_MESSAGE
        if message and is_full:
            yield b"".join(message)
            message, size = [], 0
        message.append(line)
        size += len(line)
    if message:
        yield b"".join(message)


class ArrowWriter:
    """Several rows a message, as a record batch in Arrow's IPC stream format."""

    rows_per_message = ROWS_OF_A_MESSAGE

    def require_fit(self, schema: pa.Schema) -> None:
        pass  # every type of a query's column has a form in Arrow

    def values(self, rows: pa.Table) -> list[bytes]:
        whole, size = rows.combine_chunks(), self.rows_per_message
        parts = (whole.slice(at, size) for at in range(0, whole.num_rows, size))
        return [message for part in parts for message in _messages(part)]


def _messages(rows: pa.Table) -> Iterator[bytes]:
    """Yield ``rows`` as one message, or as those of its halves if it is too large."""
    message = _ipc(rows)
    if len(message) <= BYTES_OF_A_MESSAGE or rows.num_rows == 1:
        yield message
        return
    middle = rows.num_rows // 2
    yield from _messages(rows.slice(0, middle))
    yield from _messages(rows.slice(middle))


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


class AvroWriter:
    """One Avro record a message, after ``head``. Its fields are the columns of the same names.

    ``record_of`` finds the record's type. It may raise SinkRefused, and SinkUnavailable while a
    registry does not answer. It is called until it returns, and then never again.
    """

    rows_per_message = 1

    def __init__(self, record_of: Callable[[], Record], head: bytes = b"") -> None:
        self._record_of, self._head = record_of, head
        self._record: Record | None = None
        self._writer: tuple[pa.Schema, RowWriter] | None = None

    def require_fit(self, schema: pa.Schema) -> None:
        RowWriter(self._found(), schema)

    def values(self, rows: pa.Table) -> list[bytes]:
        # The check before the query refuses columns that may be null. If the registry did not
        # answer then, the query runs, and only rows that are null are refused.
        schema = without_nulls(rows.schema)
        if self._writer is None or self._writer[0] != schema:
            self._writer = schema, RowWriter(self._found(), schema)
        return self._writer[1].values(rows, self._head)

    def _found(self) -> Record:
        if self._record is None:
            self._record = self._record_of()
        return self._record


def _registered_record(client: RegistryClient, number: int) -> Record:
    """Raises SinkRefused, SinkUnavailable."""
    try:
        return parsed_record(client.schema_to_write(number))
    except BadRow as bad:
        raise SinkRefused(f"schema {number} of the registry: {bad}") from None


class ProtobufWriter:
    """One Protobuf message a message, whose fields are the columns of the same names. With
    ``schema_id``, each begins with the id of a schema in a registry."""

    rows_per_message = 1

    def __init__(self, descriptor_file: Path, name: str, schema_id: int | None = None) -> None:
        """Raises ConfigError."""
        self._type = type_in(descriptor_file, name)
        self._head = b""
        if schema_id is not None:
            position = written_position(position_of(self._type.DESCRIPTOR))
            self._head = head_of(schema_id) + position

    def require_fit(self, schema: pa.Schema) -> None:
        require_form(schema)
        require_fields(self._type.DESCRIPTOR, schema)

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
        return self._head + written
