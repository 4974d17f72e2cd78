"""Patterns as streaming queries of real Spark, over a real journal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ha_engine.query.application import StreamApplication
from ha_engine.query.runner import QueryRunner
from tests.programs import needs
from tests.query.local_node import LocalNode, run_command
from tests.waiting import wait_until

pytestmark = [needs("javac"), pytest.mark.spark, pytest.mark.rotates("files")]

Applications = Callable[[str], StreamApplication]
Runners = Callable[[StreamApplication], QueryRunner]
START = datetime(2013, 1, 1, tzinfo=UTC)

UNPAID = """
  unpaid:
    pattern:
      from: events
      by: [key]
      sequence:
        - placed: text = 'placed'
        - not paid: text = 'paid'
      within: 15 minutes
      yield: {key: key, amount: placed.value, match_start: match_start, match_end: match_end}
"""
TREND = """
  trend:
    sql: >
      SELECT key, low, high - low AS rise
      FROM events MATCH_RECOGNIZE (
        PARTITION BY key
        ORDER BY at
        MEASURES first(up.value) AS low, last(up.value) AS high
        PATTERN (up up{2,} down)
        WITHIN INTERVAL 1 HOUR
        DEFINE up AS prev(value) IS NULL OR value > prev(value), down AS value <= prev(value)
      )
      WHERE high - low > 1
"""
ORDERS_AND_WEIGHTS = """
  weighed:
    pattern:
      from: [events, others]
      by: [key]
      sequence:
        - event: {from: events}
        - other: {from: others, where: weight > event.value}
      within: 10 minutes
      yield: {key: key, value: event.value, weight: other.weight}
"""
LARGE = """
  large:
    pattern:
      from: events
      by: [key]
      sequence: [first: text IS NOT NULL, second: text = first.text]
      within: 15 minutes
      max_state_per_key: 64KiB
"""


ABOVE_LIMIT = """
  above:
    pattern:
      from: events
      tables: [others]
      by: [key]
      sequence: [high: value > others.weight]
      within: 1 minute
      yield: {key: key, value: high.value, weight: others.weight}
