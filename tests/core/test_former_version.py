"""A query that Spark has not stopped yet after a change of the application (RULES.md#r23)."""

from __future__ import annotations

import pytest

from ha_engine.core import Deployment, QueryPlan, QueryState, RestartPolicy
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core.query_control import QueryControl
from ha_engine.types import Application, Body, Mark, QueryVersion
from tests.core.lone import LIMITS, take

FORMER, PRESENT = "journal:1", "journal:4"
COMMITTED = 4


def application(digest: str) -> Application:
    """A record that puts this definition of the query in force, without state."""
    return Application(digest, (QueryVersion("q", digest, Mark("q", 0, 0), reset=True),))


def attended(digest: str, *bodies: Body) -> QueryControl:
    """Return a node with this definition of the query after ``bodies``, whose query process asks
    what to run."""
    plan = QueryPlan("q", digest, frozenset({"s"}), ("sink",))
    deployment = Deployment(digest, (plan,), LIMITS, RestartPolicy())
    take(deployment, bodies)
    control = QueryControl("node.1", "journal", deployment)
    control.handle(0.0, on.QueryProcessAdopted("node.0"))
    control.handle(0.0, on.QueryProcessAttended("node.0"))
    return control


def started(control: QueryControl, committed: int) -> list[str]:
    """Return the lineages with which the node starts queries now."""
    return [one.lineage for one in control.run(0.1, committed, ()) if isinstance(one, do.RunQuery)]


@pytest.fixture
def control() -> QueryControl:
    """Return a node that runs the query after a change, with marks 1 and 2 before the change."""
    control = attended("b", application("a"), Mark("q", 1, 1), Mark("q", 2, 1), application("b"))
    assert started(control, COMMITTED) == [PRESENT]
    return control


def test_poll_of_the_former_version_gets_no_mark(control: QueryControl) -> None:
    control.handle(0.1, on.MarkWanted("q", 1, FORMER))
    assert list(control.answers(COMMITTED)) == []
    control.handle(0.1, on.MarkWanted("q", 0, PRESENT))
    assert list(control.answers(COMMITTED)) == [do.AnswerMark(Mark("q", 1, 1), PRESENT)]


def test_batch_of_the_former_version_does_not_show_how_far_the_present_one_is(
    control: QueryControl,
) -> None:
    control.handle(0.1, on.BatchAdmitted("q", 1, 1, 100, FORMER))
    assert control.batches() == ()
    control.handle(0.1, on.BatchAdmitted("q", 1, 1, 100, PRESENT))
    assert control.batches() == (("q", 1),)


def test_failure_or_refusal_of_the_former_version_does_not_stop_the_present_one(
    control: QueryControl,
) -> None:
    life = control.deployment.lives["q"]
    assert control.handle(0.1, on.QueryFailed("q", 1, "a cast", FORMER)) is None
    control.handle(0.1, on.QueryRefused("q", "no such column", FORMER))
    assert life.state is QueryState.RUNNING
    control.handle(0.1, on.QueryRefused("q", "no such column", PRESENT))
    assert life.state is QueryState.FAILED


def test_change_and_the_way_back_start_a_query_again_that_kept_its_definition() -> None:
    """1. The other node has got definition b by mistake, and the operator takes it back. 2. This
    node, which always had definition a, receives both changes."""
    control = attended("a", application("a"))
    assert started(control, 1) == ["journal:1"]
    end = take(control.deployment, [application("b"), application("a")], 2, mine=False)
    assert started(control, end - 1) == []
    assert started(control, end) == ["journal:3"]
