"""The boundaries of time and order in patterns, each of which a wrong comparison would move.

Each case runs with a batch cut before every time of its events, and without one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import yaml

from ha_engine.query.application import StreamSpec, Watermark
from ha_engine.query.columns import parse_column
from ha_engine.query.patterns.pattern import Pattern
from ha_engine.query.patterns.section import PatternSection, pattern_of
from tests.programs import needs
from tests.query.patterns.drive import interpreted, matches
from tests.query.patterns.oracle import Event

pytestmark = [needs("javac"), pytest.mark.spark, pytest.mark.rotates("files")]

COLUMNS = {
    "key": "int not null",
    "number": "int not null",
    "kind": "string not null",
    "value": "int",
    "at": "timestamp not null",
}
STREAMS = ("events", "limits")
STREAM = StreamSpec(
    "events",
    tuple(parse_column(name, kind) for name, kind in COLUMNS.items()),
    watermark=Watermark("at", "0 seconds"),
)


def pattern(text: str) -> Pattern:
    section = {"from": "events", "by": ["key"], "yield": {"numbers": "collect_list(number)"}}
    raw = PatternSection.model_validate({**section, **yaml.safe_load(text)})
    return pattern_of("pattern", raw, {name: replace(STREAM, name=name) for name in STREAMS})


def found(spark: Any, text: str, events: list[tuple[int, str]]) -> list[tuple[list[int], float]]:
    """Return the numbers of the events of each match, and the time of its end. The first event is
    number 0."""
    return [(list(numbers), end) for _, _, end, numbers in found_rows(spark, text, events)]


def found_rows(spark: Any, text: str, events: list[tuple[int, str]]) -> list[list[Any]]:
    """Return all columns of each match. An event of the kind ``limit`` is a row of the table
    ``limits``, whose value is its number."""
    answers = []
    every = [Event(at, number, kind, number) for number, (at, kind) in enumerate(events)]
    keys = {7: [event for event in every if event.kind != "limit"]}
    limits = {7: [event for event in every if event.kind == "limit"]}
    times = sorted({at for at, _ in events})
    ways = [cuts for count in (0, 1, 2, len(times)) for cuts in combinations(times, count)]
    with interpreted(spark):
        for cuts in ways:
            answers.append(matches(spark, pattern(text), keys, cuts, limits))
    assert all(one == answers[0] for one in answers), "the matches depend on the batches"
    return answers[0]


A_THEN_B = """
sequence: [a: kind = 'a', b: kind = 'b']
within: 5 s
"""


def test_an_event_exactly_at_the_end_of_the_time_belongs_to_the_match(spark: Any) -> None:
    assert found(spark, A_THEN_B, [(0, "a"), (5, "b")]) == [([0, 1], 5)]


def test_an_event_after_the_end_of_the_time_does_not(spark: Any) -> None:
    assert found(spark, A_THEN_B, [(0, "a"), (6, "b")]) == []


def test_events_with_one_time_follow_each_other_in_the_order_of_their_ids(spark: Any) -> None:
    assert found(spark, A_THEN_B, [(3, "a"), (3, "b")]) == [([0, 1], 3)]
    assert found(spark, A_THEN_B, [(3, "b"), (3, "a")]) == []


def test_ids_are_compared_as_numbers(spark: Any) -> None:
    many = [(3, "c")] * 9 + [(3, "a"), (3, "b")]  # with the numbers 9 and 10
    assert found(spark, A_THEN_B, many) == [([9, 10], 3)]


ABSENT = """
sequence: [a: kind = 'a', not b: kind = 'b']
within: 5 s
"""


def test_an_absence_is_complete_at_the_end_of_the_time(spark: Any) -> None:
    assert found(spark, ABSENT, [(0, "a")]) == [([0], 5)]


def test_an_event_exactly_at_the_end_of_an_absence_breaks_it(spark: Any) -> None:
    assert found(spark, ABSENT, [(0, "a"), (5, "b")]) == []


def test_an_event_after_the_end_of_an_absence_does_not_break_it(spark: Any) -> None:
    assert found(spark, ABSENT, [(0, "a"), (6, "b")]) == [([0], 5)]


ABSENT_FOR = """
sequence: [a: kind = 'a', b: kind = 'b', not c: {where: kind = 'c', for: 3 s}]
within: 10 s
"""


def test_an_absence_with_a_time_of_its_own_counts_from_the_last_event(spark: Any) -> None:
    assert found(spark, ABSENT_FOR, [(0, "a"), (4, "b")]) == [([0, 1], 7)]
    assert found(spark, ABSENT_FOR, [(0, "a"), (4, "b"), (7, "c")]) == []
    assert found(spark, ABSENT_FOR, [(0, "a"), (4, "b"), (8, "c")]) == [([0, 1], 7)]


def test_an_absence_with_a_time_of_its_own_may_end_after_the_time_of_the_pattern(
    spark: Any,
) -> None:
    assert found(spark, ABSENT_FOR, [(0, "a"), (10, "b")]) == [([0, 1], 13)]


BETWEEN = """
sequence: [a: kind = 'a', not c: kind = 'c', b: kind = 'b']
within: 5 s
"""


def test_an_absent_event_between_two_steps_prevents_the_match(spark: Any) -> None:
    assert found(spark, BETWEEN, [(0, "a"), (1, "c"), (2, "b")]) == []


def test_an_absent_event_of_the_same_time_counts_only_between_them(spark: Any) -> None:
    assert found(spark, BETWEEN, [(0, "c"), (0, "a"), (2, "b"), (2, "c")]) == [([1, 2], 2)]


STRICT = """
sequence: [a: kind = 'a', b: kind = 'b']
within: 5 s
contiguity: strict
"""


def test_another_event_breaks_a_strict_sequence(spark: Any) -> None:
    assert found(spark, STRICT, [(0, "a"), (1, "c"), (2, "b")]) == []
    assert found(spark, STRICT, [(0, "a"), (2, "b"), (2, "c")]) == [([0, 1], 2)]


GREEDY = """
sequence:
  - a: kind = 'a'
  - b+: kind = 'b'
  - c: kind = 'c'
