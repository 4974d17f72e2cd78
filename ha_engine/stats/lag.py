"""Record when events arrive in this node's journal, to show a lag in seconds and in events.

The lag is for people, and no decision depends on the lag. A rounded lag is sufficient, and needs
only bounded memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ha_engine.types import Events, Mark, Record

SLOT_SECONDS = 0.25
SLOTS_MAX = 7_200
"""The slots cover half an hour under load, and a longer time if events are rare.

A lag that is longer than the covered time shows as the covered time.
"""


@dataclass(slots=True)
class _Slot:
    """The events that arrive within a quarter of a second.

    ``last`` is the sequence of the slot's newest record.
    """

    began: float
    last: int
    events: int


class Arrivals:
    """The times when records arrived in the journal of one node process.

    All times are in seconds on the core's clock.
    """

    def __init__(self) -> None:
        self._streams: dict[str, deque[_Slot]] = {}
        self._marked_at: dict[str, float] = {}

    def start_at(self, now: float, last: int, streams: Iterable[str]) -> None:
        """Treat events that are in the journal at the start as if they arrived at ``now``."""
        for stream in streams:
            self._streams[stream] = deque([_Slot(now - SLOT_SECONDS, last, 0)], SLOTS_MAX)

    def saw(self, now: float, records: Sequence[Record]) -> None:
        """Store the arrival time of appended records, from this node or from another active."""
        for record in records:
            match record.body:
                case Events(stream=stream, rows=rows):
                    self._count(now, stream, record.position.sequence, rows)
                case Mark(query=query):
                    self._marked_at[query] = now

    def _count(self, now: float, stream: str, sequence: int, rows: int) -> None:
        slots = self._streams.setdefault(stream, deque(maxlen=SLOTS_MAX))
        if not slots or now >= slots[-1].began + SLOT_SECONDS:
            slots.append(_Slot(now, sequence, 0))
        slots[-1].last = sequence
        slots[-1].events += rows

    def seconds_behind(self, now: float, sequence: int, streams: Iterable[str] = ()) -> float:
        """The seconds since the oldest event after ``sequence`` arrived, or 0 without an event."""
        first = (slots[0].began for slots in self._behind(sequence, streams) if slots)
        return max((now - began for began in first), default=0.0)

    def events_behind(self, sequence: int) -> int:
        """The number of events after ``sequence``, rounded up to whole slots."""
        return sum(slot.events for slots in self._behind(sequence, ()) for slot in slots)

    def seconds_since_mark(self, now: float, query: str) -> float | None:
        """The seconds since a query's newest mark, or None if this process has seen no mark."""
        marked_at = self._marked_at.get(query)
        return None if marked_at is None else now - marked_at

    def _behind(self, sequence: int, streams: Iterable[str]) -> list[list[_Slot]]:
        """The slots of each stream that end after ``sequence``.

        An empty ``streams`` means all streams.
        """
        wanted = list(streams) or list(self._streams)
        there = [self._streams[stream] for stream in wanted if stream in self._streams]
        return [_after(slots, sequence) for slots in there]


def _after(slots: Sequence[_Slot], sequence: int) -> list[_Slot]:
    found: list[_Slot] = []
    for slot in reversed(slots):
        if slot.last <= sequence:
            break
        found.append(slot)
    return found[::-1]
