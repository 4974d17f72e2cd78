"""A changed query runs in shadow beside the live one, and takes its place (RULES.md#r38)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ha_engine.core import Deployment, QueryPlan, QueryState, RestartPolicy, ShadowLimits
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core.journal_state import JournalState
from ha_engine.core.query_control import QueryControl
from ha_engine.core.shadow import BEHIND_MAX, DEATHS_MAX
from ha_engine.types import (
    Application,
    Body,
    Deployed,
    EpochStart,
    Events,
    Mark,
    Position,
    Published,
    QueryVersion,
    Record,
    Shadow,
)
from tests.core.lone import LIMITS

FIRST = Mark("q", 1, 2)
SHADOW = Shadow("q", 1, FIRST, "new", "")
BEGUN = Deployed(1, "old", "application", "alice", 0, "", shadow=SHADOW)
PROMOTED = Deployed(
    2, "new", "application", "alice", 0, "", promoted=replace(SHADOW, id="", archive="")
)
LIVE = (Application("a", (QueryVersion("q", "a", Mark("q", 0, 0)),)), Events("s", 1, 0), FIRST)
IN_FORCE = Application("b", (QueryVersion("q", "b", FIRST, promoted=1),))
LINEAGE = "journal:1~"


def plan(digest: str) -> QueryPlan:
    return QueryPlan("q", digest, frozenset({"s"}), ("sink",))


def node(
    *bodies: Body, bounds: ShadowLimits | None = None, mine: bool = True
) -> tuple[Deployment, QueryControl]:
    """A node that runs the live query and its shadow, after these records."""
    of = Deployment("a", (plan("a"),), LIMITS, RestartPolicy(), BEGUN.runs, (SHADOW, "b"), bounds)
    return of, _told(of, bodies, mine=mine)


def promoted_node(*bodies: Body, mine: bool = True) -> tuple[Deployment, QueryControl]:
    """A node that runs the application of the promoted shadow."""
    of = Deployment("b", (plan("b"),), LIMITS, RestartPolicy(), PROMOTED.runs)
    return of, _told(of, bodies, mine=mine)


def _told(of: Deployment, bodies: tuple[Body, ...], *, mine: bool) -> QueryControl:
    for sequence, body in enumerate(bodies, 1):
        of.apply(Record(Position(1, sequence), 0, body), mine=mine)
    if of.shadow is not None and of.runs_newest:
        of.shadow.set_outbox_floor(None, 0)
    control = QueryControl("p1", "journal", of)
    control.process.adopt("p1:1")
    control.process.connect("p1:1")
    return control


def runs(of: Deployment) -> dict[str, do.RunQuery]:
    committed = of.changed_at + 100
    return {run.query: run for run in of.runs(0.0, committed, "journal", ())}


def answered(control: QueryControl) -> list[Mark]:
    return [answer.mark for answer in control.answers(1000)]


def test_shadow_runs_the_batches_of_its_query_after_it() -> None:
    of, control = node(*LIVE, BEGUN, Events("s", 1, 0), Mark("q", 2, 5), Mark("q", 3, 5))
    started = runs(of)
    assert started["q~1"] == do.RunQuery(
        "q~1", LINEAGE, Mark("q~1", 1, 2), False, "b", shadow_of="q"
    )
    of.restore_admitted("q", 1, 1, 100)
    control.handle(0.0, on.MarkWanted("q~1", 1, LINEAGE))
    assert answered(control) == []
    control.handle(0.0, on.BatchAdmitted("q", 2, 1, 100, "journal:1"))
    assert answered(control) == [Mark("q~1", 2, 5)]
    assert answered(control) == []


def test_shadow_waits_for_a_process_that_knows_its_record() -> None:
    """A forced failover may have given the record up, and another shadow may have its number."""
    of, _ = node(*LIVE)
    assert set(runs(of)) == {"q"}
    of.apply(
        Record(Position(1, 4), 0, replace(BEGUN, shadow=replace(SHADOW, id="other"))), mine=True
    )
    assert runs(of) == {}
    assert of.is_superseded(4)
    of.apply(Record(Position(1, 5), 0, BEGUN), mine=True)
    assert runs(of) == {}
    assert of.shadow is not None
    failure = of.shadow.life.failure
    assert failure is not None
    assert "restart the node" in failure.reason


def test_shadow_is_no_part_of_what_the_pair_decides() -> None:
    of, control = node(*LIVE, BEGUN, Mark("q", 2, 3))
    runs(of)
    of.restore_admitted("q", 1, 1, 100)
    before = of.in_flight(), of.progress(), of.backlog_events(), control.warm(5)
    for _ in range(5):
        assert control.handle(0.0, on.QueryFailed("q~1", 2, "wrong", LINEAGE)) is None
    assert of.shadow is not None
    assert of.shadow.life.state is QueryState.FAILED
    assert (of.in_flight(), of.progress(), of.backlog_events(), control.warm(5)) == before
    assert set(of.marks) == set(of.lives) == {"q"}
    assert control.names_removed_query(on.BatchDigested("q~1", 2, "digest"))


def test_death_of_the_process_counts_against_the_shadow_alone() -> None:
    of, _ = node(*LIVE, BEGUN, Mark("q", 2, 3))
    assert of.shadow is not None
    for death in range(20):
        list(of.runs(1e9 * death, 100, "journal", ()))
        of.marks["q"].asked(1e9 * death, 1)
        ran = of.shadow.life.state is QueryState.RUNNING
        assert ran == (death < DEATHS_MAX)
        of.process_died(1e9 * death, "Java ran out of memory", by_host=False)
        if death < DEATHS_MAX:
            assert of.lives["q"].state is QueryState.WAITING
    assert of.shadow.life.state is QueryState.FAILED
    assert of.lives["q"].poisoned == 1


def test_journal_keeps_records_for_a_shadow_up_to_a_bound() -> None:
    bodies = (*LIVE, BEGUN, Events("s", 5, 0), Mark("q", 2, 5), Published("q", "sink", 2))
    of, _ = node(*bodies, bounds=ShadowLimits(behind_max=10))
    runs(of)
    of.restore_admitted("q", 2, 1, 100)
    of.marks["q"].asked(0.0, 2)
    assert of.need() == FIRST.through
    of.apply(Record(Position(1, 8), 0, Events("s", 6, 0)), mine=True)
    list(of.runs(0.0, 100, "journal", ()))
    assert of.shadow is not None
    failure = of.shadow.life.failure
    assert failure is not None
    assert "11 events behind" in failure.reason
    assert list(of.halts()) == [do.HaltQuery("q~1")]
    assert of.need() == 5


def test_shadow_whose_records_are_trimmed_says_that_its_state_is_lost() -> None:
    of, control = node(*LIVE, BEGUN, Mark("q", 2, 3), Published("q", "sink", 2))
    of.restore_admitted("q", 2, 1, 100)
    of.forget_through(5)
    assert runs(of)["q~1"].must_resume
    control.handle(0.0, on.QueryFailed("q~1", 0, "no checkpoint", LINEAGE, by_host=True))
    assert of.shadow is not None
    failure = of.shadow.life.failure
    assert failure is not None
    assert "lost the state of the shadow" in failure.reason


def test_outbox_of_a_shadow_keeps_what_a_sink_lacks() -> None:
    marks = [Mark("q", number, 3) for number in range(2, 8)]
    of, _ = node(*LIVE, BEGUN, *marks, bounds=ShadowLimits(batches_max=2))
    assert of.shadow is not None
    for number in range(1, 8):
        of.restore_admitted("q", number, 1, 100)
    for number in range(2, 8):
        of.shadow.note_admitted(number, 100)
    assert list(of.trims(100)) == []
    of.apply(Record(Position(1, 20), 0, Published("q", "sink", 4)), mine=True)
    assert do.TrimOutbox("q~1", 4) in list(of.trims(100))
    of.apply(Record(Position(1, 21), 0, Published("q", "sink", 7)), mine=True)
    assert do.TrimOutbox("q~1", 5) in list(of.trims(100))
    assert of.shadow.kept == (2, 200)


def asked_to_promote() -> on.DeployAsked:
    return on.DeployAsked("new", "application", "alice", 0, "", promotes="q~1")


def test_promotion_names_the_mark_at_which_the_shadow_began() -> None:
    of, _ = node(*LIVE, BEGUN, Published("q", "sink", 1))
    runs(of)
    assert of.deploy(asked_to_promote(), 100) == PROMOTED


@pytest.mark.parametrize("behind", [0, BEHIND_MAX + 1])
def test_shadow_that_is_behind_or_lacks_a_published_beginning_is_not_promoted(behind: int) -> None:
    marks = [Mark("q", 2 + number, 3) for number in range(behind)]
    published = [Published("q", "sink", 1)] if behind else []
    of, _ = node(*LIVE, BEGUN, *marks, *published)
    runs(of)
    for number in range(1, 2 + behind):
        of.restore_admitted("q", number, 1, 100)
    reason = of.why_not_promoted(100)
    assert reason is not None
    assert ("batches behind" if behind else "still lacks batches") in reason
    assert of.deploy(asked_to_promote(), 100) is None


def test_nothing_is_deployed_until_a_promotion_is_in_force() -> None:
    of, _ = node(*LIVE, BEGUN, PROMOTED)
    other = on.DeployAsked("third", "application", "bob", 0, "")
    assert of.promoting == "q"
    assert of.deploy(other, 100) is None
    of.apply(Record(Position(1, 6), 0, IN_FORCE), mine=True)
    assert of.promoting is None
    later = of.deploy(other, 100)
    assert later is not None
    assert later.promoted == PROMOTED.promoted


@pytest.mark.parametrize("mine", [True, False])
def test_each_node_continues_the_checkpoint_of_its_shadow(mine: bool) -> None:
    of, control = promoted_node(*LIVE, BEGUN, Mark("q", 2, 3), PROMOTED, mine=mine)
    assert runs(of) == {}
    assert of.must_not_run("q")
    change = of.change(6)
    assert change == IN_FORCE
    of.apply(Record(Position(1, 7), 0, change), mine=mine)
    of.restore_admitted("q", 2, 1, 100)
    (run,) = runs(of).values()
    assert (run.lineage, run.adopts) == ("journal:7", ("q~1", LINEAGE))
    assert run.initial == FIRST
    assert not run.must_resume
    assert of.change(7) is None
    assert of.versions.may_be_of_other_code("q", 2)
    assert not of.versions.may_be_of_other_code("q", 3)
    # Spark makes batches again that the outbox has, and continues with the next.
    control.handle(0.0, on.BatchAdmitted("q", 2, 1, 100, run.lineage))


def test_no_run_of_the_code_before_adds_a_batch_after_a_promotion() -> None:
    of, control = promoted_node(*LIVE, BEGUN, Mark("q", 2, 3), Mark("q", 3, 3), PROMOTED)
    control.handle(0.0, on.MarkWanted("q", 1, "journal:1"))
    assert answered(control) == []
    assert not of.may_admit("q", "journal:1", "journal")
    assert not of.may_admit("q~1", LINEAGE, "journal")
    of.apply(Record(Position(1, 8), 0, IN_FORCE), mine=True)
    assert not of.may_admit("q", "journal:1", "journal")
    assert of.may_admit("q", "journal:8", "journal")


def test_process_of_the_code_before_goes_on_until_another_takes_over() -> None:
    of, _ = node(*LIVE, BEGUN, PROMOTED)
    assert "q" in runs(of)
    assert not of.must_not_run("q")
    assert of.may_admit("q", "journal:1", "journal")
    assert of.may_admit("q~1", LINEAGE, "journal")
    assert of.change(5) is None


def test_base_keeps_the_promotion_and_the_beginning_of_its_state() -> None:
    bodies = (EpochStart("a", "p"), *LIVE, BEGUN, PROMOTED, IN_FORCE)
    of = Deployment("b", (plan("b"),), LIMITS, RestartPolicy(), PROMOTED.runs)
    journal = JournalState(of, "a")
    for sequence, body in enumerate(bodies, 1):
        journal.apply(Record(Position(1, sequence), 0, body))
    again = Deployment("b", (plan("b"),), LIMITS, RestartPolicy(), PROMOTED.runs)
    JournalState(again, "a").load_base(journal.as_base())
    assert again.promoting is None
    assert again.marks["q"].initial == FIRST


def test_rescale_waits_until_the_shadow_has_ended() -> None:
    of, _ = node(*LIVE, BEGUN)
    assert of.rescale("q", 8) is None
    reason = of.why_not_rescaled("q")
    assert reason is not None
    assert "promote or discard" in reason
    of.apply(Record(Position(1, 5), 0, PROMOTED), mine=True)
    reason = of.why_not_rescaled("q")
    assert reason is not None
    assert "takes its place now" in reason
    of.apply(Record(Position(1, 6), 0, IN_FORCE), mine=True)
    assert of.why_not_rescaled("q") is None
