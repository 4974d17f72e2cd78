"""The source kind ``file`` reads the files of a directory in the order of their names, each once
and whole.

A file must be complete when its name appears, so programs create it under another name and rename
it. A file must not change after its name has appeared. The offset has the file's size and a digest
of its beginning. By size and digest the next active can check that it reads the same file.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field

from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.formats.csv_rows import CsvColumn, CsvRows, whole_rows
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.lines import LINE_BYTES_MAX, Line, lines_of
from ha_engine.plugins import Backlog, DeadLetter, SourceBatch, SourcePlace
from ha_engine.receive.pull.listing import LOOK_EVERY_SECONDS, Listing

CHUNK_BYTES = 4 << 20
HEAD_BYTES = 4 << 10
_BOM = b"\xef\xbb\xbf"


class FileOptions(BaseModel):
    """The options of the source kind ``file``. ``skip`` has the names of files to skip, even of a
    file that is partly read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Path
    format: Literal["ndjson", "csv"]
    pattern: str = "*"
    delimiter: str = Field(",", min_length=1, max_length=1)
    skip: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reached:
    """The offset of the source: ``bytes`` bytes and ``lines`` lines of ``file`` are read. ``done``
    is true when the whole file is read."""

    file: str
    size: int
    head: str
    bytes: int = 0
    lines: int = 0
    done: bool = False

    @classmethod
    def parse(cls, text: str) -> Reached:
        return cls(**json.loads(text))

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


class FileSource:
    """Implements ``plugins.SourcePlugin``."""

    Options = FileOptions
    guarantee = "exactly once, as long as every node sees the same files"

    def __init__(self, options: FileOptions, place: SourcePlace) -> None:
        self._options, self._schema = options, place.schema
        self._reached: Reached | None = None
        self._file: BinaryIO | None = None
        self._csv: CsvRows | None = None
        self._listing = self._new_listing()

    def open(self, offset: str | None) -> None:
        self.close()
        self._reached = None if offset is None else Reached.parse(offset)
        self._listing = self._new_listing()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        until = time.monotonic() + seconds
        while True:
            batch = self._next(rows_max)
            left = until - time.monotonic()
            if batch is not None or left <= 0:
                return batch
            time.sleep(min(LOOK_EVERY_SECONDS, left))

    def check(self) -> None:
        try:
            os.listdir(self._options.directory)
        except OSError as error:
            raise SourceUnavailable(
                f"{self._options.directory} cannot be read: {error.strerror}"
            ) from error

    def peek(self, offset: str | None, rows_max: int, seconds: float) -> SourceBatch | None:
        self.open(offset)
        return self.read(rows_max, seconds)

    def _next(self, rows_max: int) -> SourceBatch | None:
        reached = self._reached
        self._listing.look("" if reached is None else reached.file)
        if reached is not None and (late := self._listing.take_late()):
            return SourceBatch(reached.text, dead_letters=[_too_late(n, reached) for n in late])
        if reached is None or reached.done or reached.file in self._options.skip:
            reached = self._begin(reached)
        if reached is None:
            return None
        batch, self._reached = self._chunk(reached, rows_max)
        return batch

    # -- choice of the file ------------------------------------------------------------------------

    def _new_listing(self) -> Listing:
        options = self._options
        return Listing(options.directory, options.pattern, options.skip)

    def _begin(self, last: Reached | None) -> Reached | None:
        """Open the next non-empty file and return the offset of its start, or None when no file is
        left."""
        name = self._listing.next_after("" if last is None else last.file)
        if name is None:
            return None
        self.close()
        file = self._opened(name)
        size, head = _identity(file)
        return self._past_header(file, Reached(name, size, head))

    def _resume(self, reached: Reached) -> BinaryIO:
        """Open the file that the offset ``reached`` names. Raises SourceRefused when the file has
        changed."""
        file = self._opened(reached.file)
        size, head = _identity(file)
        if (size, head) != (reached.size, reached.head):
            file.close()
            raise _changed(file, reached, size)
        self._past_header(file, reached)
        return file

    def _opened(self, name: str) -> BinaryIO:
        path = self._options.directory / name
        try:
            return path.open("rb")
        except FileNotFoundError as error:
            raise SourceUnavailable(
                f"{path} is missing and was not read to its end; bring it back, or name the file "
                "in skip"
            ) from error
        except OSError as error:
            raise SourceUnavailable(f"{path} cannot be read: {error.strerror}") from error

    def _past_header(self, file: BinaryIO, reached: Reached) -> Reached:
        """Keep ``file`` open, whose read position is 0, and read its header, if the format has
        one."""
        self._file, self._csv = file, None
        if self._options.format != "csv":
            return reached
        try:
            columns = [CsvColumn(one.name, str(one.type), one.nullable) for one in self._schema]
            self._csv = CsvRows(file.readline(LINE_BYTES_MAX), columns, self._options.delimiter)
        except BadRow as bad:
            self.close()
            raise SourceRefused(f"the header of {file.name}: {bad}; name the file in skip") from bad
        return reached if reached.bytes else replace(reached, bytes=file.tell(), lines=1)

    # -- rows --------------------------------------------------------------------------------------

    def _chunk(self, reached: Reached, rows_max: int) -> tuple[SourceBatch, Reached]:
        file = self._file or self._resume(reached)
        chunk = _Chunk(reached)
        try:
            file.seek(reached.bytes)
            for lines in self._rows(file):
                self._take(chunk, lines)
                if chunk.taken >= rows_max or chunk.at >= reached.bytes + CHUNK_BYTES:
                    break
            size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise SourceUnavailable(f"{file.name} cannot be read: {error.strerror}") from error
        if size != reached.size:
            self.close()
            raise _changed(file, reached, size)
        reached = chunk.end()
        unread = reached.size - reached.bytes + self._listing.bytes_after(reached.file)
        return chunk.batch(reached.text, unread), reached

    def _rows(self, file: BinaryIO) -> Iterator[list[Line]]:
        lines = lines_of(file)
        return whole_rows(lines, self._csv.is_row) if self._csv else ([line] for line in lines)

    def _take(self, chunk: _Chunk, lines: list[Line]) -> None:
        raw = lines[0].raw if len(lines) == 1 else b"".join(line.raw for line in lines)
        if not chunk.at:
            raw = raw.removeprefix(_BOM)
        try:
            if not all(line.is_whole for line in lines):
                raise BadRow(f"a line is longer than {LINE_BYTES_MAX} bytes")
            if raw.strip():
                chunk.add(raw.rstrip(b"\r\n") if self._csv is None else self._csv.to_json(raw))
        except BadRow as bad:
            chunk.reject(raw, str(bad))
        chunk.pass_over(lines)


