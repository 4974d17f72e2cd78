"""The ends of a stream's log at the records of the journal.

The events of a stream may stay in Kafka. Then the journal has records without rows, each with the
offsets up to which the stream has grown. A mark covers records, and so says which events of Kafka
its batch has. Every node has the same records, so every node gives a mark the same offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from ha_engine.receive.offsets import Offsets
from ha_engine.types import LOG, Events


class _Ends:
    """The offsets of one log, each with the sequence of its record, in order."""

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.offsets: list[str] = []

    def add(self, sequence: int, offset: str) -> None:
        self.sequences.append(sequence)
        self.offsets.append(offset)

    def at(self, sequence: int) -> str:
        return self.offsets[max(0, bisect_right(self.sequences, sequence) - 1)]

    def forget_before(self, sequence: int) -> None:
        """Forget what no record from ``sequence`` on needs."""
        older = bisect_left(self.sequences, sequence) - 1
        if older > 0:
            del self.sequences[:older], self.offsets[:older]


class LogHistory:
    """The offsets of each log at the records that the journal has. A pure function of these."""

    def __init__(self) -> None:
        self._ends: dict[str, _Ends] = {}

    def load_base(self, offsets: Offsets) -> None:
        """Begin with the offsets that all trimmed records have led to."""
        for stream, source, offset, *_ in offsets:
            if source == LOG:
                self._ends[stream] = ends = _Ends()
                ends.add(0, offset)

    def apply(self, sequence: int, events: Events) -> None:
        """Apply the record ``sequence``, the next one with events, whether committed or not."""
        for one in events.pulled:
            if one.source == LOG:
                self._ends.setdefault(events.stream, _Ends()).add(sequence, one.offset)

    def at(self, stream: str, sequence: int) -> str | None:
        """The offset of the stream's log after the record ``sequence``.

        Before the log's first record, it is the offset of that record, which has no events: the log
        began there. None if there is no such record yet.
        """
        ends = self._ends.get(stream)
        return None if ends is None else ends.at(sequence)

    def forget_before(self, first: int) -> None:
        """Forget what no record from ``first`` on needs, since the others are trimmed."""
        for ends in self._ends.values():
            ends.forget_before(first)
