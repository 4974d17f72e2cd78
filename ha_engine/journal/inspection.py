"""Inspects a journal without changing a byte, for ``ha-engine journal``.

If a node writes to the journal at the same time, the newest record may look torn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ha_engine.errors import DiskFailed, JournalDamaged
from ha_engine.journal import identity as identities
from ha_engine.journal.identity import JournalIdentity
from ha_engine.journal.opening import Found, epochs_before, look, read_identity
from ha_engine.journal.reading import FILE_HEADER_BYTES, read_records
from ha_engine.journal.segment import segment_paths
from ha_engine.types import Position, Record


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """The state of one segment, where ``last`` is None while the segment has no record."""

    path: Path
    first: int
    last: Position | None
    records: int
    size_bytes: int
    journal_id: str


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a journal up to its end, or up to ``damage``, after which nothing was
    checked."""

    directory: Path
    group: str
    group_id: str | None
    journal_id: str
    epochs: tuple[Position, ...]
    segments: tuple[SegmentReport, ...]
    torn: str | None
    damage: JournalDamaged | None

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


def find_directory(path: Path) -> Path | None:
    """The directory of a journal: ``path`` or its subdirectory ``journal``, or None if neither has
    a journal."""
    for directory in (path, path / "journal"):
        if (directory / identities.FILE_NAME).exists() or segment_paths(directory):
            return directory
    return None


def survey(
    directory: Path,
    *,
    payloads: bool = True,
    on_segment: Callable[[SegmentReport], None] = lambda _: None,
) -> Report:
    """Verify every checksum and the order of records; without ``payloads``, skip the checksums of
    payloads.

    ``on_segment`` is called after each segment. The report says whether the journal is damaged.
    Raises UnknownJournalVersion, DiskFailed, and JournalDamaged when the directory has no identity
    file.
    """
    try:
        identity = read_identity(directory)
        if identity is None:
            raise JournalDamaged(str(directory), 0, "the directory has no journal")
        found, damage = _look(directory, identity, payloads, on_segment)
    except OSError as error:
        raise DiskFailed(
            f"{directory} cannot be read ({error.strerror}); check the disk"
        ) from error
    return _report(directory, identity, found, damage)


def oldest_records(report: Report, count: int) -> list[Record]:
    """The first ``count`` records of the reported journal, without payloads."""
    return list(islice(_records(report.segments), count))


def newest_records(report: Report, count: int) -> list[Record]:
    """The last ``count`` records of the reported journal, oldest first, without payloads."""
    needed, held = 0, 0
    while held < count and needed < len(report.segments):
        needed += 1
        held += report.segments[-needed].records
    return list(deque(_records(report.segments[len(report.segments) - needed :]), maxlen=count))


def stored_events(path: Path, stream: str) -> Iterator[Record]:
    """The records with events of ``stream``, with their payloads, oldest first.

    ``path`` is the directory of a journal, or a file with records that were set aside (see
    ``set_aside``). Raises JournalDamaged after the records before the damage. Raises
    UnknownJournalVersion, DiskFailed.
    """
    if path.is_file():
        yield from read_records(path, 0, path.stat().st_size, stream=stream)
        return
    report = survey(path, payloads=False)
    for segment in report.segments:
        length = segment.size_bytes - FILE_HEADER_BYTES
        yield from read_records(segment.path, FILE_HEADER_BYTES, length, stream=stream)
    if report.damage is not None:
        raise report.damage


def report_tree(report: Report) -> dict[str, Any]:
    """The report as values that JSON can represent."""
    tree = asdict(replace(report, damage=None))
    tree |= {"records": report.records, "size_bytes": report.size_bytes}
    tree["directory"] = str(report.directory)
    for segment in tree["segments"]:
        segment["path"] = str(segment["path"])
    if report.damage is not None:
        damage = report.damage
        tree["damage"] = {"path": damage.path, "offset": damage.offset, "reason": str(damage)}
    return tree


def record_tree(record: Record) -> dict[str, Any]:
    """One record without its payload, as values that JSON can represent."""
    return {
        "epoch": record.position.epoch,
        "sequence": record.position.sequence,
        "committed": record.committed,
        "kind": type(record.body).__name__,
        "body": asdict(record.body),
    }


def _look(
    directory: Path,
    identity: JournalIdentity,
    payloads: bool,
    on_segment: Callable[[SegmentReport], None],
) -> tuple[list[Found], JournalDamaged | None]:
    found: list[Found] = []
    try:
        for one in look(directory, identity, payloads=payloads):
            found.append(one)
            on_segment(_segment(one))
    except JournalDamaged as damage:
        return found, damage
    return found, None


def _report(
    directory: Path, identity: JournalIdentity, found: list[Found], damage: JournalDamaged | None
) -> Report:
    trimmed = epochs_before(identity, found[0].first) if found else identity.epochs
    return Report(
        directory=directory,
        group=identity.group,
        group_id=identity.group_id,
        journal_id=identity.journal_id,
        epochs=(*trimmed, *(start for one in found for start in one.outline.epochs)),
        segments=tuple(map(_segment, found)),
        torn=found[-1].torn if found else None,
        damage=damage,
    )


def _segment(found: Found) -> SegmentReport:
    outline = found.outline
    last = outline.last if outline.records else None
    size = outline.end
    return SegmentReport(found.path, found.first, last, outline.records, size, found.journal_id)


def _records(segments: tuple[SegmentReport, ...]) -> Iterator[Record]:
    for segment in segments:
        length = segment.size_bytes - FILE_HEADER_BYTES
        yield from read_records(segment.path, FILE_HEADER_BYTES, length, payloads=False)
