"""How far each source was read, as the journal says: what the next active goes on from.

A pure function of the journal's prefix, as the producer table is: an offset comes with the rows
that it stands behind, in one record, so neither can be there without the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ha_engine.errors import OffsetMoved
from ha_engine.types import Events

Offsets = Sequence[tuple[str, str, str, int, int, int]]
"""Of an ``OffsetTable``: stream, source, offset, rows, rejected, batches."""

SourceKey = tuple[str, str]
"""Stream, and source of that stream."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """``offset`` is the source's own text; None before its first batch. The others are totals of
    all that the journal ever had of the source."""

    offset: str | None = None
    rows: int = 0
    rejected: int = 0
    batches: int = 0


@dataclass(frozen=True, slots=True)
class Pull:
    """A batch of ``source`` that was read behind ``after``, and where the source goes on."""

    source: str
    after: str | None
    offset: str
    rejected: int = 0

    @property
    def size(self) -> int:
        """Of its offset in a record's meta at most, in bytes: a character may be written as six."""
        return 6 * len(self.offset)


class OffsetTable:
    """One entry for each source that the journal ever had a batch of."""

    def __init__(self) -> None:
        self._offsets: dict[SourceKey, SourceOffset] = {}

    def find(self, stream: str, source: str) -> SourceOffset:
        return self._offsets.get((stream, source), SourceOffset())

    def apply(self, events: Events) -> None:
        """Take in the next events record of the journal, committed or not yet."""
        for one in events.pulled:
            before = self.find(events.stream, one.source)
            self._offsets[events.stream, one.source] = SourceOffset(
                one.offset,
                before.rows + one.rows,
                before.rejected + one.rejected,
                before.batches + 1,
            )

    def require_next(self, stream: str, pull: Pull) -> None:
        """Raises OffsetMoved unless ``pull`` was read where the journal ends."""
        known = self.find(stream, pull.source).offset
        if known != pull.after:
            raise OffsetMoved(
                f"source {pull.source} of stream {stream} was read behind {pull.after}, and the "
                f"journal has it up to {known}"
            )

    def clear(self) -> None:
        """As of an empty journal."""
        self._offsets.clear()

    def to_rows(self) -> Offsets:
        return [
            (stream, source, one.offset or "", one.rows, one.rejected, one.batches)
            for (stream, source), one in self._offsets.items()
        ]

    def stand_on(self, rows: Offsets) -> None:
        """Take in what ``to_rows`` gave, in place of all the records before."""
        self._offsets = {
            (stream, source): SourceOffset(offset, *totals)
            for stream, source, offset, *totals in rows
        }
