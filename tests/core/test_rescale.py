"""RULES.md#r35: an operator changes the number of partitions of a query's state."""

from __future__ import annotations

from dataclasses import replace

from ha_engine.core import Deployment, JournalState, QueryPlan, RestartPolicy
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core.query_control import QueryControl
from ha_engine.types import Application, Body, Events, Mark, Position, QueryVersion, Record
from tests.core.lone import LIMITS, take
from tests.core.world import World

PLAN = QueryPlan("q", "v1", frozenset({"s"}), ())
FIRST = QueryVersion("q", "v1", Mark("q", 0, 0))


def deployed(*bodies: Body, planned: QueryPlan = PLAN) -> Deployment:
    deployment = Deployment("app", (planned,), LIMITS, RestartPolicy())
    take(deployment, bodies)
    return deployment


def application(version: QueryVersion) -> Application:
    return Application("app", (version,))


def partitions(deployment: Deployment) -> tuple[tuple[int, int], ...]:
    deployment.halted("q")
    (run,) = deployment.runs(0.0, deployment.changed_at, "j", ())
    return run.partitions


def test_state_begins_with_the_number_of_the_application() -> None:
    change = deployed(planned=replace(PLAN, partitions=4)).change(0)
    assert change == application(replace(FIRST, partitions=4))


def test_another_number_in_the_file_changes_no_state_that_has_begun() -> None:
    begun = deployed(application(FIRST), planned=replace(PLAN, partitions=4))
    assert begun.change(1) is None
    assert partitions(begun) == ()


def test_each_number_holds_after_the_newest_mark_of_its_record() -> None:
    """Every node applies the record after the same marks, however far its query is."""
    rescaled = deployed(
        application(replace(FIRST, partitions=4)),
        Mark("q", 1, 1),
        Mark("q", 2, 1),
        application(replace(FIRST, partitions=8)),
        Mark("q", 3, 1),
        application(replace(FIRST, partitions=3)),
    )
    assert partitions(rescaled) == ((0, 4), (2, 8), (3, 3))


def test_query_keeps_its_lineage_and_may_still_be_rebuilt() -> None:
    rescaled = deployed(application(FIRST), application(replace(FIRST, partitions=8)))
    rescaled.halted("q")
    (run,) = rescaled.runs(0.0, rescaled.changed_at, "j", ())
    assert (run.lineage, run.must_resume) == ("j:1", False)


def test_changed_code_keeps_the_number_and_empty_state_begins_with_that_of_the_file() -> None:
    bodies = application(replace(FIRST, partitions=8)), Mark("q", 1, 1)
    kept = deployed(*bodies, planned=replace(PLAN, digest="v2", on_change="keep", partitions=4))
    assert kept.change(2) == application(QueryVersion("q", "v2", FIRST.first, partitions=8))
    reset = deployed(*bodies, planned=replace(PLAN, digest="v2", on_change="reset", partitions=4))
    change = reset.change(2)
    assert change is not None
    assert [(one.reset, one.partitions) for one in change.queries] == [(True, 4)]


def test_former_run_gets_no_mark_until_the_query_process_has_stopped_it() -> None:
    deployment = deployed(application(FIRST))
    journal = JournalState(deployment)
    journal.replay(Record(Position(1, 1), 0, application(FIRST)))
    control = QueryControl("p", "j", deployment)
    incarnation = control.process.start(0.0)
    assert incarnation is not None
    control.handle(0.0, on.QueryProcessAttended(incarnation))
    assert [type(one) for one in control.run(0.0, 1, ())] == [do.RunQuery]
    take(deployment, [application(replace(FIRST, partitions=8)), Events("s", 1, 0)], first=2)
    take(deployment, [Mark("q", 1, 3)], first=4)
    assert list(control.run(0.0, 4, ())) == [do.HaltQuery("q")]
    assert list(control.run(0.0, 4, ())) == []
    control.handle(0.0, on.MarkWanted("q", 0, "j:1"))
    assert list(control.answers(4)) == []
    control.handle(0.0, on.QueryHalted("q"))
    assert list(control.run(0.0, 1, ())) == []  # the record is not committed yet
    (run,) = control.run(0.0, 4, ())
    assert isinstance(run, do.RunQuery)
    assert run.partitions == ((0, 8),)
    control.handle(0.0, on.MarkWanted("q", 0, "j:1"))
    assert [answer.mark.number for answer in control.answers(4)] == [1]


def test_rescaled_queries_are_stopped_in_the_order_of_the_application() -> None:
    """The core gives equal inputs equal actions, also in another process."""
    names = [f"q{number}" for number in range(8)]
    plans = tuple(QueryPlan(name, "v1", frozenset({"s"}), ()) for name in names)
    versions = tuple(QueryVersion(name, "v1", Mark(name, 0, 0)) for name in names)
    deployment = Deployment("app", plans, LIMITS, RestartPolicy())
    take(deployment, [Application("app", versions), *(Mark(name, 1, 1) for name in names)])
    rescaled = tuple(replace(version, partitions=8) for version in versions)
    take(deployment, [Application("app", rescaled)], first=len(names) + 2)
    deployment.process_connected()
    assert list(deployment.halts()) == [do.HaltQuery(name) for name in names]


def test_base_has_the_number_of_partitions() -> None:
    world = World()
    world.start()
    world.rescale("delays", 8)
    other = Deployment("app", (), LIMITS, RestartPolicy())
    other.load_base(world.core.journal.as_base())
    assert other.versions.partitions == {"delays": ((0, 8),)}


def test_same_number_again_appends_no_record() -> None:
    world = World()
    world.start()
    world.rescale("delays", 8)
    last = world.core.journal.last
    world.rescale("delays", 8)
    assert world.core.journal.last == last
