"""Turn lines of CSV into JSON objects, so that one parser checks the rows of CSV and of JSON.

The first line of a CSV file names the columns. An empty cell means null, but in a string column
that is declared not null it means the empty text. The cell ``NA`` means null, except in string
columns. Cells contain numbers, arrays and structs in JSON's form, and booleans as true and false. A
quoted cell may contain line breaks.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from json.encoder import encode_basestring_ascii as _quoted  # json.dumps takes three times as long
from typing import NamedTuple

from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.lines import Line

LINES_OF_A_ROW_MAX, ROW_BYTES_MAX = 1_000, 4 << 20
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_NO_VALUES = ("", "NA")
_TEXTS = ("string", "large_string")
_NUMBERS = ("int", "uint", "float", "double", "halffloat")
_NESTED = ("list", "large_list", "struct", "map")
_BOM = b"\xef\xbb\xbf"

ToJson = Callable[[str], str]


class CsvColumn(NamedTuple):
    """A column of the stream. ``type`` is the name of the column's Arrow type."""

    name: str
    type: str
    nullable: bool


class CsvRows:
    """Converts the rows of one CSV file to JSON. ``names`` are the columns of its header."""

    def __init__(self, header: bytes, columns: Iterable[CsvColumn], delimiter: str = ",") -> None:
        """Read the file's header line. Raises BadRow."""
        self._delimiter = delimiter
        names = self._cells(header.removeprefix(_BOM))
        if len(set(names)) < len(names):
            raise BadRow(f"the header names a column twice: {', '.join(names)}")
        known = {column.name: column for column in columns}
        self.names = tuple(names)
        self._keys = [f"{_quoted(name)}:" for name in names]
        self._converters = [_converter(known.get(name)) for name in names]

    def is_row(self, row: bytes) -> bool:
        try:
            self.to_json(row)
        except BadRow:
            return False
        return True

    def to_json(self, row: bytes) -> bytes:
        """Convert a row to a JSON object. Raises BadRow."""
        cells = self._cells(row)
        if len(cells) != len(self._keys):
            raise BadRow(f"the row has {len(cells)} fields, but the header has {len(self._keys)}")
        parts = zip(self._keys, self._converters, cells, strict=True)
        fields = ",".join([key + convert(cell) for key, convert, cell in parts])
        return f"{{{fields}}}".encode()

    def _cells(self, row: bytes) -> list[str]:
        try:
            text = row.decode()
            plain = text.rstrip("\r\n")
            if '"' not in text and "\r" not in plain:
                return plain.split(self._delimiter)  # csv.reader takes three times as long
            lines = io.StringIO(text, newline="")
            [cells] = csv.reader(lines, delimiter=self._delimiter, strict=True)
        except UnicodeDecodeError:
            raise BadRow("not valid UTF-8") from None
        except (csv.Error, ValueError) as error:
            raise BadRow(f"not valid CSV: {error}") from None
        return cells


def whole_rows(lines: Iterable[Line], is_row: Callable[[bytes], bool]) -> Iterator[list[Line]]:
    """Yield the lines of each CSV row; a quoted cell with line breaks makes a row of several lines.

    A complete CSV row has an even number of quotes. If several gathered lines are no valid row, the
    first line becomes a row of its own. The other gathered lines are then examined again, so that a
    stray quote spoils only its own line.
    """
    again, source = deque[Line](), iter(lines)
    while first := again.popleft() if again else next(source, None):
        row = _gathered(first, again, source)
        if len(row) > 1 and not (_are_closed(row) and is_row(b"".join(one.raw for one in row))):
            again.extendleft(reversed(row[1:]))
            row = row[:1]
        yield row


def _gathered(first: Line, again: deque[Line], source: Iterator[Line]) -> list[Line]:
    """Gather ``first`` and the next lines until the number of quotes is even.

    Gathering also ends when the row is too long or the file ends.
    """
    row, size = [first], first.size
    is_open = _opens(first)
    while is_open and len(row) <= LINES_OF_A_ROW_MAX and size <= ROW_BYTES_MAX:
        line = again.popleft() if again else next(source, None)
        if line is None:
            break
        row.append(line)
        size += line.size
        is_open ^= _opens(line)
    return row


def _are_closed(row: list[Line]) -> bool:
    return sum(map(_opens, row)) % 2 == 0


def _opens(line: Line) -> bool:
    """Whether the line opens or closes a quoted cell.

    A line over the size limit counts as neither opening nor closing a cell, because only the
    beginning of the line is kept.
    """
    return line.is_whole and line.raw.count(b'"') % 2 == 1


def _converter(column: CsvColumn | None) -> ToJson:
    if column is None:
        return _quoted
    if column.type in _TEXTS:
        empty = "null" if column.nullable else '""'
        return lambda cell: _quoted(cell) if cell else empty
    convert = _converter_of(column.type)
    return lambda cell: "null" if cell in _NO_VALUES else convert(cell)


def _converter_of(kind: str) -> ToJson:
    if kind.startswith(_NUMBERS):
        return lambda cell: cell if _NUMBER.fullmatch(cell) else _quoted(cell)
    if kind == "bool":
        return lambda cell: low if (low := cell.lower()) in ("true", "false") else _quoted(cell)
    if kind.startswith(_NESTED):
        return lambda cell: cell if _is_json(cell) else _quoted(cell)
    return _quoted


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return "\n" not in text
