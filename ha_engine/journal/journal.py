"""The journal of one node is the ordered log of records on the node's disk. Every call blocks.

Code on an event loop must use writer.py instead. A journal knows no peers: its caller decides which
records are committed and which may be trimmed. One thread appends, syncs, truncates and trims. Any
thread may read and locate records that were appended before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from ha_engine.errors import DiskFailed, ForeignJournal, JournalDamaged
from ha_engine.journal import identity as identities
from ha_engine.journal import set_aside as given_up
from ha_engine.journal.identity import JournalIdentity
from ha_engine.journal.opening import Found, epochs_before, look, read_identity
from ha_engine.journal.reading import read_records
from ha_engine.journal.record import Frame, to_frame
from ha_engine.journal.segment import Segment, create, segment_paths, settle, truncate_file
from ha_engine.system.files import OS_FILES, Files, make_directory
from ha_engine.types import Extent, Position, Record

SEGMENT_SIZE = 64 << 20
log = logging.getLogger(__name__)


class Journal:
    """An open journal; ``Journal.open`` returns one.

    After a change that failed, the journal refuses every further call with DiskFailed. The state of
    the disk after a failed fsync is unknown, and a second fsync may report success for lost pages.
    """

    def __init__(
        self,
        directory: Path,
        identity: JournalIdentity,
        found: Sequence[Found],
        segment_size: int,
        files: Files,
    ) -> None:
        self._directory, self._identity, self._segment_size = directory, identity, segment_size
        self._files = files
        self._failure: str | None = None
        self._entry_pending = False
        # The tuple of segments is replaced and never changed in place, because readers in other
        # threads keep the tuple that they have.
        self._segments = tuple(
            Segment(one.path, one.journal_id, one.first, one.outline, files) for one in found
        )
        starts = [start for one in found for start in one.outline.epochs]
        self._epochs = (*epochs_before(identity, self.first), *starts)
        self._last = found[-1].outline.last
        self._torn = found[-1].torn

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        group: str,
        segment_size: int = SEGMENT_SIZE,
        files: Files = OS_FILES,
    ) -> Journal:
        """Open or create the journal in ``directory``, and truncate a torn tail, which ``torn``
        describes.

        Every byte is verified, and all remaining records are durable afterwards. Raises
        JournalDamaged with file and offset, ForeignJournal, UnknownJournalVersion, DiskFailed.
        """
        try:
            identity = read_identity(directory, group, files) or _create(directory, group, files)
            settle(segment_paths(directory)[-1], files)
            found = list(look(directory, identity, files=files))
            _mend(found[-1], identity, files)
            files.fsync_directory(directory)
            journal = cls(directory, identity, found, segment_size, files)
            journal._tail.open_for_append()
        except OSError as error:
            raise _disk_failed("opened", directory, error) from error
        return journal

    @staticmethod
    def create_after(
        directory: Path,
        base: Position,
        *,
        group: str,
        group_id: str,
        epochs: Sequence[Position],
        files: Files = OS_FILES,
    ) -> str:
        """Create a journal that begins after ``base``, and return its new id.

        ``epochs`` are the first positions of the epochs that began up to ``base``. Raises
        DiskFailed.
        """
        identity = JournalIdentity(group, group_id, str(uuid4()), epochs=tuple(epochs))
        try:
            _create_at(directory, identity, base.sequence + 1, files)
        except OSError as error:
            raise _disk_failed("made", directory, error) from error
        return identity.journal_id

    def close(self) -> None:
        """Close the files of the journal, without a sync."""
        for segment in self._segments:
            segment.close()

    # -- identity

    @property
    def journal_id(self) -> str:
        """UUID of this journal on this disk (RULES.md#r8)."""
        return self._identity.journal_id

    @property
    def group(self) -> str:
        return self._identity.group

    @property
    def group_id(self) -> str | None:
        """UUID of the group in its lease row (RULES.md#r6), or None until ``bind_group``."""
        return self._identity.group_id

    @property
    def torn(self) -> str | None:
        """Description of the torn tail that ``open`` truncated, or None if the journal had no torn
        tail."""
        return self._torn

    def bind_group(self, group_id: str) -> None:
        """Store durably that this journal belongs to the group with this id. Raises ForeignJournal,
        DiskFailed."""
        if self.group_id not in (None, group_id):
            raise ForeignJournal(
                f"the journal in {self._directory} belongs to the group {self.group_id}, but the "
                f"database knows {self.group} as {group_id}; check database.url, or give this "
                "node another data directory"
            )
        if self.group_id is None:
            self._store(replace(self._identity, group_id=group_id))

    def retire(self) -> str:
        """Give the journal a new journal_id, durably, so that a lease row with the old id no longer
        lists this journal (RULES.md#r8)."""
        former = tuple(dict.fromkeys(segment.journal_id for segment in self._segments))
        self._store(replace(self._identity, journal_id=str(uuid4()), former=former))
        return self.journal_id

    # -- records

    @property
    def first(self) -> int:
        """Sequence of the oldest record, or of the next one while the journal is empty."""
        return self._segments[0].first

    @property
    def last(self) -> Position:
        """The position of the newest record, durable or not, or ORIGIN in a new journal."""
        return self._last

    @property
    def epochs(self) -> tuple[Position, ...]:
        """The first position of each epoch, including epochs of trimmed records."""
        return self._epochs

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def read(
        self, first: int, last: int | None = None, *, payloads: bool = True
    ) -> Iterator[Record]:
        """The records ``first`` to ``last``, or to the newest one without ``last``; ``first`` must
        not be trimmed.

        Without ``payloads``, each record has an empty payload. Raises JournalDamaged, DiskFailed.
        """
        extents = self.locate(first, self.last.sequence if last is None else last)
        return _read(extents, payloads, self._files)

    def locate(self, first: int, last: int) -> list[Extent]:
        """The bytes of the records ``first`` to ``last``, one extent for each segment."""
        self._refuse_after_failure()
        segments = self._segments
        if first < segments[0].first:
            raise ValueError(f"record {first} was trimmed, the oldest is {segments[0].first}")
        last = min(last, self.last.sequence)
        return [
            segment.extent(max(first, segment.first), min(last, segment.last))
            for segment in segments
            if segment.first <= last and first <= segment.last
        ]

    # -- changes

    def append(self, records: Sequence[Record]) -> None:
        """Write ``records`` after the journal's last one; the next ``sync`` makes them durable.

        Raises DiskFailed, or AssertionError when ``records`` do not continue the journal.
        """
        self.append_frames([to_frame(record) for record in records])

    def append_frames(self, frames: Sequence[Frame]) -> None:
        """Like ``append``, for records that are already encoded."""
        check_follows(self._last, [frame.position for frame in frames])
        with self._fatal("written"):
            while frames:
                count = self._tail.fitting(frames, self._segment_size)
                if count == 0:
                    self._roll()
                    continue
                self._tail.append(frames[:count])
                self._note(frames[:count])
                frames = frames[count:]

    def sync(self) -> None:
        """Make all records appended so far durable. Raises DiskFailed."""
        with self._fatal("synced"):
            if self._entry_pending:
                self._files.fsync_directory(self._directory)
                self._entry_pending = False
            self._tail.sync()

    def truncate_after(self, sequence: int) -> None:
        """Remove every record after ``sequence``, durably. Raises DiskFailed, JournalDamaged."""
        if not self.first - 1 <= sequence <= self.last.sequence:
            raise AssertionError(
                f"cannot truncate after {sequence}: the journal has {self.first} to {self.last}"
            )
        with self._fatal("truncated"):
            # Segments are removed newest first, so that a crash at any point leaves a prefix of the
            # journal.
            while len(self._segments) > 1 and self._tail.first > sequence:
                self._drop_tail()
            if sequence < self._tail.last:
                self._tail.truncate_after(sequence)
        self._epochs = tuple(start for start in self._epochs if start.sequence <= sequence)
        self._last = Position(self._epochs[-1].epoch if self._epochs else 0, sequence)

    def give_up_after(self, sequence: int) -> Path:
        """Like truncate_after, for committed records that an operator gave up (RULES.md#r26).

        Returns the file that keeps the removed records. Before the truncation the journal gets a
        new id, because nothing that the lease row says about the old id is true any more
        (RULES.md#r8). Raises DiskFailed, JournalDamaged.
        """
        path = self.set_aside_after(sequence, self._directory)
        self.retire()
        self.truncate_after(sequence)
        return path

    def set_aside_after(self, sequence: int, directory: Path) -> Path:
        """Copy the records after ``sequence`` to a file in ``directory``.

        Raises DiskFailed, JournalDamaged.
        """
        first = next(iter(self.read(sequence + 1, sequence + 1, payloads=False))).position
        path = given_up.path_of(directory, first, self._last)
        with self._fatal("set aside"):
            extents = self.locate(first.sequence, self._last.sequence)
            given_up.set_aside(path, extents, self._files)
        return path

    def trim_before(self, sequence: int) -> None:
        """Remove whole segments whose records are all before ``sequence``, durably.

        The newest segment is never removed. Raises DiskFailed.
        """
        keep = [one for one in self._segments[:-1] if one.last >= sequence] + [self._tail]
        if not (gone := self._segments[: -len(keep)]):
            return
        trimmed = tuple(start for start in self._epochs if start.sequence < keep[0].first)
        self._store(replace(self._identity, epochs=trimmed))
        with self._fatal("trimmed"):
            self._segments = tuple(keep)
            for segment in gone:
                self._files.unlink(segment.path)
            self._files.fsync_directory(self._directory)

    # -- internals

    @property
    def _tail(self) -> Segment:
        return self._segments[-1]

    def _note(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if not self._epochs or frame.position.epoch > self._epochs[-1].epoch:
                self._epochs = (*self._epochs, frame.position)
        self._last = frames[-1].position

    def _roll(self) -> None:
        # The old segment is synced first, because a torn record is accepted only in the newest
        # segment.
        self._tail.sync()
        self._tail.close()
        self._add_segment(self._last.sequence + 1)
        self._entry_pending = True

    def _add_segment(self, first: int) -> None:
        path = create(self._directory, self.journal_id, first, self._files)
        segment = Segment.empty(path, self.journal_id, first, self._files)
        segment.open_for_append()
        self._segments = (*self._segments, segment)

    def _drop_tail(self) -> None:
        tail, self._segments = self._tail, self._segments[:-1]
        tail.close()
        self._files.unlink(tail.path)
        self._files.fsync_directory(self._directory)
        self._tail.open_for_append()

    def _store(self, identity: JournalIdentity) -> None:
        with self._fatal("written"):
            identities.store(self._directory, identity, self._files)
        self._identity = identity

    @contextmanager
    def _fatal(self, action: str) -> Iterator[None]:
        self._refuse_after_failure()
        try:
            yield
        except OSError as error:
            failed = _disk_failed(action, self._directory, error)
            self._failure = str(failed)
            raise failed from error
        except (DiskFailed, JournalDamaged) as error:
            # A read failed in the middle of the change.
            self._failure = str(error)
            raise

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise DiskFailed(self._failure)


def check_follows(last: Position, positions: Sequence[Position]) -> None:
    """Raise AssertionError, for an error of the caller, unless ``positions`` continue ``last``."""
    for position in positions:
        if position.sequence != last.sequence + 1 or position.epoch < last.epoch:
            raise AssertionError(f"record {position} does not follow {last}")
        last = position


def _create(directory: Path, group: str, files: Files) -> JournalIdentity:
    return _create_at(directory, JournalIdentity(group, None, str(uuid4())), 1, files)


def _create_at(
    directory: Path, identity: JournalIdentity, first: int, files: Files
) -> JournalIdentity:
    make_directory(directory, files=files)
    settle(create(directory, identity.journal_id, first, files), files)
    identities.store(directory, identity, files)
    # A process that was killed may have made the directory, but not its entry durable.
    files.fsync_directory(directory.parent)
    return identity


def _mend(tail: Found, identity: JournalIdentity, files: Files) -> None:
    if tail.torn is None:
        return
    log.warning("journal: %s; this torn tail was never acknowledged and is truncated", tail.torn)
    if tail.headless:
        settle(create(tail.path.parent, identity.journal_id, tail.first, files), files)
    else:
        truncate_file(tail.path, tail.outline.end, files)


def _read(extents: list[Extent], payloads: bool, files: Files) -> Iterator[Record]:
    for extent in extents:
        path = Path(extent.path)
        yield from read_records(path, extent.offset, extent.length, payloads=payloads, files=files)


def _disk_failed(action: str, directory: Path, error: OSError) -> DiskFailed:
    where = error.filename or directory
    return DiskFailed(
        f"the journal could not be {action} ({where}: {error.strerror}); check the disk and its "
        "free space, then start the node again"
    )
