"""Random patterns over random events of many keys."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from ha_engine.query.patterns.automaton import states_of, steps_before
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
    can_be_empty,
    taken_steps_of,
)
from tests.query.patterns.oracle import Condition, Event, Taken

KINDS = "abc"
KEYS, EVENTS_MAX = 40, 16


# -- random conditions, in Python and in SQL -------------------------------------------------------


@dataclass(frozen=True)
class Clause:
    """A part of a condition, and the step to whose events it refers."""

    sql: str
    holds: Condition
    step: str | None = None


def of(taken: Taken, step: str) -> list[Event]:
    return [event for name, event in taken if name == step]


def kind_is(kind: str) -> Clause:
    return Clause(f"kind = '{kind}'", lambda event, taken, before: event.kind == kind)


def value_above(least: int) -> Clause:
    return Clause(f"value > {least}", lambda event, taken, before: event.value > least)


def above_step(step: str) -> Clause:
    def holds(event: Event, taken: Taken, before: Any) -> bool:
        earlier = of(taken, step)
        return bool(earlier) and event.value >= earlier[-1].value

    return Clause(f"value >= {step}.value", holds, step)


def count_below(step: str, most: int) -> Clause:
    return Clause(
        f"count({step}) <= {most}",
        lambda event, taken, before: len(of(taken, step)) <= most,
        step,
    )


def sum_above(step: str, least: int) -> Clause:
    def holds(event: Event, taken: Taken, before: Any) -> bool:
        earlier = of(taken, step)
        return bool(earlier) and sum(one.value for one in earlier) > least

    return Clause(f"sum({step}.value) > {least}", holds, step)


def above_first(step: str) -> Clause:
    def holds(event: Event, taken: Taken, before: Any) -> bool:
        earlier = of(taken, step)
        return bool(earlier) and event.value >= earlier[0].value

    return Clause(f"first({step}.value) <= value", holds, step)


def above_previous(within: int) -> Clause:
    def holds(event: Event, taken: Taken, before: Any) -> bool:
        return (
            bool(before)
            and event.time - before[-1].time <= within
            and event.value > before[-1].value
        )

    return Clause("value > prev(value)", holds)


def above_limit() -> Clause:
    def holds(event: Event, taken: Taken, before: Any) -> bool:
        return event.limit is not None and event.value >= event.limit

    return Clause("value >= limits.value", holds)


# -- random patterns -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A pattern, and the conditions of its steps in Python."""

    pattern: Pattern
    conditions: dict[str, Condition]

    @property
    def taking(self) -> list[str]:
        """The names of the steps that take events."""
        return _taking(self.pattern.part)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    within = draw(st.integers(2, 12))
    tables = draw(st.sampled_from([(), ("limits",)]))
    conditions: dict[str, Condition] = {}
    references: list[tuple[str, str]] = []
    earlier: list[str] = []  # the steps that may come before the next one

    def step(*, absent: bool = False) -> Step:
        name = f"s{len(conditions)}"
        known = earlier if absent else [*earlier, name]
        kinds = [kind_is(kind) for kind in KINDS]
        clauses = draw(st.lists(st.sampled_from([*kinds, value_above(0)]), min_size=1, max_size=1))
        others = [
            *(value_above(least) for least in range(2)),
            *(above_step(other) for other in known),
            *(count_below(other, most) for other in known for most in (1, 2)),
            *(sum_above(other, least) for other in known for least in (1, 3)),
            *(above_first(other) for other in known),
            above_previous(within),
            *(above_limit() for _ in tables),
        ]
        clauses += draw(st.lists(st.sampled_from(others), max_size=1))
        drawn = tuple(clauses)
        references.extend((name, one.step) for one in drawn if one.step not in (None, name))
        conditions[name] = lambda event, taken, before: all(
            one.holds(event, taken, before) for one in drawn
        )
        return Step(name, "events", " AND ".join(one.sql for one in drawn))

    def one() -> Part:
        one = step()
        earlier.append(one.name)
        return One(one, adjacent=draw(st.sampled_from([False, False, True])))

    def part(depth: int) -> Part:
        kind = draw(st.sampled_from(["one", "one", "repeat", "choice", "sequence"][: 3 + depth]))
        if kind == "one":
            return one()
        if kind == "choice":
            before, ways = list(earlier), []
            for _ in range(2):
                ways.append((part(depth - 1), earlier[len(before) :]))
                earlier[:] = before
            earlier.extend(name for _, names in ways for name in names)
            return Choice(tuple(way for way, _ in ways))
        if kind == "sequence":
            return Sequence(tuple(part(depth - 1) for _ in range(2)))
        inner = part(depth - 1) if depth else one()
        least = draw(st.integers(0, 2))
        most = draw(st.sampled_from([None, max(least, 1), least + 1]))
        if can_be_empty(inner):
            return inner
        return Repeat(inner, least, most, draw(st.booleans()))

    parts: list[Part] = [one()]
    for _ in range(draw(st.integers(0, 3))):
        following = part(2)
        if draw(st.integers(0, 4)) == 0:
            parts.append(Absent(step(absent=True)))
        parts.append(following)
    if draw(st.integers(0, 3)) == 0:
        seconds = draw(st.sampled_from([None, 1.0, 3.0]))
        parts.append(Absent(step(absent=True), seconds))
    whole = Sequence(tuple(parts))
    before = steps_before(states_of(whole))
    assume(all(step in before.get(name, {step}) for name, step in references))
    after, after_step = draw(st.sampled_from(AfterMatch)), None
    if after in (AfterMatch.TO_FIRST, AfterMatch.TO_LAST):
        after_step = draw(st.sampled_from(_taking(whole)))
    return _case(whole, conditions, within, after, after_step, tables)


