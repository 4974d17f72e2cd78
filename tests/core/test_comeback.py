"""A query with a new state begins after batches that this node never ran (RULES.md#r19,
RULES.md#r23, RULES.md#r28)."""

from __future__ import annotations

from ha_engine.core import Deployment, QueryPlan, RestartPolicy
from ha_engine.core import actions as do
from ha_engine.core.base import base_of
from ha_engine.types import (
    Application,
    Base,
    Events,
    Mark,
    Position,
    Published,
    QueryVersion,
    Skip,
)
from tests.core.lone import LIMITS, take

FIRST = Application("a", (QueryVersion("q", "v", Mark("q", 0, 0)),))
WITHOUT = Application("b", ())


def deployment(*sinks: str) -> Deployment:
    plan = QueryPlan("q", "v", frozenset({"s"}), sinks)
    return Deployment("a", (plan,), LIMITS, RestartPolicy())


def anew(behind: int, through: int) -> Application:
    version = QueryVersion("q", "v", Mark("q", behind, through), reset=True)
    return Application("a", (version,))


def behind_two_of_four(*sinks: str) -> Deployment:
    """Four batches were planned; this node admitted two, of which the first is published."""
    one = deployment(*sinks)
    take(one, [FIRST, *(Mark("q", n, n) for n in (1, 2, 3, 4)), Published("q", "board", 1)])
    one.marks["q"].set_outbox_floor(2, 1)
    one.restore_admitted("q", 2, 1, 100)
    return one


def trims(one: Deployment, committed: int) -> list[tuple[str, int]]:
    told = list(one.trims(committed))
    assert all(isinstance(action, do.TrimOutbox) for action in told)
    return [(action.query, action.through) for action in told]


def runs(one: Deployment, committed: int) -> list[str]:
    return [action.query for action in one.runs(0.0, committed, "j", ())]


def test_outbox_skips_missing_batches_once_its_own_are_published() -> None:
    one = behind_two_of_four("board")
    began = take(one, [anew(4, 7)], 7)
    assert (trims(one, began), runs(one, began)) == ([("q", 1)], [])  # the second is not published
    told = take(one, [Published("q", "board", 2)], began + 1)
    assert trims(one, told) == [("q", 2), ("q", 4)]
    assert runs(one, told) == ["q"]
    assert trims(one, told) == []


def test_new_sink_begins_behind_the_missing_batches() -> None:
    """The node may claim the sink before its outbox continues after the batches, or after."""
    one = behind_two_of_four("board")
    take(one, [anew(4, 7)], 7)
    assert (one.marks["q"].start_after("new"), one.marks["q"].start_after("board")) == (4, 1)
    told = take(one, [Published("q", "board", 2)], 8)
    assert trims(one, told) == [("q", 2), ("q", 4)]
    assert (one.marks["q"].start_after("new"), one.marks["q"].start_after("board")) == (4, 2)


def test_uncommitted_application_record_does_not_move_the_outbox() -> None:
    """1. b has the record uncommitted, and its outbox continues after batch 4. 2. The record is
    truncated: b would take batch 3 of the old state for one that it trimmed long ago."""
    one = behind_two_of_four("board")
    began = take(one, [Published("q", "board", 2), anew(4, 7)], 7)
    assert (trims(one, began - 1), runs(one, began - 1)) == ([("q", 2)], [])
    assert trims(one, began) == [("q", 4)]


def test_node_knows_after_a_trim_that_a_record_began_the_query_again() -> None:
    """The node received the record while it ran an application without the query."""
    other = Deployment("b", (), LIMITS, RestartPolicy())
    take(other, [FIRST, Mark("q", 1, 1), WITHOUT, Events("s", 1, 0), anew(1, 4)])
    other.forget_through(5)
    one = deployment()
    one.load_base(base_of(other, Base(Position(1, 5))))
    assert one.marks["q"].last == Mark("q", 1, 4)


def test_skip_is_forgotten_once_the_new_state_begins_behind_its_batch() -> None:
    """RULES.md#r12. The skip is forgotten live and in a replay of the records, trimmed or not."""
    bodies = [
        FIRST,
        Mark("q", 1, 1),
        Mark("q", 2, 2),
        Skip("q", 2, "operator", "reason"),
        anew(2, 2),
    ]
    one = deployment()
    take(one, bodies)
    assert one.skips.known == set()
    trimmed = deployment()
    take(trimmed, bodies[:3])
    trimmed.forget_through(3)
    take(trimmed, bodies[3:4], 4)
    assert trimmed.skips.known == set()
