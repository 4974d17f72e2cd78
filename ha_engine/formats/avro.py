"""Read Avro messages, each one record in Avro's binary encoding without a container file."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from ha_engine.errors import ConfigError
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.registry import framed
from ha_engine.formats.values import json_object

try:
    import fastavro
except ImportError:  # the extra 'avro' is not installed
    fastavro = None


class WriterSchemas(Protocol):
    """The schemas with which producers wrote messages, by the id in each message."""

    def schema(self, number: int) -> str:
        """Return the schema as JSON. Raises BadRow if there is none, and SourceUnavailable."""
        ...


class AvroMessages:
    """Messages that are all written with the schema in ``schema_file``."""

    def __init__(self, schema_file: Path) -> None:
        """Raises ConfigError."""
        try:
            text = schema_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the Avro schema {schema_file} cannot be read: {error}") from error
        try:
            self._schema = _parsed(text)
        except BadRow as bad:
            raise ConfigError(f"{schema_file}: {bad}") from bad

    def rows(self, message: bytes) -> Iterator[bytes]:
        """Yield the record of ``message`` as JSON. Raises BadRow."""
        yield _row(message, self._schema)


class RegisteredAvroMessages:
    """Messages that begin with the id of their schema in a schema registry."""

    def __init__(self, schemas: WriterSchemas) -> None:
        """Raises ConfigError."""
        _require_library()
        self._schemas = schemas
        self._parsed: dict[int, Any] = {}

    def rows(self, message: bytes) -> Iterator[bytes]:
        """Yield the record of ``message`` as JSON. Raises BadRow, SourceUnavailable."""
        number, body = framed(message)
        if number not in self._parsed:
            self._parsed[number] = _parsed(self._schemas.schema(number))
        yield _row(body, self._parsed[number])


def _row(body: bytes, schema: Any) -> bytes:
    source = io.BytesIO(body)
    try:
        record = fastavro.schemaless_reader(source, schema, None)
    except Exception as error:  # the library raises what its parser of bytes happens to raise
        raise BadRow(f"the message is no Avro record: {_described(error)}") from None
    left = len(body) - source.tell()
    if left:
        raise BadRow(f"the message has {left} bytes after its Avro record")
    if not isinstance(record, dict):
        raise BadRow("the Avro schema of the message is not a record")
    return json_object(record)


def _described(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()


def _parsed(text: str) -> Any:
    """Raises BadRow, and ConfigError if the library is missing."""
    _require_library()
    try:
        return fastavro.parse_schema(json.loads(text))
    except Exception as error:  # the schema comes from a file or a registry, and may be anything
        raise BadRow(f"the Avro schema cannot be read: {_described(error)}") from None


def _require_library() -> None:
    if fastavro is None:
        raise ConfigError("Avro needs the package fastavro; install ha-engine[avro]")
