"""Find the matches of a pattern by trying every way, as ``ha_engine.query.patterns.pattern``
defines them, with all events of a key at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ha_engine.query.patterns.pattern import (
    Absent,
    AfterMatch,
    Choice,
    One,
    Part,
    Pattern,
    Repeat,
    Step,
)
from ha_engine.query.patterns.pattern import Sequence as Parts


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a key: its time in seconds and its number in the order of the key. ``limit`` is
    the value in the table's row of that moment, if there is a row."""

    time: int
    number: int
    kind: str
    value: int
    limit: int | None = None


Taken = tuple[tuple[str, Event], ...]
"""The events of a way with the names of their steps."""
Condition = Callable[[Event, Taken, Sequence[Event]], bool]
"""Whether a step accepts an event, after a way, and after earlier events of the key."""


@dataclass(frozen=True, slots=True)
class Match:
    """The events of a match, and when it ended."""

    taken: Taken
    end: float


@dataclass(frozen=True, slots=True)
class _Awaited:
    step: Step | None
    rest: tuple[Part, ...]
    adjacent: bool
    absent: tuple[Step, ...]
    seconds: float | None


class Oracle:
    """Finds the matches of ``pattern``. ``conditions`` are those of the steps."""

    def __init__(self, pattern: Pattern, conditions: dict[str, Condition]) -> None:
        self._pattern, self._conditions = pattern, conditions

    def matches(self, events: Sequence[Event]) -> list[Match]:
        """The matches in ``events``, all events of one key in their order."""
        found, begin = [], 0
        for number in range(len(events)):
            if number < begin:
                continue
            match = self._from(events, number)
            if match is not None:
                found.append(match)
                begin = self._next(match, number, events)
        return found

    def _next(self, match: Match, number: int, events: Sequence[Event]) -> int:
        step = self._pattern.after_step
        of_step = [events.index(event) for name, event in match.taken if name == step]
        match self._pattern.after_match:
            case AfterMatch.NEXT:
                return number + 1
            case AfterMatch.PAST_LAST:
                return events.index(match.taken[-1][1]) + 1
            case AfterMatch.TO_FIRST:
                return max(number + 1, of_step[0]) if of_step else number + 1
            case AfterMatch.TO_LAST:
                return max(number + 1, of_step[-1]) if of_step else number + 1

    def _from(self, events: Sequence[Event], number: int) -> Match | None:
        first = list(self._awaited((self._pattern.part,), (), None))
        return self._best(events, number, (), first, begins=True)

    def _best(
        self,
        events: Sequence[Event],
        at: int,
        taken: Taken,
        awaited: list[_Awaited],
        *,
        begins: bool = False,
    ) -> Match | None:
        """The preferred match that continues ``taken`` with events from the number ``at``."""
        ends = [number for number, one in enumerate(awaited) if one.step is None]
        awaited = awaited[: ends[0] + 1] if ends else awaited
        end = awaited.pop() if ends else None
        now = Match(taken, taken[-1][1].time) if end is not None and not end.absent else None
        deadline = taken[0][1].time + self._pattern.within if taken else events[at].time
        silent_until: float | None = None
        if end is not None and end.absent:
            silent_until = deadline if end.seconds is None else taken[-1][1].time + end.seconds
        for number in range(at, len(events)):
            event, before = events[number], events[:number]
            if silent_until is not None and silent_until < event.time:
                return Match(taken, silent_until)
            if event.time > deadline:
                awaited = []
            hits = [one for one in awaited if self._accepts(one.step, event, taken, before)]
            for one in hits:
                assert one.step is not None
                longer = (*taken, (one.step.name, event))
                rest = list(self._awaited(one.rest, (), None))
                if match := self._best(events, number + 1, longer, rest):
                    return match
            if hits or begins:
                return now
            awaited = [
                one
                for one in awaited
                if not one.adjacent
                and not any(self._accepts(step, event, taken, before) for step in one.absent)
            ]
            if end is not None and any(
                self._accepts(step, event, taken, before) for step in end.absent
            ):
                silent_until = None
            if not awaited and silent_until is None:
                return now
        return now if silent_until is None else Match(taken, silent_until)

    def _accepts(
        self, step: Step | None, event: Event, taken: Taken, before: Sequence[Event]
    ) -> bool:
        assert step is not None
        return self._conditions[step.name](event, (*taken, (step.name, event)), before)

    def _awaited(
        self, rest: tuple[Part, ...], absent: tuple[Step, ...], seconds: float | None
    ) -> Iterator[_Awaited]:
        if not rest:
            yield _Awaited(None, (), False, absent, seconds)
            return
        part, after = rest[0], rest[1:]
        match part:
            case One(step, adjacent):
                yield _Awaited(step, after, adjacent, absent, None)
            case Absent(step, duration):
                yield from self._awaited(after, (*absent, step), duration)
            case Parts(parts):
                yield from self._awaited((*parts, *after), absent, seconds)
            case Choice(parts):
                for one in parts:
                    yield from self._awaited((one, *after), absent, seconds)
            case Repeat(inner, least, most, greedy):
                if most == 0:
                    yield from self._awaited(after, absent, seconds)
                    return
                fewer = Repeat(inner, max(0, least - 1), most and most - 1, greedy)
                again = self._awaited((inner, fewer, *after), absent, seconds)
                stop = self._awaited(after, absent, seconds) if least == 0 else iter(())
                yield from (*again, *stop) if greedy else (*stop, *again)