within: 5 s
after_match: past_last
"""


def test_a_step_takes_as_many_events_as_possible(spark: Any) -> None:
    events = [(0, "a"), (1, "b"), (2, "b"), (3, "c"), (4, "a"), (4, "b"), (9, "c")]
    assert found(spark, GREEDY, events) == [([0, 1, 2, 3], 3), ([4, 5, 6], 9)]


def test_a_lazy_step_takes_as_few_events_as_possible(spark: Any) -> None:
    text = GREEDY.replace("b+", "b+?").replace("c: kind = 'c'", "c: value >= 2")
    assert found(spark, text, [(0, "a"), (1, "b"), (2, "b"), (3, "c")]) == [([0, 1, 2], 2)]


SKIP = """
sequence:
  - a: kind = 'a'
  - b{2}: kind = 'b'
within: 9 s
after_match: AFTER
"""
TWICE = [(0, "a"), (1, "a"), (2, "b"), (3, "b"), (4, "a"), (5, "b"), (6, "b")]


@pytest.mark.parametrize(
    ("after", "numbers"),
    [
        ("next", [[0, 2, 3], [1, 2, 3], [4, 5, 6]]),
        ("past_last", [[0, 2, 3], [4, 5, 6]]),
        ("{to_first: b}", [[0, 2, 3], [4, 5, 6]]),
    ],
)
def test_what_may_begin_after_a_match(spark: Any, after: str, numbers: list[list[int]]) -> None:
    rows = found(spark, SKIP.replace("AFTER", after), TWICE)
    assert [taken for taken, _ in rows] == numbers


def test_a_match_may_begin_with_the_last_event_of_the_one_before(spark: Any) -> None:
    text = """
    sequence: [low: value < 100, high: value > low.value]
    within: 9 s
    after_match: {to_last: high}
    """
    rows = found(spark, text, [(0, "a"), (1, "a"), (2, "a")])
    assert [taken for taken, _ in rows] == [[0, 1], [1, 2]]


PREVIOUS = """
sequence: [a: value > prev(value)]
within: 5 s
"""


def test_the_event_before_counts_until_the_end_of_the_time(spark: Any) -> None:
    assert found(spark, PREVIOUS, [(0, "a"), (5, "a")]) == [([1], 5)]
    assert found(spark, PREVIOUS, [(0, "a"), (6, "a")]) == []


def test_the_aggregates_of_a_step_include_the_event_that_is_tried(spark: Any) -> None:
    text = """
    sequence: [a+: kind = 'a' AND count(a) <= 2, b: "true"]
    within: 9 s
    after_match: past_last
    """
    rows = found(spark, text, [(0, "a"), (1, "a"), (2, "a")])
    assert [taken for taken, _ in rows] == [[0, 1, 2]]


def test_a_condition_that_is_null_is_not_met(spark: Any) -> None:
    text = """
    sequence: [a: kind = 'a', b: "value > nullif(a.value, 0)"]
    within: 9 s
    """
    events = [(0, "a"), (1, "a"), (2, "b")]
    assert [taken for taken, _ in found(spark, text, events)] == [[1, 2]]


def test_an_event_that_a_step_awaits_does_not_count_as_absent(spark: Any) -> None:
    text = """
    sequence: [a: kind = 'a', not any: "true", b: kind = 'b']
    within: 9 s
    """
    assert found(spark, text, [(0, "a"), (1, "b")]) == [([0, 1], 1)]
    assert found(spark, text, [(0, "a"), (1, "c"), (2, "b")]) == []


def test_names_of_steps_and_columns_ignore_case(spark: Any) -> None:
    text = """
    sequence:
      - a: kind = 'a'
      - z+: KIND = 'z' AND count(Z) <= 2 AND sum(z.Value) >= sum(Z.value) AND A.number < Number
      - end: kind = 'e'
    within: 9 s
    """
    events = [(0, "a"), (1, "z"), (2, "z"), (3, "e")]
    assert [taken for taken, _ in found(spark, text, events)] == [[0, 1, 2, 3]]


def test_a_value_of_an_event_that_is_not_taken_is_not_evaluated(spark: Any) -> None:
    text = """
    sequence: [a: kind = 'a', z: kind = 'z' AND value > a.value]
    within: 9 s
    yield: {numbers: collect_list(number), share: sum(100 / (z.value - 1))}
    """
    events = [Event(0, 0, "a", 1), Event(1, 1, "z", 1), Event(2, 2, "z", 2)]
    with interpreted(spark):
        (row,) = matches(spark, pattern(text), {7: events}, ())
    assert row[3] == [0, 2]


def test_ways_that_multiply_fail_before_they_fill_the_memory(spark: Any) -> None:
    text = """
    sequence:
      - a: kind = 'a'
      - group*: [any_of: [{x: kind = 'b'}, {y: kind = 'b'}]]
      - z: kind = 'z' AND size(collect_list(x.value)) > size(collect_list(y.value))
    within: 1 h
    max_state_per_key: 256KiB
    """
    keys = {7: [Event(at, at, "b" if at else "a", at) for at in range(40)]}
    with interpreted(spark), pytest.raises(Exception, match="max_state_per_key"):
        matches(spark, pattern(text), keys, ())


A_WITH_LIMIT = """
tables: [limits]
sequence: [a: kind = 'a']
within: 5 s
yield: {limit: limits.value}
"""


@pytest.mark.parametrize(
    ("events", "limit"),
    [
        ([(3, "limit"), (3, "a")], 0),
        ([(3, "a"), (3, "limit")], None),
        ([(0, "limit"), (900, "a")], 0),
        ([(0, "limit"), (2, "limit"), (3, "a"), (4, "limit")], 1),
    ],
    ids=["at the same time before", "at the same time after", "long before", "the newest"],
)
def test_an_event_has_the_newest_row_of_a_table_up_to_it(
    spark: Any, events: list[tuple[int, str]], limit: int | None
) -> None:
    assert [row[-1] for row in found_rows(spark, A_WITH_LIMIT, events)] == [limit]


def test_a_match_has_the_row_of_its_last_event(spark: Any) -> None:
    text = A_THEN_B + "tables: [limits]\nyield: {limit: limits.value}"
    events = [(0, "limit"), (1, "a"), (2, "limit"), (3, "b"), (4, "limit")]
    assert [row[-1] for row in found_rows(spark, text, events)] == [2]


def test_a_row_of_a_table_is_no_event(spark: Any) -> None:
    text = """
    tables: [limits]
    contiguity: strict
    sequence: [a: kind = 'a', b: "kind = 'b' AND prev(kind) = 'a' AND limits.value = 1"]
    within: 5 s
    """
    assert found(spark, text, [(0, "a"), (1, "limit"), (2, "b")]) == [([0, 2], 2)]


def test_a_table_outlasts_the_events_before(spark: Any) -> None:
    text = """
    tables: [limits]
    sequence: [a: "prev(kind) IS NULL AND limits.value = 0"]
    within: 5 s
    """
    assert found(spark, text, [(0, "limit"), (1, "a"), (6, "a"), (12, "a")]) == [
        ([1], 1),
        ([3], 12),
    ]
