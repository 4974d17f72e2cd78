"""Remember the journal's offset of each source, so that the next active continues at that offset.

Like the producer table, the offset table is a pure function of the journal's prefix. One record has
both the rows and the offset after them, so neither is ever stored without the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ha_engine.errors import OffsetMoved
from ha_engine.types import Events

Offsets = Sequence[tuple[str, str, str, int, int, int]]
"""Rows of an ``OffsetTable``: stream, source, offset, rows, rejected, batches."""

SourceKey = tuple[str, str]
"""The name of a stream, and the name of a source of that stream."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The journal's offset of one source, and the totals of that source.

    ``offset`` is text in the source's own format, or None before the source's first batch.
    ``rows``, ``rejected`` and ``batches`` are totals over all batches of the source that the
    journal ever had.
    """

    offset: str | None = None
    rows: int = 0
    rejected: int = 0
    batches: int = 0


@dataclass(frozen=True, slots=True)
class Pull:
    """A batch of ``source`` with the rows after offset ``after`` and up to ``offset``.

    ``kept`` counts further events of the batch that stay in a log outside the journal.
    """

    source: str
    after: str | None
    offset: str
    rejected: int = 0
    kept: int = 0

    @property
    def size(self) -> int:
        """The most bytes that the batch's offset takes in a record's meta: six for each
        character."""
        return 6 * len(self.offset)


class OffsetTable:
    """The offsets of every source that the journal ever had a batch of."""

    def __init__(self) -> None:
        self._offsets: dict[SourceKey, SourceOffset] = {}

    def find(self, stream: str, source: str) -> SourceOffset:
        return self._offsets.get((stream, source), SourceOffset())

    def apply(self, events: Events) -> None:
        """Apply ``events``, the next record of events in the journal, whether committed or not."""
        for one in events.pulled:
            before = self.find(events.stream, one.source)
            self._offsets[events.stream, one.source] = SourceOffset(
                one.offset,
                before.rows + one.rows,
                before.rejected + one.rejected,
                before.batches + 1,
            )

    def require_next(self, stream: str, pull: Pull) -> None:
        """Raise OffsetMoved unless ``pull`` begins where the journal's last batch of its source
        ends."""
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
        """Replace the offset table with ``rows``, which ``to_rows`` made from all earlier
        records."""
        self._offsets = {
            (stream, source): SourceOffset(offset, *totals)
            for stream, source, offset, *totals in rows
        }
