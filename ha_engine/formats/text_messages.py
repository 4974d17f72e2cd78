"""Read messages of JSON, NDJSON and CSV."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence

from ha_engine.errors import ConfigError
from ha_engine.formats.csv_rows import CsvColumn, CsvRows, whole_rows
from ha_engine.formats.json_rows import BadRow, objects_of
from ha_engine.formats.lines import LINE_BYTES_MAX, Line, lines_of

_BLANK = b" \t\r\n"


class JsonMessages:
    """Messages of JSON."""

    def rows(self, message: bytes) -> Iterable[bytes]:
        """The object that ``message`` is, or each object of its array. Raises BadRow."""
        if message.startswith(b"{") and message.endswith(b"}") and b"\n" not in message:
            return (message,)  # the decoder of lines says whether it is one object
        try:
            return [row.encode() for row in objects_of(message.decode())]
        except UnicodeDecodeError as error:
            raise BadRow(f"byte {error.start} of the message is not UTF-8") from None
        except json.JSONDecodeError as error:
            raise BadRow(f"{error.msg} at line {error.lineno} column {error.colno}") from None
        except RecursionError:
            raise BadRow("the message is nested too deep") from None


class NdjsonMessages:
    """Messages of JSON objects, one on each line."""

    def rows(self, message: bytes) -> Iterable[bytes]:
        """Yield the lines of ``message`` that are not blank."""
        yield from filter(None, (line.strip(_BLANK) for line in message.split(b"\n")))


class CsvMessages:
    """Messages of CSV. ``names`` are the columns of a message without a header line.

    The constructor raises ConfigError if ``names`` has a column twice, or one that the stream
    lacks.
    """

    def __init__(
        self, columns: Sequence[CsvColumn], names: Sequence[str] | None, delimiter: str
    ) -> None:
        self._columns, self._delimiter = columns, delimiter
        self._known = {column.name for column in columns}
        self._header = None
        if names is not None:
            try:
                self._require_known(names)
                self._header = delimiter.join(names).encode()
                self._rows(self._header)
            except BadRow as bad:
                raise ConfigError(f"format.columns: {bad}") from None

    def rows(self, message: bytes) -> Iterable[bytes | BadRow]:
        """Yield the rows of ``message``, and a BadRow for each bad one. Raises BadRow."""
        lines = lines_of(io.BytesIO(message))
        header = self._header
        if header is None:
            first = next(lines, None)
            if first is None:
                return
            header = first.raw
        rows = self._rows(header)
        # Each row repeats the names of the header. A long name that no column has would therefore
        # multiply the size of a message.
        self._require_known(rows.names)
        for gathered in whole_rows(lines, rows.is_row):
            yield from _csv_row(rows, gathered)

    def _rows(self, header: bytes) -> CsvRows:
        return CsvRows(header, self._columns, self._delimiter)

    def _require_known(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._known:
                raise BadRow(
                    f"the stream takes no column {name[:100]!r} from the message; it takes "
                    f"{', '.join(sorted(self._known))}"
                )


def _csv_row(rows: CsvRows, lines: list[Line]) -> Iterator[bytes | BadRow]:
    raw = b"".join(line.raw for line in lines)
    if not raw.strip(b"\r\n"):
        return
    if not all(line.is_whole for line in lines):
        yield BadRow(f"a line is longer than {LINE_BYTES_MAX} bytes", raw)
        return
    try:
        yield rows.to_json(raw)
    except BadRow as bad:
        yield BadRow(str(bad), raw)
