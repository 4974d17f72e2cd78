"""Write the rows of a batch as one file, for sinks that create files or objects, also for those of
other packages."""

from __future__ import annotations

import io
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from ha_engine.errors import SinkRefused
from ha_engine.formats.json_lines import json_lines
from ha_engine.formats.message_writers import CsvWriter
from ha_engine.formats.values import require_form

RowFormat = Literal["jsonl", "csv", "parquet", "arrow"]
"""``jsonl`` has a JSON object on each line, ``csv`` a header line, and ``arrow`` Arrow's IPC file
format."""
_TEXTS = ("jsonl", "csv")


def require_file(schema: pa.Schema, form: RowFormat) -> None:
    """Raise SinkRefused for a column whose type has no form in a file."""
    if form in _TEXTS:
        require_form(schema)
    row_file(schema.empty_table(), form)


def row_file(rows: pa.Table, form: RowFormat) -> bytes:
    """Return a file with ``rows``: the same bytes for the same rows, however they are chunked.

    Other versions of pyarrow may write other bytes of Parquet and Arrow. Raises SinkRefused.
    """
    match form:
        case "jsonl":
            return json_lines(rows)
        case "csv":
            return CsvWriter(rows.column_names, ",").file(rows)
    buffer = pa.BufferOutputStream()
    try:
        if form == "parquet":
            pq.write_table(rows.combine_chunks(), buffer)
        else:
            with pa.ipc.new_file(buffer, rows.schema) as writer:
                writer.write_table(rows.combine_chunks())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise SinkRefused(f"these rows have no form in {form.capitalize()}: {error}") from error
    content: bytes = buffer.getvalue().to_pybytes()
    return content


def comparable(content: bytes, form: RowFormat) -> bytes:
    """Return the same bytes for all files with the same rows, whichever version has written them.

    Parquet does not keep all types, such as the names inside a list. So a file and its rows are
    only equal once both were read from a file. Raises ValueError if ``content`` is no such file.
    """
    if form in _TEXTS:
        return content
    try:
        if form == "parquet":
            return row_file(pq.read_table(io.BytesIO(content)), form)
        return row_file(pa.ipc.open_file(content).read_all(), form)
    except (pa.ArrowException, OSError, SinkRefused) as error:
        raise ValueError(str(error)) from error
