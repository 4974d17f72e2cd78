"""The admitted batches of one query, in memory and on disk.

The caller, ``Outbox``, holds its lock during each call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from google_crc32c import value as crc32c

from ha_engine.errors import OutboxDamaged
from ha_engine.outbox.batch_file import read_batch_file
from ha_engine.system.disk import disk
from ha_engine.system.files import CREATE, OS_FILES, Files, make_directory, read_file, write_all

DIGESTS_KEPT = 1024
"""Number of trimmed batches whose digests are kept, to judge a late second attempt."""

_BATCH, _DIGEST = re.compile(r"(\d+)\.arrow"), re.compile(r"(\d+)\.digest")
_LEFT = re.compile(r"(\d+)\.left")
_DIGEST_TEXT = re.compile(r"([0-9a-f]{32}|uncompared) ([0-9a-f]{8})")
SHADOW_FILE = "shadow"
"""An empty file in the outbox of a shadow. A late file of its query process does not make one."""
DROPPED = ".dropped-"
"""Prefix of the directory of a query whose deletion has begun."""


@dataclass(frozen=True, slots=True)
class OutboxBatch:
    """The Arrow IPC file of one batch; ``bytes`` is its size."""

    path: Path
    rows: int
    bytes: int


class QueryOutbox:
    """The admitted batches of one query.

    Invariant: ``batches`` has exactly the numbers from ``floor`` + 1 to ``last`` (RULES.md#r19).
    """

    def __init__(self, place: Path, files: Files = OS_FILES) -> None:
        self._place, self._files = place, files
        self.batches: dict[int, OutboxBatch] = {}
        self.digests: dict[int, str] = {}
        self.floor = 0
        self.last = 0
        # The highest trimmed batch, which the name of an empty file records.
        self.trimmed_through = 0
        self.bytes = 0
        # Whether the entry of the query's own directory is durable.
        self._is_reachable = False

    @classmethod
    def open(cls, place: Path, living: str | None, files: Files = OS_FILES) -> QueryOutbox:
        """Read the directory of a query.

        Delete pending files, except those that incarnation ``living`` wrote.
        """
        query_outbox = cls(place, files)
        with disk(place):
            # A process that was killed may have admitted a batch without making it durable.
            query_outbox._make_durable()
            query_outbox._sweep(living)
            for number, path in batch_paths(place):
                query_outbox._put(number, batch_at(path, files))
            query_outbox.digests = dict(query_outbox._whole_digests())
            query_outbox.trimmed_through = max(
                (number for number, _ in _numbered(place, _LEFT)), default=0
            )
            query_outbox._trim_again()
            query_outbox.last = max(query_outbox.last, query_outbox.trimmed_through)
            query_outbox._forget_digests_beyond_last()
        query_outbox.floor = min(query_outbox.batches, default=query_outbox.trimmed_through + 1) - 1
        query_outbox.require_no_gap()
        return query_outbox

    def _trim_again(self) -> None:
        """Complete a trim beyond the last batch, in which a process ended. The batches that it left
        would be before a gap."""
        if self.trimmed_through > self.last:
            for number in list(self.batches):
                self._take(number)

    def _forget_digests_beyond_last(self) -> None:
        """Delete the digests of batches of which the disk has no other trace.

        A loss of power can undo the deletion of a query's directory, and keep of it the deletion of
        a trimmed batch but not the record of the trim. The query begins again at batch 1 then, and
        the old digest would be that of the new batch.
        """
        for number in [number for number in self.digests if number > self.last]:
            del self.digests[number]
            self._files.unlink(self._place / f"{number}.digest")

    def require_no_gap(self) -> None:
        """Raise OutboxDamaged if a batch between ``floor`` and ``last`` is missing."""
        for number in range(self.floor + 1, self.last + 1):
            if number not in self.batches:
                raise OutboxDamaged(
                    f"batch {number} is missing in {self._place}, but later batches are there; "
                    "stop the node and restore it from its peer or a snapshot"
                )

    def add(self, pending: OutboxBatch, digest: str | None) -> None:
        """Admit the next batch: rename its pending file to the batch's number, durably."""
        number = self.last + 1
        path = self._place / f"{number}.arrow"
        with disk(self._place):
            try:
                self._files.rename(pending.path, path)
            except FileNotFoundError:
                raise OutboxDamaged(
                    f"{pending.path} is missing; the query must write batch {number} again"
                ) from None
            self._make_durable()
        self._put(number, replace(pending, path=path))
        if digest is not None:
            self.keep_digest(number, digest)

    def restore(self, left: int, batches: Sequence[OutboxBatch]) -> list[OutboxBatch]:
        """Trim up to ``left``, then admit those of ``batches`` that follow the last batch.

        ``batches`` are those after ``left``, in order.
        """
        with disk(self._place):
            make_directory(self._place, files=self._files)
        self.trim(left)
        had = self.last
        for batch in batches[had - left :]:
            self.add(batch, None)
        return [self.batches[number] for number in range(had + 1, self.last + 1)]

    def begin_shadow(self) -> None:
        """Mark the directory as the outbox of a shadow, durably."""
        with disk(self._place):
            make_directory(self._place, files=self._files)
            if not self.is_shadow:
                self._files.open(self._place / SHADOW_FILE, CREATE).close()
                self._files.fsync_directory(self._place)

    @property
    def is_shadow(self) -> bool:
        return (self._place / SHADOW_FILE).exists()

    def continue_with(self, shadow: QueryOutbox, after: int) -> None:
        """Replace the batches above ``after`` by those of ``shadow`` with the same numbers
        (RULES.md#r38).

        The batches are removed from the end, and those of the shadow are linked from the
        beginning, so a crash leaves no gap. The call can be repeated while the shadow is there.
        """
        with disk(self._place):
            make_directory(self._place, files=self._files)
        base = max(self.floor, min(after, self.last))
        if shadow.last > base:
            # Every sink has the batches that the shadow no longer keeps.
            base = max(base, shadow.floor)
        self.trim(base)
        with disk(self._place):
            for number in range(self.last, base, -1):
                self._take(number)
                if self.digests.pop(number, None) is not None:
                    self._files.unlink(self._place / f"{number}.digest", missing_ok=True)
            self.last = base
            for number in range(base + 1, shadow.last + 1):
                path, batch = self._place / f"{number}.arrow", shadow.batches[number]
                self._files.unlink(path, missing_ok=True)
                self._files.link(batch.path, path)
                self._put(number, replace(batch, path=path))
            self._make_durable()
        for number in range(base + 1, shadow.last + 1):
            if (digest := shadow.digests.get(number)) is not None:
                self.keep_digest(number, digest)

    def _make_durable(self) -> None:
        """Make the entries of the query's directory durable, and once its own entry, which the
        query process made."""
        self._files.fsync_directory(self._place)
        if not self._is_reachable:
            self._files.fsync_directory(self._place.parent)
            self._is_reachable = True

    def keep_digest(self, number: int, digest: str) -> None:
        """Write the digest file of an admitted batch, unless the batch has one."""
        if number in self.digests or not 0 < number <= self.last:
            return
        path = self._place / f"{number}.digest"
        with disk(self._place):
            # The digest file is not fsynced, because a lost digest is computed again from the batch
            # file.
            unfinished = path.with_suffix(".digest-unfinished")
            with self._files.open(unfinished, CREATE) as file:
                write_all(file, with_checksum(digest))
            self._files.rename(unfinished, path)
        self.digests[number] = digest

    def trim(self, through: int) -> None:
        """Delete all remaining batches up to ``through``."""
        if through <= self.floor:
            return
        trimmed = range(self.floor + 1, min(through, self.last) + 1)
        # A delivery in another thread that misses a batch must see that the batch is trimmed.
        self.floor, self.last = through, max(self.last, through)
        with disk(self._place):
            self._note_trimmed(through)
            for number in trimmed:
                self._take(number)
            for number in [n for n in self.digests if n <= through - DIGESTS_KEPT]:
                del self.digests[number]
                self._files.unlink(self._place / f"{number}.digest", missing_ok=True)

    def begin_after(self, floor: int) -> None:
        """Set the floor to the number that the core computes at the start of the node.

        Raises OutboxDamaged if a batch after the floor is missing.
        """
        self.trim(floor)
        self.floor = floor
        self.require_no_gap()

    def remove(self) -> None:
        """Delete the whole directory. A crash leaves all of the batches or none."""
        with disk(self._place):
            if self._place.exists():
                dropped = self._place.with_name(f"{DROPPED}{self._place.name}")
                self._files.rename(self._place, dropped)
                self._files.fsync_directory(self._place.parent)
                self._files.rmtree(dropped)

    def _put(self, number: int, batch: OutboxBatch) -> None:
        self.batches[number] = batch
        self.bytes += batch.bytes
        self.last = max(self.last, number)

    def _note_trimmed(self, through: int) -> None:
        """Record the highest trimmed batch in the name of an empty file.

        The file is not fsynced, because after a power loss the journal has the number in most
        cases.
        """
        if through > self.trimmed_through and self._place.is_dir():
            self._files.open(trimmed_file(self._place, through), CREATE).close()
            former = trimmed_file(self._place, self.trimmed_through)
            self._files.unlink(former, missing_ok=True)
            self.trimmed_through = through

    def _take(self, number: int) -> None:
        batch = self.batches.pop(number, None)
        if batch is not None:
            self.bytes -= batch.bytes
            self._files.unlink(batch.path, missing_ok=True)

    def _sweep(self, living: str | None) -> None:
        for path in (self._place / "pending").glob("*"):
            if living is None or f".{living}." not in path.name:
                self._files.unlink(path, missing_ok=True)

    def _whole_digests(self) -> Iterator[tuple[int, str]]:
        """Yield the complete digests. Delete a digest file that is damaged or empty.

        A deleted digest is computed again when it is needed.
        """
        for number, path in _numbered(self._place, _DIGEST):
            if (digest := read_digest(path, self._files)) is not None:
                yield number, digest
            else:
                self._files.unlink(path)


def batch_at(path: Path, files: Files) -> OutboxBatch:
    """The batch in a file, which is read whole to prove that it is undamaged."""
    return OutboxBatch(path, read_batch_file(path, files).num_rows, path.stat().st_size)


def batch_paths(place: Path) -> list[tuple[int, Path]]:
    """The numbers and the files of the admitted batches of a query, in order."""
    return _numbered(place, _BATCH)


def with_checksum(digest: str) -> bytes:
    """The content of a digest file."""
    return f"{digest} {crc32c(digest.encode()):08x}".encode()


def read_digest(path: Path, files: Files = OS_FILES) -> str | None:
    """The digest in a digest file, or None if the file is damaged, or was lost in a power loss."""
    text = read_file(path, files).decode("ascii", "replace").strip()
    if (match := _DIGEST_TEXT.fullmatch(text)) is None:
        return None
    digest, checksum = match.groups()
    return digest if int(checksum, 16) == crc32c(digest.encode()) else None


def trimmed_file(place: Path, through: int) -> Path:
    """The file whose name records that the query's batches up to ``through`` are trimmed."""
    return place / f"{through}.left"


def _numbered(place: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    found = ((pattern.fullmatch(path.name), path) for path in place.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)
