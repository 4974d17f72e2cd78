"""Combine pages of the table with the changes in the log, so that each row is read exactly once.

The initial read begins at the slot's first position and reads the table in pages, in the order of
the primary key. Pages and changes alternate. A page belongs to one MVCC snapshot, and so contains
the effect of exactly the transactions that its snapshot sees. A change of key ``k`` by transaction
``t`` is

- left out if no page has come to ``k`` yet: a later page contains it;
- left out if the last page has ``k``, and its snapshot sees ``t``: the page contains it;
- a row in every other case.

Two conditions make this exact.

1. A page must see each transaction that was passed in the log with a change left out for a later
   page. A transaction can be in the log before snapshots see it, for example while its session
   waits for a synchronous standby. ``hidden`` has these transactions, and the next page waits for
   them. A transaction that one snapshot sees is seen by every later snapshot.
2. No snapshot but the last page's may see a transaction that is still to come. So the next page
   waits until the log was read ``through`` the end that the WAL had when the snapshot was taken:
   whatever a snapshot sees has its commit record before that end.

The watermarks of DBLog (arXiv 2010.12597) are positions in the log. A snapshot's own list of
transactions is exact instead, since transactions do not become visible in the order of their
commit records.

A truncation removes all rows, and the initial read begins again behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

Key: TypeAlias = tuple[str, ...]
"""The values of the primary key, as PostgreSQL writes them."""


class Part(Enum):
    """The part of the table to which a key belongs, in the order of the primary key."""

    EARLIER = "in an earlier page"
    LAST = "in the last page"
    LATER = "in no page yet"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An MVCC snapshot, as pg_current_snapshot() describes it, with 64-bit transaction ids.

    The snapshot sees a committed transaction before ``xmax`` that is not in ``running``. ``xmin``
    is the first transaction in ``running``, or ``xmax``.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read ``xmin:xmax:xid,xid``."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, running.split(",") if running else ())))

    def whole(self, xid: int) -> int:
        """The 64-bit id of a transaction of the log, which is less than 2^31 away from ``xmax``."""
        distance = (xid - self.xmax + (1 << 31)) % (1 << 32) - (1 << 31)
        return self.xmax + distance

    def sees(self, xid: int) -> bool:
        """Whether the effect of the committed transaction ``xid``, of 32 or 64 bits, is visible."""
        full = self.whole(xid % (1 << 32))
        return full < self.xmin or (full < self.xmax and full not in self.running)


@dataclass(frozen=True, slots=True)
class Page:
    """The last page: it has the keys after ``after``, or from the first one if that is None."""

    after: Key | None
    snapshot: Snapshot
    through: int


@dataclass(frozen=True, slots=True)
class Initial:
    """The state of the initial read. Pages have the keys up to ``to``, or all keys if ``is_whole``.

    ``page`` is the last page until the log is read through it. ``hidden`` are transactions of the
    log, with changes left out for later pages, that snapshots did not see yet. ``order`` describes
    the primary key: with another one, ``to`` says nothing. An offset of an older version has none.
    """

    to: Key | None = None
    is_whole: bool = False
    page: Page | None = None
    hidden: frozenset[int] = frozenset()
    order: str | None = None

    @property
    def has_bounds(self) -> bool:
        """Whether the part of a key depends on the key."""
        if self.is_whole:
            return self.page is not None and self.page.after is not None
        return self.to is not None

    def contains(self, xid: int, part: Part) -> bool:
        """Whether a page contains, or will contain, a change by ``xid`` of a key in ``part``."""
        match part:
            case Part.EARLIER:
                return False
            case Part.LAST:
                return self.page is not None and self.page.snapshot.sees(xid)
            case Part.LATER:
                return True

    def with_page(
        self, to: Key | None, is_whole: bool, snapshot: Snapshot, through: int
    ) -> Initial:
        """The state after the next page, which ends at ``to``, or at the end if ``is_whole``."""
        page = Page(self.to, snapshot, through)
        return Initial(to, is_whole, page, order=self.order)

    def with_hidden(self, xids: Iterable[int]) -> Initial:
        return replace(self, hidden=frozenset(xids))

    def caught_up(self, lsn: int) -> Initial | None:
        """The state after the log before ``lsn``, or None if the initial read is complete."""
        if self.page is None or lsn < self.page.through:
            return self
        return None if self.is_whole else replace(self, page=None)

    def restarted(self, xid: int) -> Initial:
        """The state after a truncation by ``xid``."""
        return Initial(hidden=self.hidden | {xid}, order=self.order)

    def may_read(self, snapshot: Snapshot) -> bool:
        """Whether a page of ``snapshot`` sees all that was left out."""
        return all(snapshot.sees(xid) for xid in self.hidden)
