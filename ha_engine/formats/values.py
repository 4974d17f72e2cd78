"""Write values as JSON in one form, whether they come from a message or go to a sink.

Times are in ISO 8601 and UTC, decimals are texts that no float has rounded, and bytes are in
base64. The engine reads the same form of an event, so a sink's output can be another engine's
input.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from ha_engine.errors import SinkRefused
from ha_engine.formats.json_rows import BadRow

VALUES_MAX = 200_000
"""The most values of one message of Avro or Protobuf. A value may take no byte in the message, but
it takes memory."""


def json_object(row: dict[str, Any]) -> bytes:
    """Write ``row`` as a JSON object on one line. Raises BadRow for a value without a form in
    JSON, such as NaN."""
    try:
        return _strict(row).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRow(f"the message has a value without a form in JSON: {error}") from None


def json_text(value: Any) -> str:
    """Write a value as JSON. NaN and the infinities, which JSON lacks, become texts as in Spark.

    Raises TypeError for a value without a form in JSON.
    """
    try:
        return _strict(value)
    except ValueError:
        return _strict(_named(value))


def flat_texts(values: list[Any]) -> list[str]:
    """Write each of ``values`` as ``json_text`` does; none is a list or an object.

    Raises TypeError for a value without a form in JSON.
    """
    if not values:
        return []
    # The text of a value has no line feed, since JSON escapes it in texts.
    try:
        texts = _LINES.encode(values)
    except ValueError:
        texts = _LINES.encode(_named(values))
    return texts[1:-1].split("\n")


def require_form(schema: pa.Schema) -> None:
    """Raise SinkRefused for a column whose type has no form in JSON."""
    for field in schema:
        if not _has_form(field.type):
            raise SinkRefused(
                f"column {field.name} is {field.type}, which has no form in JSON; "
                "cast it to string in the query"
            )


def _has_form(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_form(kind.value_type)
    if pa.types.is_map(kind):
        # JSON needs texts as keys, and Python's json converts only numbers and booleans to texts.
        plain = (pa.types.is_string, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        return any(of(kind.key_type) for of in plain) and _has_form(kind.item_type)
    if pa.types.is_nested(kind):
        return all(_has_form(kind.field(index).type) for index in range(kind.num_fields))
    return not (pa.types.is_duration(kind) or pa.types.is_interval(kind))


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as dictionaries from column names to values; maps become dictionaries too."""
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="lossy")
    return rows


def _strict(value: Any) -> str:
    """Write a value as strict JSON.

    Raises ValueError for NaN and the infinities, and TypeError for a type without a form in JSON.
    """
    return _STRICT.encode(value)


def _form(value: Any) -> str:
    match value:
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).isoformat()
        case date() | time():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case UUID():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            raise TypeError(f"{type(value).__name__} is not supported")


_STRICT = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_form
)
_LINES = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=("\n", ":"), default=_form
)
"""Writes each element of a list on a line."""


def _named(value: Any) -> Any:
    """Replace NaN and infinite numbers in ``value`` by texts."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {_named(key): _named(part) for key, part in value.items()}
        case list():
            return [_named(part) for part in value]
        case _:
            return value
