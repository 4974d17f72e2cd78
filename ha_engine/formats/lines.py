"""Read the lines of a file with a limit on the memory of each line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

LINE_BYTES_MAX = 1 << 20
_PIECE_BYTES = 64 << 10


class Line(NamedTuple):
    """A line of ``size`` bytes.

    ``raw`` is the line's content, or only its beginning if the line exceeds LINE_BYTES_MAX.
    """

    raw: bytes
    size: int

    @property
    def is_whole(self) -> bool:
        return len(self.raw) == self.size


def lines_of(file: BinaryIO) -> Iterator[Line]:
    """Yield the lines of ``file`` from its current position.

    Only the last line of a file may lack a line break.
    """
    while raw := file.readline(LINE_BYTES_MAX):
        size = len(raw)
        if size == LINE_BYTES_MAX and not raw.endswith(b"\n"):
            raw = raw[:_PIECE_BYTES]
            while rest := file.readline(LINE_BYTES_MAX):
                size += len(rest)
                if rest.endswith(b"\n"):
                    break
        yield Line(raw, size)
