"""A pattern as immutable values, and the meaning of a match.

A pattern looks at the events of one key in the order of their event time. Events with one time are
in the order of their ids. Each event may begin a match. From that event, the pattern takes further
events as follows:

1. At each moment the pattern awaits some steps, in an order of preference.
2. If awaited steps accept the next event, the match takes the event. If several steps accept it,
   the match follows each of these ways, and prefers the way of the most preferred step.
3. If no awaited step accepts the event, the match skips the event. A way that awaits a step whose
   event must be the next one ends there, and so does a way on which the event must be absent.
4. No event is later than ``within`` after the first event of the match.
5. The match that begins with an event is the most preferred way that reaches the end of the
   pattern.

``after_match`` says which events may begin another match.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

KEY_BYTES_MAX = 16 << 20
KEYS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Step:
    """A named condition. ``stream`` is the stream of its events.

    ``condition`` is a Spark SQL expression over the columns of an event and over the earlier steps
    of the match, or None if every event will do.
    """

    name: str
    stream: str
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class One:
    """One event that a step accepts. If it is ``adjacent``, no other event comes before it."""

    step: Step
    adjacent: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    """No event that a step accepts, until the next event of the match.

    At the end of a pattern, no such event for ``seconds`` after the last event of the match, or
    until the time of the pattern is over if ``seconds`` is None.
    """

    step: Step
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts that follow each other."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several parts, the preferred one first."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part from ``least`` to ``most`` times, and as often as possible if it is ``greedy``."""

    part: Part
    least: int
    most: int | None
    greedy: bool = True


Part = One | Absent | Sequence | Choice | Repeat


class AfterMatch(Enum):
    """The first event that may begin a match after another match of the same key."""

    NEXT = "next"
    """The event after the first event of the match."""
    PAST_LAST = "past_last"
    """The event after the last event of the match."""
    TO_FIRST = "to_first"
    """The first event of a step."""
    TO_LAST = "to_last"
    """The last event of a step."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern over the events of ``streams``.

    ``tables`` are further streams. Of each, the pattern has the newest row of the key up to the
    time of an event. ``by`` has the columns of each stream and table whose values are the key.
    ``within`` is in seconds. ``columns`` are the Spark SQL expressions of the output by column.
    ``after_step`` is the step that ``after_match`` names. The state has at most ``keys_max`` keys,
    and one key has at most ``key_bytes_max`` bytes.
    """

    streams: tuple[str, ...]
    by: MappingProxyType[str, tuple[str, ...]]
    part: Part
    within: float
    columns: MappingProxyType[str, str]
    after_match: AfterMatch = AfterMatch.NEXT
    after_step: str | None = None
    tables: tuple[str, ...] = ()
    key_bytes_max: int = KEY_BYTES_MAX
    keys_max: int = KEYS_MAX

    @property
    def inputs(self) -> tuple[str, ...]:
        """The streams and the tables."""
        return (*self.streams, *self.tables)

    @property
    def definition(self) -> str:
        """A text that two patterns share if they find the same matches with the same state."""
        return repr(
            (
                self.inputs,
                tuple(self.by.items()),
                self.part,
                self.within,
                tuple(self.columns.items()),
                self.after_match.value,
                self.after_step,
                len(self.tables),
            )
        )

    @property
    def expressions(self) -> tuple[str, ...]:
        """All SQL expressions of the pattern."""
        conditions = (step.condition for step in self.steps)
        return (*filter(None, conditions), *self.columns.values())

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in the order in which the pattern names them, each once."""
        return tuple(dict.fromkeys(steps_of(self.part)))


def steps_of(part: Part) -> Iterator[Step]:
    """The steps of a part, in the order in which it names them."""
    match part:
        case One(step) | Absent(step):
            yield step
        case Repeat(inner):
            yield from steps_of(inner)
        case Sequence(parts) | Choice(parts):
            for one in parts:
                yield from steps_of(one)


def taken_steps_of(part: Part) -> Iterator[Step]:
    """The steps whose events a match may take, as often as the part names them."""
    match part:
        case One(step):
            yield step
        case Absent():
            return
        case Repeat(inner):
            yield from taken_steps_of(inner)
        case Sequence(parts) | Choice(parts):
            for one in parts:
                yield from taken_steps_of(one)


def can_be_empty(part: Part) -> bool:
    """Whether a part matches without any event."""
    match part:
        case One():
            return False
        case Absent():
            return True
        case Sequence(parts):
            return all(map(can_be_empty, parts))
        case Choice(parts):
            return any(map(can_be_empty, parts))
        case Repeat(inner, least):
            return least == 0 or can_be_empty(inner)
