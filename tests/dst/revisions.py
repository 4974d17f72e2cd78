"""A store of snapshots in memory: the second implementation of ``snapshot.service.RevisionStore``.

It keeps the rules of the database: a draft is visible only after it is complete, a new draft
removes the others, and a chunk that a revision needs is not deleted. The content of the database
may be damaged. Whoever makes the store decides which of its calls fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from random import Random
from typing import Protocol, TypeVar

from ha_engine.errors import ChunkDamaged, DatabaseUnreachable, DraftLost
from ha_engine.snapshot.chunks import unpack
from ha_engine.types import Chunk, Collected, Holder, Position, Revision

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DISTRUSTED = b""


def _is_whole(chunk: Chunk) -> bool:
    """Whether a chunk has its content in spite of the damage; the codec ignores some bits."""
    try:
        unpack(chunk)
    except ChunkDamaged:
        return False
    return True


@dataclass
class Row:
    """A draft, or a visible revision."""

    taken_by: str
    digests: set[bytes] = field(default_factory=set)
    position: Position | None = None
    last_mark: Position | None = None
    manifest: tuple[bytes, bytes] | None = None
    bytes_total: int = 0
    bytes_new: int = 0
    visible: bool = False
    damaged: bool = False


class Call(Protocol):
    """Makes a call of the database. ``length`` says how much longer it takes than a short one."""

    def __call__(self, work: Callable[[], T], length: int) -> T: ...


def at_once(work: Callable[[], T], length: int) -> T:
    return work()


class FailingCalls:
    """Calls that fail before or after their effect, or a long one for its length.

    ``before_call`` is called before and after the effect of each call, and may raise.
    """

    def __init__(self, random: Random, counts: Counter[str]) -> None:
        self._random, self._counts = random, counts
        self.failure_rate = 0.0
        self.is_down = False
        self.before_call: Callable[[], None] = lambda: None

    def __call__(self, work: Callable[[], T], length: int) -> T:
        self.before_call()
        failing = self._random.random() < self.failure_rate * min(length, 4)
        if self.is_down or (failing and self._random.random() < 0.5):
            self._counts["calls that failed"] += 1
            raise DatabaseUnreachable("the database does not answer")
        outcome = work()
        self.before_call()
        if failing:
            self._counts["commits in doubt"] += 1
            raise DatabaseUnreachable("the connection broke")
        return outcome


class Revisions:
    """``known_group`` returns the id of the group in the lease row, and ``holds`` whether a process
    holds the lease under an epoch."""

    def __init__(
        self,
        random: Random,
        known_group: Callable[[], str | None],
        holds: Callable[[Holder, int], bool],
        call: Call = at_once,
    ) -> None:
        self._random, self._known_group, self._holds, self._call = random, known_group, holds, call
        self.rows: dict[int, Row] = {}
        self._chunks: dict[bytes, Chunk] = {}
        self._numbers = count(1)
        # The chunks that were deleted, and those that were damaged.
        self._taken, self._bad = set[bytes](), set[Chunk]()

    def called_by(self, call: Call) -> Revisions:
        """The same store, for a caller whose calls ``call`` makes."""
        view = copy(self)
        view._call = call
        return view

    # -- RevisionStore -----------------------------------------------------------------------------

    def begin(self, taken_by: str) -> int:
        def work() -> int:
            self.remove_drafts()
            draft = next(self._numbers)
            self.rows[draft] = Row(taken_by)
            return draft

        return self._call(work, 1)

    def refer(self, draft: int, digests: Iterable[bytes]) -> set[bytes]:
        wanted = set(digests)

        def work() -> set[bytes]:
            sound = {digest for digest in wanted if self._is_sound(digest)}
            self._draft(draft).digests |= sound
            return wanted - self._draft(draft).digests

        return self._call(work, 1)

    def collect(self) -> int:
        def work() -> int:
            needed = {digest for row in self.rows.values() for digest in row.digests}
            unused = set(self._chunks) - needed
            for digest in unused:
                del self._chunks[digest]
            return len(unused)

        return self._call(work, 1)

    def add(self, draft: int, chunks: Sequence[Chunk]) -> None:
        def work() -> None:
            row = self._draft(draft)
            for chunk in chunks:
                if not self._is_sound(chunk.digest):
                    self._chunks[chunk.digest] = chunk
                row.digests.add(chunk.digest)

        self._call(work, len(chunks))

    def complete(
        self,
        draft: int,
        position: Position,
        last_mark: Position,
        manifest: bytes,
        manifest_digest: bytes,
        *,
        chunks: int,
        bytes_total: int,
        bytes_new: int,
    ) -> None:
        def work() -> None:
            row = self._draft(draft)
            if len({digest for digest in row.digests if self._is_sound(digest)}) != chunks:
                raise DraftLost("a part is missing")
            row.position, row.last_mark = position, last_mark
            row.manifest = manifest, manifest_digest
            row.bytes_total, row.bytes_new = bytes_total, bytes_new

        self._call(work, 1)

    def show(self, draft: int, holder: Holder, epoch: int) -> bool:
        def work() -> bool:
            if not self._holds(holder, epoch):
                return False
            if draft not in self.rows:
                raise DraftLost("the draft is gone")
            assert self.rows[draft].manifest is not None, "an incomplete draft is shown"
            self.rows[draft].visible = True
            return True

        return self._call(work, 1)

    def forget(self, keep: int) -> Collected:
        def work() -> int:
            old = self.visible[keep:]
            for number in old:
                del self.rows[number]
            return len(old)

        return Collected(self._call(work, 1), self.collect())

    def revisions(self) -> list[Revision]:
        return self._call(lambda: [self._revision(number) for number in self.visible], 1)

    def manifest(self, revision_id: int) -> tuple[bytes, bytes] | None:
        found = self.rows.get(revision_id)
        return self._call(lambda: found.manifest if found else None, 1)

    def group_id(self) -> str | None:
        return self._call(self._known_group, 1)

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, Chunk]:
        found = {digest: self._chunks[digest] for digest in digests if digest in self._chunks}
        return self._call(lambda: found, len(digests))

    def pin(self, revision_id: int, seconds: float) -> bool:
        return self._call(lambda: revision_id in self.rows, 1)

    def distrust(self, damaged: Chunk) -> None:
        def work() -> None:
            if self._chunks.get(damaged.digest) == damaged:
                self._chunks[damaged.digest] = replace(damaged, stored=DISTRUSTED)

        self._call(work, 1)

    def close(self) -> None:
        pass

    # -- faults and judges -------------------------------------------------------------------------

    def remove_drafts(self) -> None:
        for draft in [number for number, row in self.rows.items() if not row.visible]:
            del self.rows[draft]

    def lose(self, commits: int) -> int:
        """Lose the drafts and the newest visible revisions, and return how many of the latter."""
        self.remove_drafts()
        lost = self.visible[:commits]
        for number in lost:
            del self.rows[number]
        return len(lost)

    @property
    def visible(self) -> list[int]:
        """The visible revisions, newest first."""
        return sorted((n for n, row in self.rows.items() if row.visible), reverse=True)

    def is_damaged(self, number: int) -> bool:
        """Whether a revision cannot be restored. A writer may have mended its chunks meanwhile."""
        row = self.rows[number]
        return row.damaged or any(self._is_bad(digest) for digest in row.digests)

    def is_incomplete(self, number: int) -> bool:
        """Whether a revision lacks a chunk that nobody took away."""
        row = self.rows[number]
        return row.manifest is None or any(
            digest not in self._chunks and digest not in self._taken for digest in row.digests
        )

    def damage(self) -> str | None:
        """Damage a chunk or a manifest, and return what was done."""
        if not self.visible or not self._chunks:
            return None
        kind = self._random.choice(["corrupt", "missing", "swapped", "torn", "manifest"])
        if kind == "manifest":
            row = self.rows[self._random.choice(self.visible)]
            assert row.manifest is not None
            row.manifest, row.damaged = (self._flipped(row.manifest[0]), row.manifest[1]), True
            return kind
        digests = sorted(self._chunks)
        digest, other = self._random.choice(digests), self._random.choice(digests)
        chunk = self._chunks[digest]
        if kind == "missing":
            del self._chunks[digest]
            self._taken.add(digest)
            return kind
        if kind == "corrupt" and chunk.stored:
            bad = replace(chunk, stored=self._flipped(chunk.stored))
        elif kind == "swapped" and other != digest:
            bad = replace(self._chunks[other], digest=digest)
        elif kind == "torn" and chunk.stored:
            bad = replace(chunk, stored=chunk.stored[: self._random.randrange(len(chunk.stored))])
        else:
            return None
        if _is_whole(bad):
            return None
        self._chunks[digest] = bad
        self._bad.add(bad)
        return kind

    def _flipped(self, data: bytes) -> bytes:
        place = self._random.randrange(len(data))
        return (
            data[:place] + bytes([data[place] ^ 1 << self._random.randrange(8)]) + data[place + 1 :]
        )

    def _is_bad(self, digest: bytes) -> bool:
        chunk = self._chunks.get(digest)
        return chunk is None or chunk.stored == DISTRUSTED or chunk in self._bad

    def _is_sound(self, digest: bytes) -> bool:
        chunk = self._chunks.get(digest)
        return chunk is not None and chunk.stored != DISTRUSTED

    def _draft(self, number: int) -> Row:
        row = self.rows.get(number)
        if row is None or row.visible:
            raise DraftLost("the draft is gone")
        return row

    def _revision(self, number: int) -> Revision:
        row = self.rows[number]
        assert row.position is not None
        assert row.last_mark is not None
        sizes = row.bytes_total, row.bytes_new
        return Revision(number, row.taken_by, row.position, row.last_mark, NOW, NOW, *sizes, 0.0)
