"""Each form of docs/QUERY-FORMS.md yields what a direct computation yields, however batches are
cut, and not before the watermark has reached its end."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml

from ha_engine.query.application import load_application
from ha_engine.query.check import check_application
from tests.docs.pages import ROOT, applications
from tests.query.local_node import LocalNode, run_command

pytestmark = [pytest.mark.spark, pytest.mark.rotates("files")]

PAGE = ROOT / "docs" / "QUERY-FORMS.md"
BERLIN = ZoneInfo("Europe/Berlin")
DELAY = timedelta(seconds=10)
MINUTE, TEN = timedelta(minutes=1), timedelta(seconds=10)
Event = dict[str, Any]
Events = list[Event]
Row = dict[str, Any]


def _events() -> Events:
    """Events around the ends of a day, a week, a month and a year in Berlin, some at equal times,
    and none later than the watermark allows."""
    random, events = Random(3), Events()
    for begin in (
        datetime(2026, 3, 28, 22, 59, 20, tzinfo=UTC),
        datetime(2026, 3, 29, 21, 59, 40, tzinfo=UTC),
        datetime(2026, 3, 31, 21, 59, 30, tzinfo=UTC),
        datetime(2026, 12, 31, 22, 59, 30, tzinfo=UTC),
    ):
        moments = [begin + timedelta(seconds=random.randrange(0, 90)) for _ in range(14)]
        moments.append(datetime.fromtimestamp(3600 * round(begin.timestamp() / 3600), UTC))
        moments.sort(key=lambda at: at + timedelta(seconds=random.randrange(0, 9)))
        events += [
            {
                "at": at,
                "room": random.choice(["lab", "hall", "attic"]),
                "sensor": random.choice("rst"),
                "temp": random.randrange(10, 14) / 2,
            }
            for at in moments
        ]
    return events


EVENTS = _events()
LAST = {"at": datetime(2029, 1, 1, tzinfo=UTC), "room": "lab", "sensor": "r", "temp": 99.0}
"""Closes all windows before it, and does not close its own."""
CUTS = {"parts": [18, 31, 60], "whole": [60], "many": [1, 17, 18, 31, 40, 59, 60]}


# -- direct computations ---------------------------------------------------------------------------


def _grouped(events: Events, key: Callable[[Event], Iterable[Any]]) -> dict[Any, Events]:
    """The events by each of their keys, in the order of time and then of their ids."""
    groups: dict[Any, Events] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event["at"], event["_event_id"])):
        for one in key(event):
            groups[one].append(event)
    return groups


def _floor(at: datetime, length: timedelta) -> datetime:
    return at - (at - datetime(2026, 1, 1, tzinfo=UTC)) % length


def _each(events: Events, length: timedelta, *columns: str) -> dict[Any, Events]:
    return _grouped(
        events, lambda e: [(_floor(e["at"], length), *(e[column] for column in columns))]
    )


def _first_and_last(events: Events) -> Iterator[Row]:
    for (minute, room), group in _each(events, MINUTE, "room").items():
        first, last = group[0]["temp"], group[-1]["temp"]
        yield {"minute": minute, "room": room, "first": first, "last": last}


def _fewer_rows(events: Events) -> Iterator[Row]:
    for group in _each(events, TEN, "sensor").values():
        yield {column: group[-1][column] for column in ("at", "room", "sensor", "temp")}


def _all_events(events: Events) -> Iterator[Row]:
    for (start,), group in _each(events, TEN).items():
        yield {"start": start, "events": group}


def _highest(events: Events) -> Iterator[Row]:
    for (minute,), group in _each(events, MINUTE).items():
        ranked = sorted(group, key=lambda e: (e["temp"], e["at"], e["_event_id"]), reverse=True)
        for place, event in enumerate(ranked[:3], start=1):
            yield {"minute": minute, "place": place} | {k: event[k] for k in ("sensor", "temp")}


def _largest_groups(events: Events) -> Iterator[Row]:
    for (minute,), group in _each(events, MINUTE).items():
        counts = Counter(event["room"] for event in group).items()
        ranked = sorted(((n, room) for room, n in counts), reverse=True)[:2]
        yield {"minute": minute, "busiest": [{"room": room, "n": n} for n, room in ranked]}


def _distinct(events: Events) -> Iterator[Row]:
    for (minute,), group in _each(events, MINUTE).items():
        yield {"minute": minute, "sensors": len({event["sensor"] for event in group})}


def _hopping(events: Events) -> Iterator[Row]:
    groups = _grouped(
        events, lambda e: [(_floor(e["at"], TEN) - step * TEN, e["room"]) for step in range(6)]
    )
    for (start, room), group in groups.items():
        mean = sum(event["temp"] for event in group) / len(group)
        yield {"start": start, "end": start + MINUTE, "room": room, "mean": mean}


def _sliding(events: Events) -> Iterator[Row]:
    for event in events:
        before = [
            other["temp"]
            for other in events
            if other["room"] == event["room"] and event["at"] - MINUTE < other["at"] <= event["at"]
        ]
        n = len(before)
        yield {k: event[k] for k in ("at", "_event_id", "room", "temp")} | {
            "n": n,
            "mean": sum(before) / n,
        }


def _sessions(events: Events) -> Iterator[Row]:
    gap = timedelta(minutes=5)
    for sensor, group in _grouped(events, lambda e: [e["sensor"]]).items():
        begun = [i for i, e in enumerate(group) if i == 0 or e["at"] - group[i - 1]["at"] >= gap]
        for first, after in zip(begun, [*begun[1:], len(group)], strict=True):
            ended = group[after - 1]["at"] + gap
            row = {"sensor": sensor, "begun": group[first]["at"], "ended": ended}
            yield row | {"n": after - first}


def _period(period: str, at: datetime) -> tuple[datetime, datetime]:
    """The local start of the period, and the moment at which it ends."""
    day = at.astimezone(BERLIN).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    match period:
        case "day":
            start, end = day, day + timedelta(days=1)
        case "week":
            start = day - timedelta(days=day.weekday())
            end = start + timedelta(days=7)
        case "month":
            start = day.replace(day=1)
            end = (start + timedelta(days=31)).replace(day=1)
        case "quarter":
            start = day.replace(month=day.month - (day.month - 1) % 3, day=1)
            end = (start + timedelta(days=93)).replace(day=1)
        case _:
            start = day.replace(month=1, day=1)
            end = start.replace(year=start.year + 1)
    return start.replace(tzinfo=UTC), end.replace(tzinfo=BERLIN).astimezone(UTC)


def _calendar(period: str, events: Events) -> Iterator[Row]:
    for (begin, end, room), group in _grouped(
        events, lambda e: [(*_period(period, e["at"]), e["room"])]
    ).items():
        highest = max(event["temp"] for event in group)
        yield {
            "month": begin.date(),
            "room": room,
            "n": len(group),
            "highest": highest,
            "ends": end,
        }


EXPECTED: dict[str, Callable[[Events], Iterator[Row]]] = {
    "First and last": _first_and_last,
    "Fewer rows": _fewer_rows,
    "All events of a window, in order": _all_events,
    "The highest values": _highest,
    "The largest groups": _largest_groups,
    "Distinct values": _distinct,
    "Hopping windows": _hopping,
    "Sliding windows": _sliding,
    "Sessions": _sessions,
    "Days, weeks, months and years": partial(_calendar, "month"),
}
ENDS = {
    "First and last": lambda row: row["minute"] + MINUTE,
    "The largest groups": lambda row: row["minute"] + MINUTE,
    "Sliding windows": lambda row: row["at"] + MINUTE,
    "Sessions": lambda row: row["ended"],
    "Days, weeks, months and years": lambda row: row["ends"],
}
"""The moment that the watermark must reach before a form yields a row."""


# -- the queries -----------------------------------------------------------------------------------


def forms() -> dict[str, str]:
    """The SQL of each section of the page, by the heading."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    found = {section.partition("\n")[0]: section for section in sections}
    return {
        heading: sql
        for heading, section in found.items()
        for sql in re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    }


