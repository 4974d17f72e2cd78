"""The ledger of the objects that a source has read, in bounded space.

An offset cannot name each of a million objects. The ledger is an invertible Bloom lookup table
(Goodrich and Mitzenmacher, 2011): each entry is added to four cells, which keep the number and the
exclusive or of their entries. The difference of two tables is the table of the entries that only
one of them has. If these are few, cells with a single entry are found, and taken away, until none
is left. So the ledger and a listing of the store tell exactly which objects appeared and which
disappeared since, whatever the number of the others.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

ENTRIES_MAX = 50
"""So many entries that only one of two ledgers has are almost certainly found."""
_WAYS, _WAY_CELLS = 4, 40
_CELL = struct.Struct(">iQII")


class Entry(NamedTuple):
    """An object: digests of its key and of its version."""

    key: int
    version: int

    @classmethod
    def of(cls, key: str, version: str) -> Entry:
        return cls(_digest(key.encode(), 8), _digest(version.encode(), 4))


class Difference(NamedTuple):
    """The entries that only the first or only the second of two ledgers has."""

    first: frozenset[Entry]
    second: frozenset[Entry]


class Ledger:
    """A set of entries, from which those of another ledger can be subtracted."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._cells = [(0, 0, 0, 0)] * (_WAYS * _WAY_CELLS)
        for entry in entries:
            self.add(entry)

    @classmethod
    def parse(cls, text: str) -> Ledger:
        """Raises ValueError if ``text`` is no ledger."""
        ledger = cls()
        try:
            content = zlib.decompress(base64.b64decode(text, validate=True))
            cells = [(n, k, v, c) for n, k, v, c in _CELL.iter_unpack(content)]
        except (zlib.error, struct.error) as error:
            raise ValueError(str(error)) from error
        if len(cells) != len(ledger._cells):
            raise ValueError(f"a ledger has {len(ledger._cells)} cells, not {len(cells)}")
        ledger._cells = cells
        return ledger

    @property
    def text(self) -> str:
        content = b"".join(_CELL.pack(*cell) for cell in self._cells)
        return base64.b64encode(zlib.compress(content)).decode()

    def add(self, entry: Entry) -> None:
        self._change(entry, 1)

    def remove(self, entry: Entry) -> None:
        """Remove ``entry``, which was added before."""
        self._change(entry, -1)

    def minus(self, other: Ledger) -> Difference | None:
        """Return the entries that only one of the ledgers has, or None if these are too many."""
        left = Ledger()
        left._cells = [
            (a[0] - b[0], a[1] ^ b[1], a[2] ^ b[2], a[3] ^ b[3])
            for a, b in zip(self._cells, other._cells, strict=True)
        ]
        return left._taken_apart()

    def _taken_apart(self) -> Difference | None:
        found: dict[int, set[Entry]] = {1: set(), -1: set()}
        waiting = list(range(len(self._cells)))
        while waiting:
            at = waiting.pop()
            count, key, version, check = self._cells[at]
            entry = Entry(key, version)
            if abs(count) != 1 or _places(entry)[1] != check or at not in _places(entry)[0]:
                continue
            found[count].add(entry)
            self._change(entry, -count)
            waiting += _places(entry)[0]
        if any(cell != (0, 0, 0, 0) for cell in self._cells):
            return None
        return Difference(frozenset(found[1]), frozenset(found[-1]))

    def _change(self, entry: Entry, by: int) -> None:
        places, check = _places(entry)
        for at in places:
            count, key, version, checks = self._cells[at]
            self._cells[at] = (
                count + by,
                key ^ entry.key,
                version ^ entry.version,
                checks ^ check,
            )


def _places(entry: Entry) -> tuple[tuple[int, ...], int]:
    """The cells of ``entry``, one in each quarter of the table, and its check digest."""
    digest = hashlib.blake2b(struct.pack(">QI", *entry), digest_size=20).digest()
    *values, check = struct.unpack(">5I", digest)
    return tuple(way * _WAY_CELLS + one % _WAY_CELLS for way, one in enumerate(values)), check


def _digest(content: bytes, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=size).digest())
