"""Write rows as JSON, one object a line, with values in the form of ``formats.values``."""

from __future__ import annotations

import pyarrow as pa

from ha_engine.formats.values import json_text, rows_of

MEDIA_TYPE = "application/x-ndjson"


def json_lines(table: pa.Table) -> bytes:
    """Write each row as a JSON object with all columns, even null ones, and a line feed.

    Raises TypeError for a value without a form in JSON.
    """
    return "".join(f"{json_text(row)}\n" for row in rows_of(table)).encode()