def _application(node: LocalNode, queries: dict[str, dict[str, str]]) -> Any:
    tree = yaml.safe_load(applications(PAGE)[0])
    tree["queries"] = queries
    path = node.directory / "application.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return load_application(path)


@dataclass
class Output:
    """What the queries yielded: by query, rows with the number of their batch. ``events`` have the
    ids that the engine gave them."""

    events: Events
    rows: dict[str, list[tuple[int, Row]]]


def _run(
    node: LocalNode, runner: Any, queries: dict[str, dict[str, str]], cuts: list[int]
) -> Output:
    app, events = _application(node, queries), Events()
    running = runner(app)
    for spec in app.queries.values():
        running.run(run_command(spec))
    stream = app.streams["readings"]
    for begin, end in pairwise([0, *cuts]):
        node.append(stream, EVENTS[begin:end])
        sequence = node.journal.last.sequence
        for index, event in enumerate(EVENTS[begin:end]):
            events.append(event | {"_event_id": f"{sequence}-{index}"})
        node.mark(*queries)
    node.append(stream, [LAST])
    for _ in range(2):
        node.mark(*queries)
    batches = range(1, len(cuts) + 3)
    rows = {
        name: [
            (number, row) for number in batches for row in node.admitted(name, number).to_pylist()
        ]
        for name in queries
    }
    return Output(events, rows)


def _comparable(rows: Iterable[Row]) -> list[str]:
    return sorted(repr(_plain(row)) for row in rows)


def _plain(value: Any) -> Any:
    """The value with moments in UTC, and with its fields in one order."""
    match value:
        case dict():
            return sorted((key, _plain(one)) for key, one in value.items())
        case list():
            return [_plain(one) for one in value]
        case datetime():
            return value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC).isoformat()
        case _:
            return value


def test_each_form_of_the_page_is_tested() -> None:
    assert forms().keys() == EXPECTED.keys() | {"The newest event of each key"}
    assert len(EVENTS) == CUTS["whole"][-1] == CUTS["many"][-1]


