"""Encode the rows of one request as bytes, either as lines of JSON or in Arrow's stream format.

A request is repeated unchanged, so its rows are encoded only once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any

import pyarrow as pa

from ha_engine.errors import InvalidEvents


class Form(Enum):
    """The formats of a payload, each with its content type."""

    NDJSON = "application/x-ndjson"
    ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True)
class Payload:
    """The encoded ``body`` of a request with ``rows`` rows."""

    form: Form
    body: bytes
    rows: int


def of_lines(lines: Sequence[bytes]) -> Payload:
    """Make a payload of ``lines``, each of which is one event as JSON without line breaks."""
    return Payload(Form.NDJSON, b"\n".join(lines), len(lines))


def of_batch(batch: pa.RecordBatch) -> Payload:
    """Make a payload of ``batch`` in Arrow's stream format, with the batch's column names."""
    plain = _plain(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_batch(plain)
    return Payload(Form.ARROW, sink.getvalue().to_pybytes(), batch.num_rows)


def as_line(row: dict[str, Any]) -> bytes:
    """Write one event as JSON without line breaks. Raises InvalidEvents for a value that JSON
    cannot represent."""
    try:
        return json.dumps(row, default=_as_json, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise InvalidEvents(f"a row cannot be sent as JSON: {error}") from None


def _as_json(value: object) -> str:
    match value:
        case date():  # datetime too
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert dictionary and view columns to plain ones, because the node refuses encodings that
    may expand without limit."""
    kinds = [_plain_type(column.type) for column in batch.columns]
    columns = [
        column if column.type == kind else column.cast(kind)
        for column, kind in zip(batch.columns, kinds, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    match kind:
        case pa.DictionaryType():
            return _plain_type(kind.value_type)
        case _ if pa.types.is_string_view(kind):
            return pa.string()
        case _ if pa.types.is_binary_view(kind):
            return pa.binary()
        case _:
            return kind
