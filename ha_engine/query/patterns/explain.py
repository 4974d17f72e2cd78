"""Explain a pattern in words, and draw its automaton, for ``app check``."""

from __future__ import annotations

from collections.abc import Iterator

from ha_engine.query.patterns.automaton import End, State, states_of
from ha_engine.query.patterns.pattern import (
    Absent,
    AfterMatch,
    Choice,
    One,
    Part,
    Pattern,
    Repeat,
    Sequence,
    Step,
)

_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
START, MATCH, NONE = "start", "match", "no match"


def in_words(pattern: Pattern) -> tuple[str, ...]:
    """The pattern as lines of English."""
    by = ", ".join(pattern.by[pattern.streams[0]])
    events = f"events of {' and '.join(pattern.streams)}"
    each = f"{events}, for each {by}" if by else f"all {events} together"
    lines = [f"{each}, within {in_units(pattern.within)} of the first event:"]
    lines += [f"  {line}" for line in _lines(_begun(pattern.part), pattern)]
    lines += [f"with the newest row of {table} up to each event" for table in pattern.tables]
    return (*lines, f"then {_after(pattern)}")


def drawn(pattern: Pattern) -> tuple[str, ...]:
    """The automaton, a transition a line. A state is named by its number."""
    return tuple(
        f"{START if number == 0 else number} --{label}--> {target}"
        for number, state in enumerate(states_of(pattern.part))
        for label, target in _transitions(state, pattern, begins=number == 0)
    )


def in_units(seconds: float) -> str:
    """``90 seconds`` or ``15 minutes``: the largest unit that gives a whole number."""
    for unit, length in _UNITS:
        if seconds >= length and seconds % length == 0:
            number = int(seconds // length)
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{seconds:g} seconds"


def _transitions(state: State, pattern: Pattern, *, begins: bool) -> Iterator[tuple[str, str]]:
    """The labels and targets of a state's transitions. No event comes before the one that begins a
    match, so adjacency says nothing there."""
    for take in state.takes:
        adjacent = take.adjacent and not begins
        yield f"{'next: ' if adjacent else ''}{take.step.name}", _target(take.target, pattern)
    forbidden = dict.fromkeys(step.name for take in state.takes for step in take.absent)
    for name in forbidden:
        yield f"{name}", NONE
    if state.end is not None and state.end.absent:
        for step in state.end.absent:
            yield step.name, NONE
        yield _time(state.end, pattern), MATCH
    elif state.end is not None and state.takes:
        yield "otherwise", MATCH


def _target(number: int, pattern: Pattern) -> str:
    state = states_of(pattern.part)[number]
    at_end = state.end is not None and not state.end.absent and not state.takes
    return MATCH if at_end else str(number)


def _time(end: End, pattern: Pattern) -> str:
    if end.seconds is not None:
        return f"{in_units(end.seconds)} after the last event"
    return f"{in_units(pattern.within)} after the first event"


def _begun(part: Part) -> Part:
    """The part without the adjacency of its first event, which has none before it."""
    match part:
        case One(step):
            return One(step)
        case Sequence(parts):
            return Sequence((_begun(parts[0]), *parts[1:]))
        case Choice(parts):
            return Choice(tuple(map(_begun, parts)))
        case _:
            return part


def _lines(part: Part, pattern: Pattern, prefix: str = "") -> Iterator[str]:
    match part:
        case One(step, adjacent):
            yield f"{prefix}{'the next event is ' if adjacent else ''}{_step(step, pattern)}"
        case Absent(step, seconds):
            time = f" for {in_units(seconds)}" if seconds is not None else ""
            yield f"{prefix}no {_step(step, pattern)}{time}"
        case Sequence(parts):
            for one in parts:
                yield from _lines(one, pattern, prefix)
        case Choice(parts):
            yield f"{prefix}one of:"
            for one in parts:
                first, *others = _lines(one, pattern)
                yield f"{prefix}  - {first}"
                yield from (f"{prefix}    {line}" for line in others)
        case Repeat(One() as inner):
            (line,) = _lines(inner, pattern, prefix)
            yield f"{line}, {_times(part)}"
        case Repeat(inner):
            yield f"{prefix}{_times(part)}:"
            yield from _lines(inner, pattern, prefix + "  ")


def _step(step: Step, pattern: Pattern) -> str:
    stream = f" of {step.stream}" if len(pattern.streams) > 1 else ""
    condition = "any event" if step.condition is None else " ".join(step.condition.split())
    return f"{step.name}{stream}: {condition}"


def _times(repeat: Repeat) -> str:
    least, most = repeat.least, repeat.most
    often = "as often" if repeat.greedy else "as seldom"
    match least, most:
        case 0, 1:
            return "if there is one" if repeat.greedy else "only if needed"
        case _, None:
            return f"{least} times or more, {often} as possible"
        case _ if least == most:
            return f"{least} times"
        case _:
            return f"{least} to {most} times, {often} as possible"


def _after(pattern: Pattern) -> str:
    match pattern.after_match:
        case AfterMatch.NEXT:
            return "each further event may begin a match"
        case AfterMatch.PAST_LAST:
            return "an event after the last event of the match may begin the next match"
        case AfterMatch.TO_FIRST:
            return f"the first {pattern.after_step} may begin the next match"
        case AfterMatch.TO_LAST:
            return f"the last {pattern.after_step} may begin the next match"
