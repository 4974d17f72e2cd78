"""Lines of a file, none of which takes more memory than it may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

LINE_BYTES_MAX = 1 << 20
_PIECE_BYTES = 64 << 10


class Line(NamedTuple):
    """``size`` bytes of the file, of which ``raw`` is all, or the beginning of what is too long."""

    raw: bytes
    size: int

    @property
    def is_whole(self) -> bool:
        return len(self.raw) == self.size


def lines_of(file: BinaryIO) -> Iterator[Line]:
    """From where ``file`` stands; line breaks included, but for the last one perhaps."""
    while raw := file.readline(LINE_BYTES_MAX):
        size = len(raw)
        if size == LINE_BYTES_MAX and not raw.endswith(b"\n"):
            raw = raw[:_PIECE_BYTES]
            while rest := file.readline(LINE_BYTES_MAX):
                size += len(rest)
                if rest.endswith(b"\n"):
                    break
        yield Line(raw, size)
