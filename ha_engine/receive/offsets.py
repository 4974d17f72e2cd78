"""How far the journal has each source: the next active continues there.

Like the producer table, this is a pure function of the journal's prefix. One record has both the
rows and the offset after them, so neither can exist without the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ha_engine.errors import OffsetMoved
from ha_engine.types import Events

Offsets = Sequence[tuple[str, str, str, int, int, int]]
"""Rows of an ``OffsetTable``: stream, source, offset, rows, rejected, batches."""

SourceKey = tuple[str, str]
"""Stream, and source of that stream."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """How far the journal has one source.

    ``offset`` is the source's own text; None before its first batch. The other fields are totals
    over everything that the journal ever had of the source.
    """

    offset: str | None = None
    rows: int = 0
    rejected: int = 0
    batches: int = 0


@dataclass(frozen=True, slots=True)
class Pull:
    """A batch of ``source`` that was read after offset ``after``; ``offset`` is its end."""

    source: str
    after: str | None
    offset: str
    rejected: int = 0

    @property
    def size(self) -> int:
        """The most bytes that its offset takes in a record's meta: six for each character."""
        return 6 * len(self.offset)


class OffsetTable:
    """The offsets of every source that the journal ever had a batch of."""

    def __init__(self) -> None:
        self._offsets: dict[SourceKey, SourceOffset] = {}

    def find(self, stream: str, source: str) -> SourceOffset:
        return self._offsets.get((stream, source), SourceOffset())

    def apply(self, events: Events) -> None:
        """Apply the next events record of the journal, committed or not yet."""
        for one in events.pulled:
            before = self.find(events.stream, one.source)
            self._offsets[events.stream, one.source] = SourceOffset(
                one.offset,
                before.rows + one.rows,
                before.rejected + one.rejected,
                before.batches + 1,
            )

    def require_next(self, stream: str, pull: Pull) -> None:
        """Raise OffsetMoved unless ``pull`` was read after the last batch in the journal."""
        known = self.find(stream, pull.source).offset
        if known != pull.after:
            raise OffsetMoved(
                f"source {pull.source} of stream {stream} was read after offset {pull.after}, but "
                f"the journal has its rows up to {known}"
            )

    def to_rows(self) -> Offsets:
        return [
            (stream, source, one.offset or "", one.rows, one.rejected, one.batches)
            for (stream, source), one in self._offsets.items()
        ]

    def load_base(self, rows: Offsets) -> None:
        """Load what ``to_rows`` returned, in place of all earlier records."""
        self._offsets = {
            (stream, source): SourceOffset(offset, *totals)
            for stream, source, offset, *totals in rows
        }
