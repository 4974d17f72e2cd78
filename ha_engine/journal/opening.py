"""Reads and checks a journal directory without changing it; journal.py repairs a torn tail.

The node uses this module to open a journal for writing, and commands use it to inspect a journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ha_engine.errors import ForeignJournal, JournalDamaged
from ha_engine.journal import identity as identities
from ha_engine.journal.identity import JournalIdentity
from ha_engine.journal.reading import (
    FILE_HEADER_BYTES,
    FileHeader,
    Outline,
    SparseIndex,
    damage,
    read_file_header,
    scan,
)
from ha_engine.journal.record import BadFrame, NewerVersion
from ha_engine.journal.segment import segment_path, segment_paths
from ha_engine.journal.tail import describe_torn, is_torn_file_header
from ha_engine.system.files import OS_FILES, Files
from ha_engine.types import Position


@dataclass(frozen=True, slots=True)
class Found:
    """One segment as found on disk. ``torn`` describes the segment's torn tail, if it has one.

    ``headless`` is true if the segment is torn in its file header, so that it must be created
    again.
    """

    path: Path
    journal_id: str
    first: int
    outline: Outline
    torn: str | None = None
    headless: bool = False


def read_identity(
    directory: Path, group: str | None = None, files: Files = OS_FILES
) -> JournalIdentity | None:
    """The identity of the journal in ``directory``, or None if no journal was ever completely
    created there.

    Raises ForeignJournal when the journal is not of ``group``, JournalDamaged when files are
    missing, UnknownJournalVersion, OSError.
    """
    identity, paths = identities.load(directory, files), segment_paths(directory)
    if identity is None:
        if paths and not _is_unfinished(directory, paths):
            raise JournalDamaged(str(directory / identities.FILE_NAME), 0, "the file is missing")
        return None
    if group not in (None, identity.group):
        raise ForeignJournal(
            f"the journal in {directory} belongs to group {identity.group}, not to {group}; "
            f"set group: {identity.group}, or give this node another data directory"
        )
    if not paths:
        raise JournalDamaged(str(directory), 0, "all segments of the journal are missing")
    return identity


def look(
    directory: Path,
    identity: JournalIdentity,
    *,
    payloads: bool = True,
    files: Files = OS_FILES,
) -> Iterator[Found]:
    """Yield the segments, oldest first, each verified by itself and against the segment before it.

    Raises JournalDamaged with file and offset, UnknownJournalVersion, DiskFailed, OSError.
    """
    paths, last = segment_paths(directory), None
    for path in paths:
        found = _look_at(path, identity, last, path == paths[-1], payloads, files)
        yield found
        last = found.outline.last


def epochs_before(identity: JournalIdentity, first: int) -> list[Position]:
    """The first positions of the epochs that began in trimmed records, all before ``first``."""
    return [start for start in identity.epochs if start.sequence < first]


def _is_unfinished(directory: Path, paths: list[Path]) -> bool:
    # The first segment is created before the identity file, so a crash may leave a segment without
    # an identity file.
    begun = [segment_path(directory, 1)]
    return paths == begun and begun[0].stat().st_size <= FILE_HEADER_BYTES


def _look_at(
    path: Path,
    identity: JournalIdentity,
    last: Position | None,
    is_tail: bool,
    payloads: bool,
    files: Files,
) -> Found:
    first = int(path.stem)
    if last is None:
        before = epochs_before(identity, first)
        last = Position(before[-1].epoch if before else 0, first - 1)
    try:
        header = read_file_header(path, files)
    except BadFrame as error:
        if not is_tail or isinstance(error, NewerVersion) or not is_torn_file_header(path, files):
            raise damage(path, 0, error) from error
        _check_follows(path, first, last)
        torn = f"{path} ended inside its file header"
        outline = Outline(SparseIndex(first), last)
        return Found(path, identity.journal_id, first, outline, torn, headless=True)
    _check_place(path, header, identity, last)
    outline = scan(path, first, last.epoch, payloads=payloads, files=files)
    return Found(path, header.journal_id, first, outline, _torn(path, outline, is_tail, files))


def _torn(path: Path, outline: Outline, is_tail: bool, files: Files) -> str | None:
    if outline.bad is None:
        return None
    if not is_tail:
        raise damage(path, outline.end, outline.bad) from outline.bad
    return describe_torn(path, outline.end, outline.last.sequence + 1, outline.bad, files)


def _check_place(path: Path, header: FileHeader, identity: JournalIdentity, last: Position) -> None:
    if header.journal_id not in (identity.journal_id, *identity.former):
        raise JournalDamaged(
            str(path), 0, f"the segment is of another journal, {header.journal_id}"
        )
    if header.first != int(path.stem):
        reason = f"the first record is {header.first}, but the file name says {int(path.stem)}"
        raise JournalDamaged(str(path), 0, reason)
    _check_follows(path, header.first, last)


def _check_follows(path: Path, first: int, last: Position) -> None:
    if first != last.sequence + 1:
        reason = f"the segment begins with record {first} instead of {last.sequence + 1}"
        raise JournalDamaged(str(path), 0, reason)
