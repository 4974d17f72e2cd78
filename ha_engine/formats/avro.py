"""Read Avro messages, each one record in Avro's binary encoding without a container file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ha_engine.errors import ConfigError
from ha_engine.formats.avro_reader import AvroInput, Read, read_of
from ha_engine.formats.avro_schema import Record, parsed_record
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.registry import framed
from ha_engine.formats.values import json_object

SCHEMAS_MAX = 1_000
"""The most schemas of one topic that are kept; after them the reader begins again."""


class WriterSchemas(Protocol):
    """The schemas with which producers wrote messages, by the id in each message."""

    def schema(self, number: int) -> str:
        """Return the schema as JSON. Raises BadRow if there is none, and SourceUnavailable or
        SourceRefused if the registry cannot be asked."""
        ...


def record_in(schema_file: Path) -> Record:
    """The record that ``schema_file`` defines. Raises ConfigError."""
    try:
        return parsed_record(schema_file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the Avro schema {schema_file} cannot be read: {error}") from error
    except BadRow as bad:
        raise ConfigError(f"{schema_file}: {bad}") from bad


class AvroMessages:
    """Messages that are all written with the schema in ``schema_file``."""

    def __init__(self, schema_file: Path) -> None:
        """Raises ConfigError."""
        self._read = read_of(record_in(schema_file))

    def rows(self, message: bytes) -> Iterator[bytes]:
        """Yield the record of ``message`` as JSON. Raises BadRow."""
        yield _row(message, self._read)


class RegisteredAvroMessages:
    """Messages that begin with the id of their schema in a schema registry."""

    def __init__(self, schemas: WriterSchemas) -> None:
        self._schemas = schemas
        self._reads: dict[int, Read | str] = {}  # a text says why a schema cannot be read

    def rows(self, message: bytes) -> Iterator[bytes]:
        """Yield the record of ``message`` as JSON. Raises BadRow, SourceUnavailable,
        SourceRefused."""
        number, body = framed(message)
        if number not in self._reads:
            if len(self._reads) >= SCHEMAS_MAX:
                self._reads.clear()
            self._reads[number] = _read_or_reason(self._schemas.schema(number))
        read = self._reads[number]
        if isinstance(read, str):
            raise BadRow(read)
        yield _row(body, read)


def _read_or_reason(schema: str) -> Read | str:
    try:
        return read_of(parsed_record(schema))
    except BadRow as bad:
        return str(bad)


def _row(body: bytes, read: Read) -> bytes:
    data = AvroInput(body)
    record = read(data)
    if data.left:
        raise BadRow(f"the message has {data.left} bytes after its Avro record")
    return json_object(record)
