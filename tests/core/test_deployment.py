"""The rules for a query's state in the records of applications."""

from __future__ import annotations

from ha_engine.core import Deployment, QueryPlan, QueryState, RestartPolicy
from ha_engine.core import inputs as on
from ha_engine.core.outbox_usage import OutboxUsage
from ha_engine.types import Application, Body, Mark, Published, QueryVersion, Skip
from tests.core.lone import LIMITS, take


def deployed(*digests: tuple[str, bool], mine: bool = True) -> Deployment:
    """A deployment after one application record for each (digest, reset) of its only query."""
    plan = QueryPlan("q", digests[-1][0], frozenset({"s"}), ())
    deployment = Deployment(digests[-1][0], (plan,), LIMITS, RestartPolicy())
    first = Mark("q", 0, 0)
    versions = [QueryVersion("q", digest, first, reset) for digest, reset in digests]
    take(deployment, [Application(one.digest, (one,)) for one in versions], mine=mine)
    return deployment


def told(plan: QueryPlan, *bodies: Body) -> Deployment:
    """A deployment of one query after these records."""
    deployment = Deployment(plan.digest, (plan,), LIMITS, RestartPolicy())
    take(deployment, bodies)
    return deployment


def must_resume(deployment: Deployment) -> bool:
    (run,) = deployment.runs(0.0, deployment.changed_at, "journal", ())
    return run.must_resume


def states(deployment: Deployment) -> tuple[str, ...]:
    """Return the lineages whose checkpoint the deployment accepts."""
    (run,) = deployment.runs(0.0, deployment.changed_at, "journal", ())
    return (run.lineage, *run.earlier)


def test_active_keeps_its_state_over_a_change_that_it_wrote() -> None:
    assert states(deployed(("a", False))) == ("journal:1",)
    changed = deployed(("a", False), ("b", False), ("b", False), ("c", False))
    assert states(changed) == ("journal:4", "journal:2", "journal:1")
    assert states(deployed(("a", False), ("b", False), ("c", True))) == ("journal:3",)


def test_follower_discards_its_state_on_a_change_since_it_may_lack_old_batches() -> None:
    """RULES.md#r23. 1. b has run batch 8, a batch 10. 2. a continues under changed code behind
    batch 10. 3. b would run 9 and 10 with the changed code: its state would differ."""
    assert states(deployed(("a", False), ("b", False), mine=False)) == ("journal:2",)


def test_query_that_never_changed_may_be_rebuilt_from_the_journal() -> None:
    assert not must_resume(deployed(("a", False)))
    assert not must_resume(deployed(("a", False), ("a", False)))


def test_query_that_keeps_its_state_over_a_change_must_resume_its_checkpoint() -> None:
    assert must_resume(deployed(("a", False), ("b", False)))


def test_batches_cut_before_a_change_belong_to_the_old_code() -> None:
    plan = QueryPlan("q", "b", frozenset({"s"}), ())
    deployment = Deployment("b", (plan,), LIMITS, RestartPolicy())
    first = Mark("q", 0, 0)
    bodies = (
        Application("a", (QueryVersion("q", "a", first),)),
        Mark("q", 1, 1),
        Application("b", (QueryVersion("q", "b", first),)),
        Mark("q", 2, 3),
    )
    take(deployment, bodies)
    assert deployment.versions.may_be_of_other_code("q", 1)
    assert not deployment.versions.may_be_of_other_code("q", 2)


def test_batches_that_were_planned_before_a_change_may_be_of_other_code() -> None:
    deployment = told(
        QueryPlan("q", "c", frozenset({"s"}), ()),
        Application("a", (QueryVersion("q", "a", Mark("q", 0, 0)),)),
        Mark("q", 1, 1),
        Mark("q", 2, 2),
        Application("b", (QueryVersion("q", "b", Mark("q", 1, 1), reset=True),)),
        Mark("q", 3, 4),
    )
    versions = deployment.versions
    assert versions.may_be_of_other_code("q", 2)
    assert versions.may_differ("q", 2)
    assert not versions.may_be_of_other_code("q", 3)
    assert not versions.may_differ("q", 3)


def test_batch_of_the_old_code_that_poisons_the_new_code_can_be_skipped() -> None:
    """The outbox has batch 1 of the old code, so without a skip the new code would try it again
    for ever."""
    deployment = told(
        QueryPlan("q", "b", frozenset({"s"}), ()),
        Application("a", (QueryVersion("q", "a", Mark("q", 0, 0)),)),
        Mark("q", 1, 1),
        Application("b", (QueryVersion("q", "b", Mark("q", 0, 0), reset=True),)),
    )
    deployment.restore_admitted("q", 1, rows=1, size=100)
    while deployment.lives["q"].state is not QueryState.FAILED:
        deployment.failed(0.0, on.QueryFailed("q", 1, "poisoned", "journal:1"))
    assert deployment.skip(on.SkipAsked("q", "operator")) == Skip("q", 1, "operator", "poisoned")


