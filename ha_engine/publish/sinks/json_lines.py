"""Write rows as JSON, one object a line.

Times are in ISO 8601, decimals are texts, and bytes are hex texts.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ha_engine.errors import SinkRefused

MEDIA_TYPE = "application/x-ndjson"


def json_lines(table: pa.Table) -> bytes:
    """Write each row as a JSON object with all columns, even null ones, and a line feed.

    Raises TypeError for a value without a form in JSON.
    """
    return "".join(f"{json_text(row)}\n" for row in rows_of(table)).encode()


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


def json_text(value: Any) -> str:
    """Write a value as JSON. NaN and the infinities, which JSON lacks, become texts as in Spark."""
    try:
        return _strict(value)
    except ValueError:
        return _strict(_named(value))


def _strict(value: Any) -> str:
    """Write a value as strict JSON.

    Raises ValueError for NaN and the infinities, and TypeError for a type without a form in JSON.
    """
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_form
    )


def _form(value: Any) -> str:
    match value:
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).isoformat()
        case date() | time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case _:
            raise TypeError(f"{type(value).__name__} is not supported")


def _named(value: Any) -> Any:
    """Replace NaN and infinite numbers in ``value`` by texts."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {key: _named(part) for key, part in value.items()}
        case list():
            return [_named(part) for part in value]
        case _:
            return value
