"""Read a file of events part by part: NDJSON and CSV as lines of JSON, Parquet as Arrow.

The module ``ha_engine.formats.csv_rows`` has the rules for CSV. The node checks all values,
including those of Parquet files. Lines of text and rows of Parquet are numbered from 1. Only one
part of a file is in memory at a time, and for Parquet the pages that contain that part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as parquet

from ha_engine.client.payload import Payload, of_batch, of_lines
from ha_engine.client.transport import RemoteColumn
from ha_engine.errors import ConfigError, InvalidEvents
from ha_engine.formats.csv_rows import CsvColumn, CsvRows, whole_rows
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.lines import LINE_BYTES_MAX, lines_of

FORMATS = {
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".parquet": "parquet",
    ".pq": "parquet",
}
PAGE_BUFFER_BYTES = 1 << 20

Line = tuple[int, bytes]
"""The number of a line in the file, and the line's event as one line of JSON."""


class Part(NamedTuple):
    """The rows of one request, and the line or row number of each in the file."""

    numbers: Sequence[int]
    payload: Payload


class Source(Protocol):
    """A file of events. ``unit`` says whether the numbers of its parts count lines or rows."""

    unit: str

    def parts(self, rows: int, columns: Callable[[], list[RemoteColumn]]) -> Iterator[Part]:
        """Yield parts of at most ``rows`` rows. ``columns`` returns the columns of the stream, and
        is called only if needed.

        Raises InvalidEvents.
        """

    def tell(self) -> int:
        """The approximate number of bytes read from the file."""

    def close(self) -> None: ...


def open_source(path: Path | None, form: str) -> Source:
    """Open the file at ``path``, or standard input if ``path`` is None. ``form`` names the format
    of the file, or is ``auto``. Raises ConfigError."""
    match _form(path, form), path:
        case "parquet", None:
            raise ConfigError("Parquet cannot be read from standard input; name the file")
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
        raise ConfigError(f"the file name {path.name!r} does not show the format; add --format")
    return found


# -- lines -----------------------------------------------------------------------------------------


class TextSource:
    """A file of NDJSON or CSV. Raises ConfigError when the file cannot be opened."""

    unit = "line"

    def __init__(self, path: Path | None, form: str) -> None:
        self._form, self._seekable = form, path is not None
        self._file = _opened(path)

    def parts(self, rows: int, columns: Callable[[], list[RemoteColumn]]) -> Iterator[Part]:
        lines = _ndjson(self._file) if self._form == "ndjson" else _csv(self._file, columns())
        while batch := list(islice(lines, rows)):
            yield Part([number for number, _ in batch], of_lines([line for _, line in batch]))

    def tell(self) -> int:
        return self._file.tell() if self._seekable else 0

    def close(self) -> None:
        self._file.close()


def _opened(path: Path | None) -> BinaryIO:
    if path is None:
        return open(0, "rb", closefd=False)
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _ndjson(file: BinaryIO) -> Iterator[Line]:
    # The loop calls readline, because tell() fails while a file is iterated.
    for number, line in enumerate(iter(file.readline, b""), 1):
        if stripped := line.strip():
            yield number, stripped


def _csv(file: BinaryIO, columns: list[RemoteColumn]) -> Iterator[Line]:
    known = [CsvColumn(column.name, column.type, column.nullable) for column in columns]
    lines = lines_of(file)
    header = next(lines, None)
    if header is None:
        return
    number = 1
    try:
        rows = CsvRows(header.raw, known)
        for row in whole_rows(lines, rows.is_row):
            number += 1
            if not all(line.is_whole for line in row):
                raise BadRow(f"a line is longer than {LINE_BYTES_MAX} bytes")
            raw = row[0].raw if len(row) == 1 else b"".join(line.raw for line in row)
            if raw.strip():
                yield number, rows.to_json(raw)
            number += len(row) - 1
    except BadRow as bad:
        raise InvalidEvents(f"line {number}: {bad}") from None


# -- Parquet ---------------------------------------------------------------------------------------


class ParquetSource:
    """A Parquet file, whose columns are sent unchanged. The node names a column that it cannot
    accept.

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
