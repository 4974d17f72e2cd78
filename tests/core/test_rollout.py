"""A group moves to a deployed application (RULES.md#r36)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.deployment import Deployment
from ha_engine.core.journal_state import JournalState
from ha_engine.core.marks import MarkLimits
from ha_engine.core.queries import RestartPolicy
from ha_engine.core.rollout import AGAIN_SECONDS, Rollout
from ha_engine.types import (
    Application,
    Base,
    Body,
    Deployed,
    EpochStart,
    Mark,
    Member,
    Position,
    QueryVersion,
    Record,
)
from tests.core.lone import member_b
from tests.core.test_following import deliver, follow_message, follower
from tests.core.world import World, plan

A, B = Member("a", "ja"), Member("b", "jb")
LIMITS = MarkLimits(100, 0.0, 1.0, 10, 1_000_000)
RESTARTS = RestartPolicy(2, backoff_max=8.0)


def deployed(number: int) -> Deployed:
    return Deployed(number, f"archive {number}", "application", "alice", 0, "")


def deployment(archive: str | None = None, digest: str = "v2") -> Deployment:
    plans = (plan("delays", "flights", "board", digest=digest),)
    return Deployment(digest, plans, LIMITS, RESTARTS, archive)


def journal_with(of: Deployment, *bodies: Body) -> JournalState:
    journal = JournalState(of, "a")
    for sequence, body in enumerate(bodies, 1):
        journal.apply(Record(Position(1, sequence), 0, body))
    return journal


def test_process_is_superseded_once_the_deployment_is_committed() -> None:
    of = deployment("archive 1")
    journal = journal_with(of, deployed(1), deployed(2))
    rollout = Rollout(of, journal)
    journal.commit(1)
    assert not rollout.is_due
    assert rollout.fits("b")
    journal.commit(2)
    assert rollout.is_due


def test_process_keeps_its_application_while_its_journal_has_no_deployment() -> None:
    of = deployment("archive 1")
    rollout = Rollout(of, journal_with(of))
    assert of.lacks_deployment
    assert not rollout.is_due
    assert rollout.fits("b")


def test_peer_with_another_application_does_not_fit_even_while_it_is_away() -> None:
    of = deployment("archive 2")
    rollout = Rollout(of, journal_with(of, deployed(2)))
    rollout.archives = {"b": "archive 1", "c": "archive 2", "d": None}
    of_file = deployment()
    assert [rollout.fits(name) for name in "bcde"] == [False, True, False, True]
    assert Rollout(of_file, journal_with(of_file)).fits("b")


def test_holder_waits_for_a_follower_that_was_in_sync() -> None:
    of = deployment()
    journal = journal_with(of, deployed(1))
    journal.commit(1)
    rollout = Rollout(of, journal)
    rollout.archives["b"] = None
    rollout.begin(A, (A, B))
    rollout.begin(A, (A,))
    assert rollout.next_holder(10.0, A, (A, B)) is None
    assert rollout.next_holder(1e9, A, (A,)) is None
    rollout.archives["b"] = "archive 1"
    assert rollout.next_holder(12.0, A, (A,)) is None
    assert rollout.next_holder(13.0, A, (A, B)) == "b"
    rollout.handover_failed(13.0)
    assert rollout.wake_at(13.0) == 13.0 + AGAIN_SECONDS
    assert rollout.next_holder(14.0, A, (A, B)) is None
    assert rollout.next_holder(13.0 + AGAIN_SECONDS, A, (A, B)) == "b"


def test_holder_continues_alone_if_no_follower_was_in_sync() -> None:
    of = deployment()
    journal = journal_with(of, deployed(1))
    journal.commit(1)
    rollout = Rollout(of, journal)
    rollout.begin(A, (A,))
    assert rollout.next_holder(10.0, A, (A,)) == "a"


@pytest.mark.parametrize("archive", ["archive 1", "archive 2"])
def test_next_deployment_frees_a_holder_whose_follower_failed(archive: str) -> None:
    of = deployment()
    journal = journal_with(of, deployed(1))
    journal.commit(1)
    rollout = Rollout(of, journal)
    rollout.begin(A, (A, B))
    assert rollout.next_holder(10.0, A, (A,)) is None
    again = replace(deployed(2), id=archive)
    journal.apply(Record(Position(1, 2), 0, again))
    journal.commit(2)
    rollout.begin(A, (A,))
    assert rollout.next_holder(10.0, A, (A,)) == "a"


def test_state_that_only_the_active_has_cannot_be_kept() -> None:
    of, now = deployment(digest="v1"), QueryVersion("delays", "v1", Mark("delays", 0, 0))
    journal_with(of, Application("v1", (now,)))
    changed, reset, same, hot = (
        plan("delays", "flights", "board", digest=digest, change=change, warm=warm)
        for digest, change, warm in (
            ("v2", "keep", True),
            ("v2", "reset", True),
            ("v1", "keep", True),
            ("v2", "keep", False),
        )
    )
    assert of.stranded((changed,)) == ["delays"]
    assert of.stranded((reset,)) == of.stranded((same,)) == of.stranded((hot,)) == []


def test_former_process_puts_no_application_in_force() -> None:
    of, now = deployment(), QueryVersion("delays", "v1", Mark("delays", 0, 0))
    journal_with(of, Application("v1", (now,)), deployed(1))
    assert of.change(2) is None
    new = deployment("archive 1")
    journal_with(new, Application("v1", (now,)), deployed(1))
    assert new.change(2) is not None


def test_base_keeps_the_deployment() -> None:
    of = deployment("archive 1")
    base = journal_with(of, deployed(1)).as_base()
    again = deployment("archive 1")
    again.load_base(base)
    assert base.deployed == again.versions.deployed == deployed(1)
    assert again.archive_at(0) == "archive 1"
    assert Base().deployed is None


def test_changed_query_with_a_state_is_undecided_without_on_change() -> None:
    of = deployment(digest="v1")
    now = QueryVersion("delays", "v1", Mark("delays", 0, 0))
    journal_with(of, EpochStart("a", "p"), Application("v1", (now,)), Mark("delays", 1, 1))
    changed, kept = (
        plan("delays", "flights", "board", digest="v2", change=how) for how in (None, "keep")
    )
    new, same = plan("others", "flights", "board"), plan("delays", "flights", "board", digest="v1")
    assert of.undecided((changed, new)) == ["delays"]
    assert of.undecided((kept, new)) == of.undecided((same,)) == []


def test_follower_restarts_once_the_row_no_longer_lists_it() -> None:
    core = follower()
    deliver(core, follow_message(1))
    records = (
        Record(Position(1, 1), 0, EpochStart("a", "p")),
        Record(Position(1, 2), 1, deployed(1)),
    )
    deliver(core, say.Records(1, Position(0, 0), records, 0))
    core.step(core.now, on.RecordsDurable(2))
    out = core.step(core.now, on.PeerMessage("a", say.Committed(1, 2)))
    assert do.ChangeApplication(deployed(1)) in out
    assert core.is_leaving
    assert do.ChangeApplication(deployed(1)) not in core.step(core.now, on.Tick())


def test_follower_without_the_record_that_was_given_up_restarts_with_its_file() -> None:
    core = member_b(plans=(plan("delays", "flights", "board"),), archive="archive 1")
    core.step(0.0, on.Tick())
    core.step(0.1, on.PeerConnected("a"))
    deliver(core, follow_message(1))
    deliver(
        core, say.Records(1, Position(0, 0), (Record(Position(1, 1), 0, EpochStart("a", "p")),), 0)
    )
    out = core.step(core.now, on.RecordsDurable(1))
    assert do.ChangeApplication(None) not in out
    out = core.step(core.now, on.PeerMessage("a", say.Committed(1, 1)))
    assert do.ChangeApplication(None) in out


def test_single_node_continues_with_the_deployed_application() -> None:
    world = World()
    world.start()
    world.feed(on.DeployAsked("archive 1", "application", "alice", 0, ""))
    world.settle()
    assert not world.alive
    assert world.disk.deployed is not None
    assert world.disk.deployed.id == "archive 1"
    world.start()
    world.settle()
    assert world.core.role.value == "active"
    assert not world.core.rollout.is_due


def test_active_without_the_record_that_was_given_up_restarts_with_its_file() -> None:
    world = World()
    world.disk.deployed = deployed(1)
    world.start()
    world.settle()
    assert not world.alive
    assert world.disk.deployed is None
    world.start()
    world.settle()
    assert world.core.role.value == "active"
    assert not world.core.rollout.is_due
