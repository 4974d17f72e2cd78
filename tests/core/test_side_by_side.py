"""What the queries of two applications mean for each other: nothing but their removal."""

from __future__ import annotations

from ha_engine.core import Deployment, QueryPlan, RestartPolicy
from ha_engine.types import Application, Body, Events, Mark, Published, QueryVersion
from tests.core.lone import LIMITS, take

PLANS = (
    QueryPlan("flights", "d", frozenset({"departures"}), ("table",)),
    QueryPlan("orders", "d", frozenset({"orders"}), ("table",)),
    QueryPlan("sums", "d", frozenset({"orders", "more"}), ()),
)
NAMES = [plan.name for plan in PLANS]


def after(*bodies: Body) -> Deployment:
    deployment = Deployment("d", PLANS, LIMITS, RestartPolicy())
    begun = tuple(QueryVersion(name, "d", Mark(name, 0, 0)) for name in NAMES)
    take(deployment, [Application("d", begun), *bodies])
    return deployment


def test_backlog_of_a_stream_is_that_of_the_slowest_query_that_reads_it() -> None:
    deployment = after(
        Events("departures", 5, 0),
        Events("orders", 3, 0),
        Mark("orders", 1, 3),
        Events("more", 1, 0),
    )
    streams = ("departures", "orders", "more", "unread")
    assert [deployment.backlog_events(one) for one in streams] == [5, 4, 4, 0]
    assert deployment.backlog_events() == 5


def test_query_is_unfinished_until_its_sinks_have_all_events() -> None:
    events, mark = Events("orders", 3, 0), Mark("orders", 1, 2)
    assert after().unfinished(NAMES) == []
    assert after(events).unfinished(NAMES) == ["orders", "sums"]
    assert after(events, mark).unfinished(["orders"]) == ["orders"]
    assert after(events, mark, Published("orders", "table", 1)).unfinished(["orders"]) == []
    assert after(events).unfinished(["flights", "of another application"]) == []


def test_query_without_sinks_is_finished_with_its_newest_mark() -> None:
    assert after(Events("more", 3, 0), Mark("sums", 1, 2)).unfinished(NAMES) == []
