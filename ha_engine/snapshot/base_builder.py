"""Build the base for a position, from the old base and the journal's records after the old base."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ha_engine.core import Deployment, JournalState
from ha_engine.journal import Journal
from ha_engine.receive.offsets import OffsetTable
from ha_engine.receive.producers import ProducerTable
from ha_engine.snapshot import base_file
from ha_engine.snapshot.base_file import JournalBase
from ha_engine.system.files import OS_FILES, Files
from ha_engine.types import Base, Events, Mark, Record, SnapshotPlace


@dataclass(frozen=True, slots=True)
class BaseBuilder:
    """Builds the content of base files; every call blocks.

    ``path`` is the path of the old base file, which need not exist. ``deployment`` creates an empty
    deployment from this node's config, and ``producers`` creates an empty producer table.
    """

    path: Path
    journal: Journal
    deployment: Callable[[], Deployment]
    producers: Callable[[], ProducerTable]
    files: Files = OS_FILES

    def through(self, sequence: int) -> bytes:
        """The content of the base file that replaces the records up to ``sequence``."""
        return base_file.encode(self._fold(sequence))

    def at(self, place: SnapshotPlace) -> bytes:
        """The content of the base file for a snapshot at ``place`` (RULES.md#r28).

        The base includes the marks of the snapshot's batches whose records come after the position
        of the snapshot.
        """
        found = self._fold(place.position.sequence)
        base = _with_marks(found.base, place, self._marks_behind(place))
        return base_file.encode(found._replace(base=base))

    def _marks_behind(self, place: SnapshotPlace) -> list[Mark]:
        """The marks of the snapshot's batches whose records come after the snapshot's position.

        A mark ends a batch at an earlier sequence than the sequence of the mark's own record.
        """
        numbers, found = dict(place.batches), list[Mark]()
        for record in self._records(place.position.sequence + 1, self.journal.last.sequence):
            mark = record.body
            if isinstance(mark, Mark) and mark.number <= numbers.get(mark.query, 0):
                found.append(mark)
                if mark.number == numbers[mark.query]:
                    del numbers[mark.query]
            if not numbers:
                break
        return found

    def _fold(self, sequence: int) -> JournalBase:
        journal, producers = JournalState(self.deployment()), self.producers()
        offsets = OffsetTable()
        if found := base_file.load(self.path, self.files):
            journal.load_base(found.base)
            producers.load_base(found.producers)
            offsets.load_base(found.offsets)
        for record in self._records(journal.last.sequence + 1, sequence):
            journal.replay(record)
            if isinstance(record.body, Events):
                producers.apply(record.position, record.body)
                offsets.apply(record.body)
        return JournalBase(journal.as_base(), producers.to_table(), offsets.to_rows())

    def _records(self, first: int, last: int) -> Iterable[Record]:
        return self.journal.read(first, last, payloads=False) if first <= last else ()


def _with_marks(base: Base, place: SnapshotPlace, behind: list[Mark]) -> Base:
    numbers, through, queries = dict(place.batches), place.position.sequence, []
    for one in base.queries:
        query = one.version.query
        if query in numbers:
            ahead = tuple(mark for mark in behind if mark.query == query)
            one = replace(one, last=Mark(query, numbers[query], through), ahead=ahead)
        queries.append(one)
    return replace(base, queries=tuple(queries))
