"""A store of snapshots in memory: the second implementation of ``snapshot.service.RevisionStore``.

It keeps the rules of the database: a draft is visible only after it is complete, a new draft
removes the others, and a chunk that a revision needs is not deleted. A call may fail before or
after its effect, or a long one for its length. The content of the database may be damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import TypeVar

from ha_engine.errors import DatabaseUnreachable, DraftLost
from ha_engine.types import Chunk, Collected, Holder, Position, Revision

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DISTRUSTED = b""


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


class Revisions:
    """``before_call`` is called before and after the effect of each call, and may raise."""

    def __init__(self, random: Random, counts: Counter[str], group_id: str) -> None:
        self._random, self._counts, self._group_id = random, counts, group_id
        self.rows: dict[int, Row] = {}
        self._chunks: dict[bytes, Chunk] = {}
        self._newest = 0
        # The chunks that were deleted, and those that were damaged.
        self._taken, self._bad = set[bytes](), set[Chunk]()
        self.failure_rate = 0.0
        self.is_down = False
        self.before_call: Callable[[], None] = lambda: None

    # -- RevisionStore -----------------------------------------------------------------------------

    def begin(self, taken_by: str) -> int:
        def work() -> int:
            self.rows = {number: row for number, row in self.rows.items() if row.visible}
            self._newest += 1
            self.rows[self._newest] = Row(taken_by)
            return self._newest

        return self._call(work)

    def refer(self, draft: int, digests: Iterable[bytes]) -> set[bytes]:
        wanted = set(digests)

        def work() -> set[bytes]:
            sound = {digest for digest in wanted if self._is_sound(digest)}
            self._draft(draft).digests |= sound
            return wanted - self._draft(draft).digests

        return self._call(work)

    def collect(self) -> int:
        def work() -> int:
            needed = {digest for row in self.rows.values() for digest in row.digests}
            unused = set(self._chunks) - needed
            for digest in unused:
                del self._chunks[digest]
            return len(unused)

        return self._call(work)

    def add(self, draft: int, chunks: Sequence[Chunk]) -> None:
        def work() -> None:
            row = self._draft(draft)
            for chunk in chunks:
                if not self._is_sound(chunk.digest):
                    self._chunks[chunk.digest] = chunk
                row.digests.add(chunk.digest)

        self._call(work, length=len(chunks))

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

        self._call(work)

    def show(self, draft: int, holder: Holder, epoch: int) -> bool:
        def work() -> bool:
            if draft not in self.rows:
                raise DraftLost("the draft is gone")
            assert self.rows[draft].manifest is not None, "an incomplete draft is shown"
            self.rows[draft].visible = True
            return True

        return self._call(work)

    def forget(self, keep: int) -> Collected:
        def work() -> int:
            old = self.visible[keep:]
            for number in old:
                del self.rows[number]
            return len(old)

        return Collected(self._call(work), self.collect())

    def revisions(self) -> list[Revision]:
        return self._call(lambda: [self._revision(number) for number in self.visible])

    def manifest(self, revision_id: int) -> tuple[bytes, bytes] | None:
        found = self.rows.get(revision_id)
        return self._call(lambda: found.manifest if found else None)

    def group_id(self) -> str | None:
        return self._call(lambda: self._group_id)

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, Chunk]:
        found = {digest: self._chunks[digest] for digest in digests if digest in self._chunks}
        return self._call(lambda: found, length=len(digests))

    def pin(self, revision_id: int, seconds: float) -> bool:
        return self._call(lambda: revision_id in self.rows)

    def distrust(self, damaged: Chunk) -> None:
        def work() -> None:
            if self._chunks.get(damaged.digest) == damaged:
                self._chunks[damaged.digest] = replace(damaged, stored=DISTRUSTED)

        self._call(work)

    def close(self) -> None:
        pass

    # -- faults and judges -------------------------------------------------------------------------

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

    def _call(self, work: Callable[[], T], length: int = 1) -> T:
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
