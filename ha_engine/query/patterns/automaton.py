"""Turn a pattern into the states of an automaton.

A state is what a way through the pattern awaits: some steps, in the order of preference, and
perhaps the end of the pattern. The states are the partial derivatives of the pattern, as of a
regular expression (V. Antimirov, Partial derivatives of regular expressions and finite automaton
constructions, 1996), in the order of preference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ha_engine.errors import ApplicationError
from ha_engine.query.patterns.pattern import Absent, Choice, One, Part, Repeat, Sequence, Step

STATES_MAX = 1_000
TAKES_MAX = 64
"""The bits of a ``long``, in which the JVM keeps which of a state's steps are awaited."""
Rest = tuple[Part, ...]
"""The parts that a way has before it."""


@dataclass(frozen=True, slots=True)
class Take:
    """An awaited step, and the state after its event. The steps of ``absent`` forbid the way."""

    step: Step
    target: int
    adjacent: bool
    absent: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """The end of the pattern: at once, or after a time without an event of the steps ``absent``.

    ``seconds`` count from the last event. If they are None, the time ends with that of the pattern.
    """

    absent: tuple[Step, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class State:
    """The awaited steps, the preferred one first, and last the end if the way may end here."""

    takes: tuple[Take, ...]
    end: End | None = None


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A step that is awaited, or the end if it is None, and the parts after it."""

    step: Step | None
    rest: Rest = ()
    adjacent: bool = False
    absent: tuple[Step, ...] = ()
    seconds: float | None = None


def states_of(part: Part) -> tuple[State, ...]:
    """The states of ``part``, of which the first is the one before any event.

    Raises ApplicationError for a part with too many states.
    """
    numbers: dict[Rest, int] = {(part,): 0}
    states: list[State] = []
    rests: list[Rest] = [(part,)]
    for rest in rests:  # which grows
        takes, end = [], None
        for awaited in _awaited(rest, set()):
            if awaited.step is None:
                end = End(awaited.absent, awaited.seconds)
                break  # a way that may end here takes precedence over all that follow
            if awaited.rest not in numbers:
                numbers[awaited.rest] = len(numbers)
                rests.append(awaited.rest)
            target = numbers[awaited.rest]
            takes.append(Take(awaited.step, target, awaited.adjacent, awaited.absent))
            if len(takes) > TAKES_MAX:
                raise ApplicationError(
                    f"the pattern awaits more than {TAKES_MAX} steps at once; write fewer "
                    "alternatives"
                )
        states.append(State(tuple(takes), end))
        if len(rests) > STATES_MAX:
            raise ApplicationError(
                f"the pattern has more than {STATES_MAX} states; use smaller numbers of repetitions"
            )
    return tuple(states)


def steps_before(states: tuple[State, ...]) -> dict[str, set[str]]:
    """The names of the steps whose events may come before an event of each step."""
    taken: list[set[str]] = [set() for _ in states]
    changed = True
    while changed:
        changed = False
        for state, names in zip(states, taken, strict=True):
            for take in state.takes:
                after = {*names, take.step.name}
                if not after <= taken[take.target]:
                    taken[take.target] |= after
                    changed = True
    before: dict[str, set[str]] = {}
    for state, names in zip(states, taken, strict=True):
        tried = [take.step for take in state.takes]
        tried += [step for take in state.takes for step in take.absent]
        tried += state.end.absent if state.end else ()
        for step in tried:
            before.setdefault(step.name, set()).update(names)
    return before


def _awaited(rest: Rest, seen: set[Rest]) -> Iterator[_Awaited]:
    """The steps that a way with ``rest`` before it awaits, the preferred first.

    ``seen`` are the rests before this one. A rest that comes again, as after two optional
    alternatives, awaits nothing new.
    """
    if rest in seen:
        return
    seen.add(rest)
    if not rest:
        yield _Awaited(None)
        return
    part, after = rest[0], rest[1:]
    match part:
        case One(step, adjacent):
            yield _Awaited(step, after, adjacent)
        case Absent(step, seconds):
            # Other steps are absent from here on, so that a rest may come once more.
            for awaited in _awaited(after, set()):
                absent = (step, *awaited.absent)
                yield replace(awaited, absent=absent, seconds=seconds or awaited.seconds)
        case Sequence(parts):
            yield from _awaited((*parts, *after), seen)
        case Choice(parts):
            for one in parts:
                yield from _awaited((one, *after), seen)
        case Repeat(inner, least, most, greedy):
            again = (inner, *_once_less(part), *after)
            ways = [again] if most != 0 else []
            if least == 0:
                ways.insert(len(ways) if greedy else 0, after)
            for way in ways:
                yield from _awaited(way, seen)


def _once_less(repeat: Repeat) -> Rest:
    """The rest of ``repeat`` after one repetition."""
    most = None if repeat.most is None else repeat.most - 1
    if most == 0:
        return ()
    return (replace(repeat, least=max(repeat.least - 1, 0), most=most),)
