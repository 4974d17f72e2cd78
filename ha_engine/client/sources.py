"""Read a file of events part by part: NDJSON and CSV as lines of JSON, Parquet as Arrow.

Rules for CSV: the first line names the columns. An empty field is null, except in a string column.
NA is null in a number, a date or a timestamp. A quoted field contains no line break. The node
checks the values, also those of Parquet. Line numbers count from 1, and are exact unless a CSV file
has blank lines. Rows of Parquet count from 1. Memory has only one part and, for Parquet, the pages
that it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, Protocol, cast

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from ha_engine.client.payload import Payload, as_line, of_batch, of_lines
from ha_engine.client.transport import RemoteColumn
from ha_engine.errors import ConfigError, InvalidEvents

FORMATS = {
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".parquet": "parquet",
    ".pq": "parquet",
}
PAGE_BUFFER_BYTES = 1 << 20
_NO_VALUE = ("", "NA")
_CSV_CELL = re.compile(r"CSV column #(\d+): Row #(\d+): CSV conversion error to (\w+): ([^\n]*)")
_CSV_ROW = re.compile(r"Row #(\d+): ([^\n]*)")

Line = tuple[int, bytes]
"""Number of the line in the file, and the event as one line of JSON."""


class Part(NamedTuple):
    """One request's rows, and the place of each in the file."""

    numbers: Sequence[int]
    payload: Payload


class Source(Protocol):
    """A file of events. ``unit`` is what its numbers count: lines or rows."""

    unit: str

    def parts(self, rows: int, columns: Callable[[], list[RemoteColumn]]) -> Iterator[Part]:
        """Yield parts of at most ``rows`` rows. ``columns`` returns the stream's, if needed.

        Raises InvalidEvents.
        """

    def tell(self) -> int:
        """The approximate number of bytes read from the file."""

    def close(self) -> None: ...


def open_source(path: Path | None, form: str) -> Source:
    """Open a file. No ``path``: standard input; ``form``: auto or a format. Raises ConfigError."""
    match _form(path, form), path:
        case "parquet", None:
            raise ConfigError("Parquet is not read from standard input; name the file")
        case "parquet", Path():
            return ParquetSource(path)
        case chosen, _:
            return TextSource(path, chosen)


def _form(path: Path | None, form: str) -> str:
    known = list(dict.fromkeys(FORMATS.values()))
    if form in known:
        return form
    if form != "auto":
        raise ConfigError(f"format {form!r} is not known; use auto, {', '.join(known)}")
    if path is None:
        return "ndjson"
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise ConfigError(f"the name {path.name!r} does not tell the format; add --format")
    return found


# -- lines -----------------------------------------------------------------------------------------


class TextSource:
    """A file of NDJSON or CSV. Raises ConfigError when the file cannot be opened."""

    unit = "line"

    def __init__(self, path: Path | None, form: str) -> None:
        self._form, self._seekable = form, path is not None
        self._file = _opened(path, form)

    def parts(self, rows: int, columns: Callable[[], list[RemoteColumn]]) -> Iterator[Part]:
        lines = _ndjson(self._file) if self._form == "ndjson" else _csv(self._file, columns())
        while batch := list(islice(lines, rows)):
            yield Part([number for number, _ in batch], of_lines([line for _, line in batch]))

    def tell(self) -> int:
        return self._file.tell() if self._seekable else 0

    def close(self) -> None:
        self._file.close()


def _opened(path: Path | None, form: str) -> IO[bytes]:
    if path is None:
        return open(0, "rb", closefd=False)
    try:
        opened = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if form != "csv":
        return opened
    # Arrow reads ahead in a thread of its own. If the thread still reads a Python file when the
    # interpreter ends, it aborts the process.
    opened.close()
    return cast(IO[bytes], pa.OSFile(str(path)))


def _ndjson(file: IO[bytes]) -> Iterator[Line]:
    # readline, because tell() fails while a file is iterated.
    for number, line in enumerate(iter(file.readline, b""), 1):
        if stripped := line.strip():
            yield number, stripped


def _csv(file: IO[bytes], columns: list[RemoteColumn]) -> Iterator[Line]:
    optional = [column.name for column in columns if column.type != "string"]
    try:
        reader = arrow_csv.open_csv(
            file,
            read_options=arrow_csv.ReadOptions(use_threads=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types={column.name: _csv_type(column) for column in columns}
            ),
        )
        names = reader.schema.names
        if len(set(names)) < len(names):
            raise InvalidEvents(f"the header names a column twice: {', '.join(names)}")
        number = 1
        for batch in reader:
            for row in batch.to_pylist():
                number += 1
                for name in optional:
                    if row.get(name) in _NO_VALUE:
                        row[name] = None
                yield number, as_line(row)
    except pa.ArrowInvalid as error:
        raise InvalidEvents(_csv_reason(str(error))) from None


def _csv_reason(said: str) -> str:
    """Reword pyarrow's error: it counts columns from 0, and rows as lines of the file."""
    if found := _CSV_CELL.search(said):
        return f"line {found[2]}, column {int(found[1]) + 1}: {found[4]}, expected {found[3]}"
    if found := _CSV_ROW.search(said):
        return f"line {found[1]}: {found[2]}"
    return f"not readable as CSV: {said}"


def _csv_type(column: RemoteColumn) -> pa.DataType:
    """The type to read. Numbers become JSON numbers; all else stays text for the node to check."""
    match column.type:
        case "int8" | "int16" | "int32" | "int64":
            return pa.int64()
        case "float" | "double":
            return pa.float64()
        case "bool":
            return pa.bool_()
        case nested if nested.startswith(("list", "struct")):
            raise InvalidEvents(f"column {column.name!r} is nested; send NDJSON instead of CSV")
        case _:
            return pa.string()


# -- Parquet ---------------------------------------------------------------------------------------


class ParquetSource:
    """A Parquet file. The node takes its columns as they are, or names one that it cannot take.

    Raises ConfigError when the file cannot be opened.
    """

    unit = "row"

    def __init__(self, path: Path) -> None:
        self._bytes, self._read = 0, 0
        try:
            self._bytes = path.stat().st_size
            self._file = parquet.ParquetFile(
                str(path), buffer_size=PAGE_BUFFER_BYTES, pre_buffer=False
            )
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
        except pa.ArrowException as error:
            raise ConfigError(f"{path} is not readable as Parquet: {error}") from error

    def parts(self, rows: int, columns: Callable[[], list[RemoteColumn]]) -> Iterator[Part]:
        try:
            for batch in self._file.iter_batches(batch_size=rows, use_threads=False):
                first = self._read + 1
                self._read += batch.num_rows
                yield Part(range(first, self._read + 1), of_batch(batch))
        except (pa.ArrowException, OSError) as error:
            raise InvalidEvents(f"not readable as Parquet: {error}") from None

    def tell(self) -> int:
        rows: int = self._file.metadata.num_rows
        return self._bytes * self._read // max(1, rows)

    def close(self) -> None:
        self._file.close()
