"""A query that Spark has not stopped yet after a change of the application (RULES.md#r23)."""

from __future__ import annotations

import pytest

from ha_engine.core import Deployment, QueryPlan, RestartPolicy
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core.query_control import QueryControl
from ha_engine.types import Application, Mark, QueryVersion
from tests.core.lone import LIMITS, take

FORMER, PRESENT = "journal:1", "journal:4"
COMMITTED = 4


@pytest.fixture
def control() -> QueryControl:
    """Return the queries of a node after an application record that resets the state of q, and
    after marks 1 and 2."""
    plan = QueryPlan("q", "b", frozenset({"s"}), ("sink",))
    deployment = Deployment("b", (plan,), LIMITS, RestartPolicy())
    first = Mark("q", 0, 0)
    bodies = (
        Application("a", (QueryVersion("q", "a", first),)),
        Mark("q", 1, 1),
        Mark("q", 2, 1),
        Application("b", (QueryVersion("q", "b", first, reset=True),)),
    )
    take(deployment, bodies)
    control = QueryControl("node.1", "journal", deployment)
    control.handle(0.0, on.QueryProcessAdopted("node.0"))
    control.handle(0.0, on.QueryProcessAttended("node.0"))
    list(control.run(0.0, COMMITTED))
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
