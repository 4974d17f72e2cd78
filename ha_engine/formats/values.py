"""Write values of Avro and Protobuf as JSON, in the form that the engine expects of an event.

Times are in ISO 8601, decimals are texts that no float has rounded, and bytes are in base64. So a
message of any format follows the same rules as a request over HTTP.
"""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from ha_engine.formats.json_rows import BadRow


def json_object(row: dict[str, Any]) -> bytes:
    """Write ``row`` as a JSON object on one line. Raises BadRow for a value without a form in
    JSON, such as NaN."""
    try:
        text = json.dumps(row, allow_nan=False, separators=(",", ":"), default=_form)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRow(f"the message has a value without a form in JSON: {error}") from None
    return text.encode()


def _form(value: Any) -> str:
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case UUID():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            raise TypeError(f"{type(value).__name__} is not supported")
