"""Random patterns over random events find what the oracle finds, however batches are cut."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.programs import needs
from tests.query.patterns.drive import interpreted, matches
from tests.query.patterns.oracle import Match, Oracle
from tests.query.patterns.random_cases import (
    Case,
    Key,
    cases,
    keys,
    late_second_way,
    of,
    way_that_remembers,
)

pytestmark = [needs("javac"), pytest.mark.spark, pytest.mark.rotates("files")]

CUTS = st.lists(st.integers(0, 25), max_size=6, unique=True).map(sorted)


def expected(case: Case, drawn: dict[int, Key]) -> list[list[Any]]:
    """The matches of all keys as the oracle finds them."""
    oracle = Oracle(case.pattern, case.conditions)
    return [
        [key, float(match.taken[0][1].time), float(match.end), *columns_of(case, match)]
        for key, one in drawn.items()
        for match in oracle.matches(one.events)
    ]


def columns_of(case: Case, match: Match) -> list[Any]:
    taken, taking = match.taken, case.taking
    lasts = [of(taken, name) for name in taking[:2]]
    return [
        [event.number for _, event in taken],
        *(len(of(taken, name)) for name in taking),
        *(events[-2].number if len(events) > 1 else None for events in lasts),
        *(sum(e.value for e in of(taken, n)) if of(taken, n) else None for n in taking[-2:]),
        *(taken[-1][1].limit for _ in case.pattern.tables),
    ]


def of_key(key: int, found: list[list[Any]]) -> list[list[Any]]:
    return sorted((one for one in found if one[0] == key), key=repr)


def require_equal(spark: Any, case: Case, seed: int, cuts: list[int]) -> int:
    """Require that engine and oracle find the same, and return how many matches there are."""
    drawn = keys(random.Random(seed))
    events = {key: one.events for key, one in drawn.items()}
    rows = {key: one.rows for key, one in drawn.items()}
    wanted, got = expected(case, drawn), matches(spark, case.pattern, events, cuts, rows)
    differing = [
        (one, of_key(key, wanted), of_key(key, got))
        for key, one in drawn.items()
        if of_key(key, wanted) != of_key(key, got)
    ]
    assert differing == [], case.pattern
    return len(wanted)


def compare_many(spark: Any, count: int) -> None:
    """Compare ``count`` random patterns, of which most must have matches."""
    found: list[int] = []

    @settings(max_examples=count, phases=[Phase.explicit, Phase.generate], deadline=None)
    @example(case=late_second_way(), seed=1, cuts=[])
    @example(case=way_that_remembers(), seed=1, cuts=[])
    @given(case=cases(), seed=st.integers(0, 1 << 32), cuts=CUTS)
    def compare(case: Case, seed: int, cuts: list[int]) -> None:
        found.append(require_equal(spark, case, seed, cuts))

    with interpreted(spark):
        compare()
    matching = sum(one > 0 for one in found)
    assert matching > len(found) / 2


def test_random_patterns_find_what_the_oracle_finds(spark: Any) -> None:
    compare_many(spark, 60)


@pytest.mark.nightly("test_random_patterns_find_what_the_oracle_finds tries sixty patterns")
@pytest.mark.parametrize("part", range(20))
def test_ten_thousand_random_patterns_find_what_the_oracle_finds(spark: Any, part: int) -> None:
    compare_many(spark, 500)