def test_each_form_of_the_page_can_run(node: LocalNode, spark: Any) -> None:
    queries = {f"q{n}": {"sql": forms()[heading]} for n, heading in enumerate(EXPECTED)}
    report = check_application(_application(node, queries), spark)
    assert report.is_good, report


def test_three_forms_yield_each_row_once_when_the_watermark_has_reached_its_end(
    node: LocalNode, runner: Any
) -> None:
    names = ["First and last", "The highest values", "Days, weeks, months and years"]
    _require_rows(node, runner, names, CUTS["parts"])


@pytest.mark.nightly(
    "each form with each cut; test_three_forms_yield_each_row_once_when_the_watermark_has_reached_"
    "its_end runs three"
)
@pytest.mark.parametrize("cuts", CUTS)
def test_each_form_yields_each_row_once_when_the_watermark_has_reached_its_end(
    node: LocalNode, runner: Any, cuts: str
) -> None:
    _require_rows(node, runner, list(EXPECTED), CUTS[cuts])


def _require_rows(node: LocalNode, runner: Any, headings: list[str], cuts: list[int]) -> None:
    names = {f"q{number}": heading for number, heading in enumerate(headings)}
    queries = {name: {"sql": forms()[heading]} for name, heading in names.items()}
    output = _run(node, runner, queries, cuts)
    for name, heading in names.items():
        rows = [row for _, row in output.rows[name]]
        assert _comparable(rows) == _comparable(EXPECTED[heading](output.events)), heading
        if heading in ENDS:
            for number, row in output.rows[name]:
                assert number == _batch_of(ENDS[heading](row), cuts), (heading, row)


def _batch_of(end: datetime, cuts: list[int]) -> int:
    """The number of the first batch that begins with a watermark of at least ``end``."""
    for number, cut in enumerate(cuts, start=2):
        newest = max(event["at"] for event in EVENTS[:cut])
        if newest - DELAY >= end:
            return number
    return len(cuts) + 2  # LAST is in the batch before


@pytest.mark.nightly(
    "four more periods; test_three_forms_yield_each_row_once_when_the_watermark_has_reached_its_"
    "end has the month"
)
def test_other_periods_of_the_calendar_have_their_ends(node: LocalNode, runner: Any) -> None:
    month = forms()["Days, weeks, months and years"]
    table = PAGE.read_text().partition("| period | in `date_trunc`")[2]
    listed = re.findall(r"^\| .*? \| `'(\w+)'` \| `(INTERVAL .*?)` \|$", table, re.MULTILINE)
    queries = {
        period: {
            "sql": month.replace("'month'", f"'{period}'").replace("INTERVAL 1 MONTH", interval)
        }
        for period, interval in listed
    }
    assert queries.keys() == {"day", "week", "quarter", "year"}
    output = _run(node, runner, queries, CUTS["parts"])
    for period, rows in output.rows.items():
        wanted = _calendar(period, output.events)
        assert _comparable(row for _, row in rows) == _comparable(wanted), period
        for number, row in rows:
            assert number == _batch_of(row["ends"], CUTS["parts"]), (period, row)


def test_newest_event_of_each_key_is_not_replaced_by_a_late_one(
    node: LocalNode, runner: Any
) -> None:
    query = {"sql": forms()["The newest event of each key"], "output_mode": "update"}
    output = _run(node, runner, {"newest": query}, CUTS["parts"])
    seen = {
        row["sensor"]: (row["at"], row["temp"])
        for number, row in output.rows["newest"]
        if number <= len(CUTS["parts"])
    }
    by_sensor = _grouped(output.events, lambda event: [event["sensor"]])
    assert seen == {s: (group[-1]["at"], group[-1]["temp"]) for s, group in by_sensor.items()}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            {
                "sql": "SELECT count(DISTINCT sensor) AS n FROM readings "
                "GROUP BY window(at, '1 minute')"
            },
            "approx_count_distinct",
        ),
        ({"sql": "SELECT at FROM readings ORDER BY at"}, "Sorting is not supported"),
        (
            {"sql": "SELECT count(*) AS n FROM readings GROUP BY date_trunc('month', at)"},
            "without watermark",
        ),
        (
            {
                "sql": "SELECT count(*) AS n FROM readings "
                "GROUP BY sensor, session_window(at, '5 minutes')",
                "output_mode": "update",
            },
            "session window",
        ),
    ],
)
def test_what_the_page_calls_refused_is_refused(
    node: LocalNode, spark: Any, query: dict[str, str], words: str
) -> None:
    (report,) = check_application(_application(node, {"q": query}), spark).queries
    assert report.error is not None
    assert words in report.error


def test_session_may_have_a_gap_of_its_own(node: LocalNode, spark: Any) -> None:
    gaps = re.findall(r"`(session_window\(at, CASE .*?)`", PAGE.read_text())
    queries = {
        f"q{number}": {"sql": f"SELECT count(*) AS n FROM readings GROUP BY sensor, {gap}"}
        for number, gap in enumerate(gaps)
    }
    assert len(queries) == 1
    report = check_application(_application(node, queries), spark)
    assert report.is_good, report