@dataclass
class _Chunk:
    """Some rows of one file, from the offset ``began`` to byte ``at``, before which the file has
    ``line`` lines.

    ``numbers`` are the line numbers of the rows.
    """

    began: Reached
    rows: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    at: int = field(init=False)
    line: int = field(init=False)

    def __post_init__(self) -> None:
        self.at, self.line = self.began.bytes, self.began.lines

    @property
    def taken(self) -> int:
        """The number of rows in the chunk, including rejected ones."""
        return len(self.rows) + len(self.letters)

    def add(self, row: bytes) -> None:
        self.rows.append(row)
        self.numbers.append(self.line + 1)

    def reject(self, raw: bytes, reason: str) -> None:
        self.letters.append(DeadLetter(f"{self.began.file}:{self.line + 1}", reason, raw))

    def pass_over(self, lines: list[Line]) -> None:
        self.at += sum(line.size for line in lines)
        self.line += len(lines)

    def end(self) -> Reached:
        done = self.at >= self.began.size
        return replace(self.began, bytes=self.at, lines=self.line, done=done)

    def batch(self, offset: str, unread_bytes: int) -> SourceBatch:
        file, numbers = self.began.file, self.numbers
        return SourceBatch(
            offset,
            self.rows,
            self.letters,
            lambda row: f"{file}:{numbers[row]}",
            Backlog(bytes=unread_bytes),
        )


def _identity(file: BinaryIO) -> tuple[int, str]:
    """The size of ``file`` in bytes and a digest of its beginning. The read position of ``file`` is
    0 afterwards."""
    head = file.read(HEAD_BYTES)
    file.seek(0)
    return os.fstat(file.fileno()).st_size, hashlib.blake2b(head, digest_size=16).hexdigest()


def _changed(file: BinaryIO, reached: Reached, size: int) -> SourceRefused:
    return SourceRefused(
        f"{file.name} has changed since the node read it up to byte {reached.bytes} (it had "
        f"{reached.size} bytes, and has {size}); restore its content, or name the file in skip"
    )


def _too_late(name: str, reached: Reached) -> DeadLetter:
    last = reached.file
    reason = (
        f"the file appeared after {last} was read; give the file a name that sorts after {last}"
    )
    return DeadLetter(name, reason)
