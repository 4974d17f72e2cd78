"""Decode the body of a request into one record batch of the stream's schema, or say in a sentence
why the body is refused.

After a few checks, ``pyarrow.json`` alone decides by the stream's schema which JSON is accepted.
The search for the first bad row (``diagnose``) uses the same parser, so parser and search never
disagree. The checks refuse input that pyarrow 26 was measured to handle wrongly. A bare ``null`` as
the first row ends the process with a segmentation fault. A bare ``null`` as a later row becomes a
row of nulls. The parser also accepts NaN, Infinity, invalid UTF-8, and two objects on one line.
Deeply nested JSON needs no check, because pyarrow stops at the first value that the schema does not
expect. Python's json module, which splits a JSON array into rows, limits the depth itself.

A field that an event lacks is null. A number must be a JSON number, and a string must be a JSON
string. A whole number may be sent for a double column, but a fraction is refused for an integer
column. A decimal is a JSON number or string, and must fit its column without rounding. A timestamp
has the format of RFC 3339, with at most six fractional digits. A timestamp may have a space in
place of the T, or consist of a date alone. A timestamp without a zone is in UTC. A date has the
form YYYY-MM-DD. A year is from 1 to 9999, in UTC. A binary value is a string in base64. U+0000 in a
string is refused, because PostgreSQL cannot store it, and a sink would fail after the ack.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.json as arrow_json

from ha_engine.errors import ApplicationError, InvalidEvents, PayloadTooLarge, UnsupportedFormat
from ha_engine.formats.json_rows import objects_of
from ha_engine.receive.arrow import ArrowReader
from ha_engine.receive.columns import ColumnReader, SchemaMismatch
from ha_engine.receive.diagnose import first_bad, reason_for

_BLANK = b" \t\r\n"
_EMPTY = "the body is empty; send at least one event"
_ONE_BLOCK = arrow_json.ReadOptions(use_threads=False, block_size=(1 << 31) - 1)


class Format(Enum):
    """The formats of a request body, by content type."""

    NDJSON = "application/x-ndjson"
    JSON = "application/json"
    ARROW = "application/vnd.apache.arrow.stream"


_NAMES = {form.value: form for form in Format} | {
    "application/ndjson": Format.NDJSON,
    "application/jsonl": Format.NDJSON,
}


def format_of(content_type: str) -> Format:
    """The format that a Content-Type header names. Raises UnsupportedFormat."""
    name, _, parameters = content_type.partition(";")
    found = _NAMES.get(name.strip().lower())
    if found is None:
        raise UnsupportedFormat(
            f"content type {name.strip()[:80]!r} is not supported; "
            f"send {Format.NDJSON.value}, {Format.JSON.value} or {Format.ARROW.value}"
        )
    charset = parameters.lower().replace(" ", "").replace('"', "")
    if charset not in ("", "charset=utf-8"):
        raise UnsupportedFormat("events must be in UTF-8; remove the charset parameter")
    return found


def too_many_events(rows_max: int) -> PayloadTooLarge:
    """The refusal of a request with more than ``rows_max`` events."""
    return PayloadTooLarge(
        f"one request has at most {rows_max} events; send several smaller requests"
    )


class Lines(NamedTuple):
    """Events as UTF-8 text, with one event on each line and without blank lines.

    ``seams`` is the number of line breaks between the end of one object and the start of another.
    ``seams`` is counted once and kept, because the count is slow.
    """

    text: bytes
    rows: int
    seams: int

    @classmethod
    def of(cls, text: bytes) -> Lines:
        return cls(text, text.count(b"\n") + 1, text.count(b"}\n{"))

    @property
    def is_one_object_a_line(self) -> bool:
        """Whether every line begins with ``{`` and ends with ``}``; a bare ``null`` would crash
        pyarrow."""
        ends = self.text.startswith(b"{") and self.text.endswith(b"}")
        return ends and self.seams == self.rows - 1


class Decoder:
    """Decodes bodies for one stream, each with at most ``rows_max`` rows.

    The constructor raises ApplicationError if pyarrow cannot read the type of a column from JSON.
    """

    def __init__(self, schema: pa.Schema, rows_max: int) -> None:
        self.schema = schema
        self._rows_max = rows_max
        self._readers = [ColumnReader(field) for field in schema]
        self._checked = [reader for reader in self._readers if reader.is_checked]
        self._strict = _options(self._readers, "error")
        self._lenient = {reader.name: _options([reader], "ignore") for reader in self._readers}
        self._refuse_unreadable_types()
        self._arrow = ArrowReader(schema, self._readers)

    def decode(self, body: bytes, form: Format) -> pa.RecordBatch:
        """Decode all rows of ``body``, in order, into one batch with exactly the stream's schema.

        Raises PayloadTooLarge, or InvalidEvents with the number of the first bad row. A blank line
        in a body is not counted as a row.
        """
        if form is Format.ARROW:
            return self._read_arrow(body)
        return self.parse(self.lines(body, form))

    @property
    def no_rows(self) -> pa.RecordBatch:
        """A batch of the stream's schema without rows."""
        return pa.RecordBatch.from_pylist([], schema=self.schema)

    def lines(self, body: bytes, form: Format) -> Lines:
        """Split a JSON or NDJSON ``body`` into lines with one event each, without a look at the
        values.

        Raises InvalidEvents, PayloadTooLarge.
        """
        assert form is not Format.ARROW, "Arrow has no lines"
        lines = _tidy(body) if form is Format.NDJSON else Lines.of(self._lines_of_json(body))
        if lines.rows > self._rows_max:
            raise self._too_many()
        _require_utf8(lines.text)
        return lines

    def parse(self, lines: Lines) -> pa.RecordBatch:
        """Parse ``lines`` into one batch. Raises InvalidEvents with the number of the first bad
        row."""
        try:
            return self._parse(lines)
        except SchemaMismatch as mismatch:
            raise self._explain(lines.text.split(b"\n"), mismatch) from None

    def parse_together(self, several: Sequence[Lines]) -> list[pa.RecordBatch] | None:
        """Parse several bodies in one call, and return a batch for each, or None when a body has a
        bad row.

        A call of the parser costs as much time as about 300 rows. No event can span two bodies,
        because no JSON value contains ``}``, a line break and ``{`` in succession.
        """
        if not all(lines.is_one_object_a_line for lines in several):
            return None
        texts, rows = [lines.text for lines in several], [lines.rows for lines in several]
        try:
            batch = self._parse(Lines(b"\n".join(texts), sum(rows), sum(rows) - 1))
        except SchemaMismatch:
            return None
        starts = accumulate(rows, initial=0)
        return [batch.slice(start, length) for start, length in zip(starts, rows, strict=False)]

    # -- parsing -----------------------------------------------------------------------------------

    def _parse(self, lines: Lines) -> pa.RecordBatch:
        """Parse ``lines``. Raises SchemaMismatch unless every line is one event of the schema."""
        if not lines.is_one_object_a_line:
            raise SchemaMismatch("every line must be one JSON object")
        table = _read(lines.text, self._strict)
        if table.num_rows != lines.rows:
            raise SchemaMismatch("a line has more than one JSON value")
        for reader in self._checked:
            reader.check(table.column(reader.name), lines.text)
        return self._shaped(table)

    def _shaped(self, table: pa.Table) -> pa.RecordBatch:
        arrays = [
            reader.converted(column)
            for reader, column in zip(self._readers, table.itercolumns(), strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    # -- the search for a reason -------------------------------------------------------------------

    def _explain(self, lines: list[bytes], mismatch: SchemaMismatch) -> InvalidEvents:
        row = first_bad(len(lines), lambda low, high: self._accepts(lines[low:high]))
        if row is None:
            return InvalidEvents(str(mismatch))
        return InvalidEvents(reason_for(lines[row], self.schema, self._misfit_of_field), row)

    def _accepts(self, lines: list[bytes]) -> bool:
        try:
            self._parse(Lines.of(b"\n".join(lines)))
        except SchemaMismatch:
            return False
        return True

    def _misfit_of_field(self, line: bytes, name: str) -> SchemaMismatch | None:
        """Say why field ``name`` of the JSON object ``line`` is refused; other fields are
        ignored."""
        reader = next(reader for reader in self._readers if reader.name == name)
        try:
            column = _read(line, self._lenient[name]).column(name)
            reader.check(column, line)
            reader.converted(column)
        except SchemaMismatch as mismatch:
            return mismatch
        return None

    # -- Arrow -------------------------------------------------------------------------------------

    def _read_arrow(self, body: bytes) -> pa.RecordBatch:
        if not body:
            raise InvalidEvents(_EMPTY)
        batches, rows = [], 0
        for batch in self._arrow.batches(body):
            rows += batch.num_rows
            if rows > self._rows_max:
                raise self._too_many()
            batches.append(batch)
        if not rows:
            raise InvalidEvents(_EMPTY)
        return self._arrow.shaped(pa.concat_batches(batches))

    # -- arrays and limits -------------------------------------------------------------------------

    def _lines_of_json(self, body: bytes) -> bytes:
        """Write the objects of a JSON array, or a single object, on one line each, with unchanged
        values."""
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise InvalidEvents(f"byte {error.start} of the body is not UTF-8") from None
        if not text.strip(" \t\r\n"):
            raise InvalidEvents(_EMPTY)
        elements: list[str] = []
        try:
            for element in objects_of(text):
                elements.append(element)
                if len(elements) > self._rows_max:
                    raise self._too_many()
        except json.JSONDecodeError as error:
            reason = f"{error.msg} at line {error.lineno} column {error.colno}"
            raise InvalidEvents(reason, len(elements)) from None
        except RecursionError:
            raise InvalidEvents("the event is nested too deep", len(elements)) from None
        if not elements:
            raise InvalidEvents("the array is empty; send at least one event")
        return "\n".join(elements).encode()

    def _too_many(self) -> PayloadTooLarge:
        return too_many_events(self._rows_max)

    def _refuse_unreadable_types(self) -> None:
        for field in self.schema:
            try:
                _read(b"{}", _options([ColumnReader(field.with_nullable(True))], "ignore"))
            except SchemaMismatch as mismatch:
                raise ApplicationError(
                    f"column {field.name!r} of type {field.type} cannot be read from JSON; "
                    "declare another type"
                ) from mismatch


def _options(readers: list[ColumnReader], unexpected: str) -> arrow_json.ParseOptions:
    schema = pa.schema([reader.parsed for reader in readers])
    return arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)


def _read(lines: bytes, options: arrow_json.ParseOptions) -> pa.Table:
    try:
        return arrow_json.read_json(
            pa.BufferReader(lines), read_options=_ONE_BLOCK, parse_options=options
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(str(error)) from None


def _tidy(body: bytes) -> Lines:
    """Remove blank lines. A line break ends an event, because no JSON string contains a raw line
    break."""
    text = body.strip(_BLANK)
    if not text:
        raise InvalidEvents(_EMPTY)
    lines = Lines.of(text)
    if lines.seams == lines.rows - 1:
        return lines
    stripped = (line.strip(_BLANK) for line in text.split(b"\n"))
    return Lines.of(b"\n".join(line for line in stripped if line))


def _require_utf8(lines: bytes) -> None:
    if lines.isascii():
        return
    try:
        lines.decode()
    except UnicodeDecodeError as error:
        raise InvalidEvents("not valid UTF-8", lines.count(b"\n", 0, error.start)) from None
