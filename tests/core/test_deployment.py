"""The rules for a query's state in the records of applications."""

from __future__ import annotations

from ha_engine.core import Deployment, QueryPlan, RestartPolicy
from ha_engine.types import Application, Mark, QueryVersion
from tests.core.lone import LIMITS, take


def deployed(*digests: tuple[str, bool], mine: bool = True) -> Deployment:
    """A deployment after one application record for each (digest, reset) of its only query."""
    plan = QueryPlan("q", digests[-1][0], frozenset({"s"}), ())
    deployment = Deployment(digests[-1][0], (plan,), LIMITS, RestartPolicy())
    first = Mark("q", 0, 0)
    versions = [QueryVersion("q", digest, first, reset) for digest, reset in digests]
    take(deployment, [Application(one.digest, (one,)) for one in versions], mine=mine)
    return deployment


def must_resume(deployment: Deployment) -> bool:
    (run,) = deployment.runs(0.0, deployment.changed_at, "journal")
    return run.must_resume


def states(deployment: Deployment) -> tuple[str, ...]:
    """Return the lineages whose checkpoint the deployment accepts."""
    (run,) = deployment.runs(0.0, deployment.changed_at, "journal")
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
    assert deployment.was_made_by_other_code("q", 1)
    assert not deployment.was_made_by_other_code("q", 2)


def test_batches_between_a_reset_and_its_record_are_made_anew() -> None:
    """The old code may have made 2 and 4 on a node that was ahead of the one that wrote the
    resets."""
    plan = QueryPlan("q", "c", frozenset({"s"}), ())
    deployment = Deployment("c", (plan,), LIMITS, RestartPolicy())
    bodies = (
        Application("a", (QueryVersion("q", "a", Mark("q", 0, 0)),)),
        Mark("q", 1, 1),
        Mark("q", 2, 2),
        Application("b", (QueryVersion("q", "b", Mark("q", 1, 1), reset=True),)),
        Mark("q", 3, 4),
        Mark("q", 4, 5),
        Application("c", (QueryVersion("q", "c", Mark("q", 3, 4), reset=True),)),
        Mark("q", 5, 7),
    )
    take(deployment, bodies)
    versions = deployment.versions
    assert [number for number in range(1, 6) if versions.makes_anew("q", number)] == [2, 4]


def test_reset_begins_a_state_that_the_journal_can_rebuild() -> None:
    assert not must_resume(deployed(("a", False), ("b", False), ("c", True)))