def _taking(part: Part) -> list[str]:
    """The names of the steps that take events."""
    return list(dict.fromkeys(step.name for step in taken_steps_of(part)))


def _case(
    whole: Sequence,
    conditions: dict[str, Condition],
    within: float,
    after: AfterMatch = AfterMatch.NEXT,
    after_step: str | None = None,
    tables: tuple[str, ...] = (),
) -> Case:
    """The case of a pattern whose columns show all that is worth a comparison."""
    taking = _taking(whole)
    columns = {
        "numbers": "collect_list(number)",
        **{name: f"count({name})" for name in taking},
        **{f"last_{name}": f"last({name}.number, 1)" for name in taking[:2]},
        **{f"total_{name}": f"sum({name}.value)" for name in taking[-2:]},
        **{table: f"{table}.value" for table in tables},
    }
    pattern = Pattern(
        ("events",),
        MappingProxyType(dict.fromkeys(("events", *tables), ("key",))),
        whole,
        within,
        MappingProxyType(columns),
        after,
        after_step,
        tables,
    )
    return Case(pattern, conditions)


def late_second_way() -> Case:
    """A case that random patterns seldom have: two ways reach a state at different events, and the
    preferred one cannot take the adjacent event any more."""
    kinds = {"s": "a", "x": "b", "y": "b", "z": "c", "end": "a", "other": "b"}
    conditions = {name: kind_is(kind).holds for name, kind in kinds.items()}
    s, x, y, z, end, other = (
        One(Step(name, "events", kind_is(kind).sql), adjacent=name == "end")
        for name, kind in kinds.items()
    )
    whole = Sequence((s, Choice((x, Sequence((y, z)))), Choice((end, other))))
    return _case(whole, conditions, within=20)


def way_that_remembers() -> Case:
    """A case that random patterns seldom have: two ways reach a state at one event, and only the
    memory of the second one meets the condition of the next step."""
    clauses = {
        "s": kind_is("a"),
        "x": kind_is("b"),
        "y": kind_is("b"),
        "end": above_step("y"),
    }
    s, x, y, end = (One(Step(name, "events", one.sql)) for name, one in clauses.items())
    conditions = {name: one.holds for name, one in clauses.items()}
    return _case(Sequence((s, Choice((x, y)), end)), conditions, within=20)


@dataclass(frozen=True)
class Key:
    """The events of a key, and the rows of its table."""

    events: list[Event]
    rows: list[Event]


def keys(chance: random.Random) -> dict[int, Key]:
    return {key: _key(chance, chance.randint(3, EVENTS_MAX)) for key in range(KEYS)}


def _key(chance: random.Random, count: int) -> Key:
    time, places, key = 0, list[tuple[int, int]](), Key([], [])
    for number in chance.sample(range(count), count):  # events may come in another order
        time += chance.choice((0, 1, 1, 1, 2, 3))
        places.append((time, number))
    for time, number in sorted(places):
        if chance.randrange(5) == 0:
            key.rows.append(Event(time, number, "", chance.randint(0, 3)))
        else:
            limit = key.rows[-1].value if key.rows else None
            kind, value = chance.choice(KINDS), chance.randint(0, 3)
            key.events.append(Event(time, number, kind, value, limit))
    return key