def test_query_that_failed_before_any_batch_is_revived_by_a_skip() -> None:
    deployment = deployed(("a", False), ("b", True))
    while deployment.lives["q"].state is not QueryState.FAILED:
        deployment.failed(0.0, on.QueryFailed("q", 0, "refused", "journal:1"))
    assert deployment.skip(on.SkipAsked("q", "operator")) is None
    assert deployment.lives["q"].state is QueryState.WAITING


def test_deaths_in_a_batch_that_the_outbox_has_from_the_old_code_poison_it() -> None:
    deployment = told(
        QueryPlan("q", "b", frozenset({"s"}), ("sink",)),
        Application("a", (QueryVersion("q", "a", Mark("q", 0, 0)),)),
        Mark("q", 1, 1),
        Mark("q", 2, 2),
        Application("b", (QueryVersion("q", "b", Mark("q", 0, 0), reset=True),)),
    )
    for number in (1, 2):
        deployment.restore_admitted("q", number, rows=1, size=100)
    for death in range(RestartPolicy().deaths_per_batch):
        list(deployment.runs(1e9 * death, deployment.changed_at, "journal", ()))
        deployment.marks["q"].asked(1e9 * death, 0)
        deployment.process_died(1e9 * death, "Java ran out of memory", by_host=False)
    failure = deployment.lives["q"].failure
    assert failure is not None
    assert failure.number == 1


def test_journal_keeps_the_records_of_batches_that_a_sink_lacks() -> None:
    deployment = told(
        QueryPlan("q", "a", frozenset({"s"}), ("sink",)),
        Application("a", (QueryVersion("q", "a", Mark("q", 0, 0)),)),
        Mark("q", 1, 1),
        Mark("q", 2, 2),
        Published("q", "sink", 1),
    )
    for number in (1, 2):
        deployment.restore_admitted("q", number, rows=1, size=100)
    deployment.marks["q"].asked(0.0, 2)
    assert deployment.need() == 1


def test_state_whose_records_are_trimmed_is_not_replaced() -> None:
    """A base ends with a batch, whose mark comes later. So the journal may have the mark of a batch
    that ran, and not its records."""
    deployment = told(
        QueryPlan("q", "c", frozenset({"s"}), ("sink",), "keep"),
        Application("a", (QueryVersion("q", "a", Mark("q", 0, 0)),)),
        Mark("q", 1, 3),
        Application("b", (QueryVersion("q", "b", Mark("q", 0, 0), reset=True),)),
    )
    deployment.forget_through(1)
    change = deployment.change(committed=3)
    assert change is not None
    assert change.queries == (QueryVersion("q", "c", Mark("q", 0, 0)),)


def test_batch_that_the_new_code_makes_again_uses_the_outbox_once() -> None:
    usage = OutboxUsage()
    for number in (1, 2, 1, 2, 3):
        usage.add(number, 100)
    assert usage.backlog == (3, 300)
    usage.trim(3)
    usage.add(3, 100)
    assert usage.backlog == (0, 0)


def test_reset_begins_a_state_that_the_journal_can_rebuild() -> None:
    assert not must_resume(deployed(("a", False), ("b", False), ("c", True)))


def test_state_that_is_reset_begins_with_records_that_the_journal_has() -> None:
    """The journal is trimmed beyond the last batch, since the query needs no later record."""
    deployment = told(
        QueryPlan("q", "b", frozenset({"s"}), ("sink",), "reset"),
        Application("a", (QueryVersion("q", "a", Mark("q", 0, 0)),)),
        Mark("q", 1, 1),
        Published("q", "sink", 1),
        Skip("other", 1, "operator", "poisoned"),
    )
    deployment.restore_admitted("q", 1, rows=1, size=100)
    deployment.forget_through(4)
    change = deployment.change(committed=4)
    assert change is not None
    assert change.queries == (QueryVersion("q", "b", Mark("q", 1, 4), reset=True),)


def test_state_that_is_reset_begins_with_a_whole_batch_on_a_node_that_never_ran_the_query() -> None:
    """The outbox of a node that only followed a warm query has fewer batches than the journal has
    marks."""
    deployment = told(
        QueryPlan("q", "b", frozenset({"s"}), ("sink",), "reset", warm=True),
        Application("a", (QueryVersion("q", "a", Mark("q", 0, 0)),)),
        Mark("q", 1, 1),
        Mark("q", 2, 2),
        Mark("q", 3, 4),
        Published("q", "sink", 1),
    )
    deployment.restore_admitted("q", 1, rows=1, size=100)
    deployment.forget_through(3)
    change = deployment.change(committed=5)
    assert change is not None
    assert change.queries == (QueryVersion("q", "b", Mark("q", 3, 4), reset=True),)