"""


def event(minute: float, key: str, text: str | None = None, value: int = 1) -> dict[str, Any]:
    return {"at": START + timedelta(minutes=minute), "key": key, "text": text, "value": value}


def minutes(moment: datetime) -> float:
    return (moment - START).total_seconds() / 60


def test_an_absence_yields_a_row_when_the_watermark_reaches_its_end(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(UNPAID)
    events = app.streams["events"]
    runner(app).run(run_command(app.queries["unpaid"]))
    placed = [event(0, "a", "placed", 10), event(0, "b", "placed", 20)]
    node.append(events, placed, [event(14, "b", "paid"), event(14.99, "c", "other")])
    node.mark("unpaid")
    node.mark("unpaid")  # has the watermark of the events before
    assert node.admitted("unpaid", 2).num_rows == 0
    node.append(events, [event(15, "c", "other")])
    node.mark("unpaid")
    node.mark("unpaid")
    assert node.admitted("unpaid", 3).num_rows == 0
    (row,) = node.admitted("unpaid", 4).to_pylist()
    assert (row["key"], row["amount"]) == ("a", 10)
    assert (minutes(row["match_start"]), minutes(row["match_end"])) == (0, 15)


def test_a_restart_continues_open_matches(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(UNPAID)
    events = app.streams["events"]
    first = runner(app)
    first.run(run_command(app.queries["unpaid"]))
    node.append(events, [event(0, "a", "placed"), event(1, "b", "placed")])
    node.mark("unpaid")
    node.admitted("unpaid", 1)
    first.halt("unpaid")
    runner(app).run(run_command(app.queries["unpaid"]))
    node.append(events, [event(9, "b", "paid"), event(40, "c", "other")])
    node.mark("unpaid")
    node.mark("unpaid")
    assert node.admitted("unpaid", 3).column("key").to_pylist() == ["a"]


def test_late_events_are_dropped_and_counted(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(UNPAID)
    events = app.streams["events"]
    runner(app).run(run_command(app.queries["unpaid"]))
    node.append(events, [event(0, "a", "placed"), event(14, "c", "other")])
    node.mark("unpaid")
    node.mark("unpaid")
    node.append(events, [event(13, "a", "paid"), event(20, "c", "other")])
    node.mark("unpaid")
    node.mark("unpaid")
    assert node.admitted("unpaid", 4).column("key").to_pylist() == ["a"]
    wait_until(lambda: ("unpaid", 3, 1) in late(node))


def late(node: LocalNode) -> set[tuple[str, int, int]]:
    return {(query, one.number, one.late_rows) for query, one in node.seen.progress}


def test_match_recognize_is_part_of_a_select(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(TREND)
    events = app.streams["events"]
    runner(app).run(run_command(app.queries["trend"]))
    values = {"a": [1, 2, 4, 3], "b": [5, 6, 6], "c": [1, 2, 3, 0]}
    rows = [event(at, key, value=one) for key, all in values.items() for at, one in enumerate(all)]
    node.append(events, rows, [event(200, "z")])
    node.mark("trend")
    node.mark("trend")
    found = node.admitted("trend", 2).to_pylist()
    assert sorted((row["key"], row["low"], row["rise"]) for row in found) == [
        ("a", 1, 3),
        ("c", 1, 2),
    ]


def test_a_pattern_over_two_streams_takes_events_in_the_order_of_their_times(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(ORDERS_AND_WEIGHTS)
    events, others = app.streams["events"], app.streams["others"]
    runner(app).run(run_command(app.queries["weighed"]))
    weights = [(1, 2.5), (4, 9.0), (60, 0.0)]
    node.append(
        others, [{"at": START + timedelta(minutes=m), "key": "a", "weight": w} for m, w in weights]
    )
    node.append(events, [event(0, "a", value=2), event(2, "a", value=3), event(60, "z")])
    node.mark("weighed")
    node.mark("weighed")
    found = node.admitted("weighed", 2).to_pylist()
    assert sorted((row["value"], row["weight"]) for row in found) == [(2, 2.5), (3, 9.0)]


def test_a_key_with_too_much_state_fails_its_query_and_no_other(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(LARGE + UNPAID)
    events = app.streams["events"]
    runs = runner(app)
    for name in ("large", "unpaid"):
        runs.run(run_command(app.queries[name]))
    node.append(events, [event(0, "a", str(number) * 50) for number in range(2_000)])
    node.mark("large", "unpaid")
    failure = node.failure("large")
    assert "[a]" in failure.reason
    assert "max_state_per_key" in failure.reason
    assert not failure.by_host
    node.append(events, [event(0, "b", "placed"), event(20, "c")])
    node.mark("unpaid")
    node.mark("unpaid")
    assert node.admitted("unpaid", 3).column("key").to_pylist() == ["b"]


def test_too_many_keys_fail_their_query(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(UNPAID.replace("within:", "max_keys: 2\n      within:"))
    runner(app).run(run_command(app.queries["unpaid"]))
    node.append(app.streams["events"], [event(0, key, "placed") for key in "abc"])
    node.mark("unpaid")
    node.mark("unpaid")
    failure = node.failure("unpaid")
    assert failure.reason.startswith("StateTooLarge: the state has 3 keys; the limit is max_keys")


@pytest.mark.parametrize(
    ("old", "new"), [("amount: placed.value", "amount: placed.ratio"), ("by: [key]", "by: [text]")]
)
def test_the_state_of_another_pattern_is_refused(
    node: LocalNode, application: Applications, runner: Runners, old: str, new: str
) -> None:
    app = application(UNPAID)
    first = runner(app)
    first.run(run_command(app.queries["unpaid"]))
    node.append(app.streams["events"], [event(0, "a", "placed")])
    node.mark("unpaid")
    # Before its end, the batch would be repeated with the other pattern, and differ.
    wait_until(lambda: any(one.number == 1 for _, one in node.seen.progress))
    first.halt("unpaid")
    other = UNPAID.replace(old, new).replace("{key: key, ", "{")
    changed = application(other)
    runner(changed).run(run_command(changed.queries["unpaid"]))
    node.append(app.streams["events"], [event(1, "a", "placed")])
    node.mark("unpaid")
    assert "on_change: reset" in node.failure("unpaid").reason


def weights(*rows: tuple[float, str, float]) -> list[dict[str, Any]]:
    return [{"at": START + timedelta(minutes=at), "key": key, "weight": w} for at, key, w in rows]


def test_an_event_is_compared_with_the_row_of_a_table_in_a_silent_stream(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(ABOVE_LIMIT)
    events, others = app.streams["events"], app.streams["others"]
    running, command = runner(app), run_command(app.queries["above"])
    running.run(command)
    node.append(others, weights((1, "a", 5), (4, "a", 9), (1, "b", 0)))
    node.append(events, [event(0, "a", value=99), event(3, "a", value=6), event(5, "a", value=9)])
    node.mark("above")
    node.admitted("above", 1)
    running.halt("above")
    running.run(command)
    node.append(events, [event(6, "a", value=10), event(6, "b", value=1), event(60, "c")])
    node.mark("above")
    node.mark("above")
    found = [row for n in (1, 2, 3) for row in node.admitted("above", n).to_pylist()]
    assert sorted((row["key"], row["value"], row["weight"]) for row in found) == [
        ("a", 6, 5),
        ("a", 10, 9),
        ("b", 1, 0),
    ]


def test_a_late_row_of_a_table_replaces_only_an_older_one(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(ABOVE_LIMIT)
    events, others = app.streams["events"], app.streams["others"]
    runner(app).run(run_command(app.queries["above"]))
    node.append(others, weights((10, "a", 5), (1, "b", 5)))
    node.append(events, [event(30, "c")])
    node.mark("above")
    node.mark("above")  # from here on, the watermark is past all rows of the table
    node.append(others, weights((9, "a", 0), (2, "b", 0)))
    node.append(events, [event(31, "a", value=3), event(31, "b", value=3), event(60, "c")])
    node.mark("above")
    node.mark("above")
    found = [row for n in range(1, 5) for row in node.admitted("above", n).to_pylist()]
    assert [(row["key"], row["weight"]) for row in found] == [("b", 0)]


def test_rows_of_a_table_count_as_keys(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(ABOVE_LIMIT.replace("within:", "max_keys: 2\n      within:"))
    runner(app).run(run_command(app.queries["above"]))
    node.append(app.streams["others"], weights(*((1, key, 1) for key in "abc")))
    node.append(app.streams["events"], [event(30, "d")])
    for _ in range(3):
        node.mark("above")
    assert "the limit is max_keys, 2" in node.failure("above").reason
