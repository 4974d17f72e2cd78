"""A node that lost the state of a query leaves the in-sync list, and restores a snapshot
(RULES.md#r21)."""

from __future__ import annotations

import pytest

from ha_engine.core import Core
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.progress import PeerTiming
from ha_engine.core.replication import Replication
from ha_engine.types import ORIGIN, EpochStart, Holder, LeaseRow, Member, Position, Record
from tests.core.lone import member_b
from tests.core.world import plan

A, B = Member("a", "ja"), Member("b", "jb")
LOST = on.QueryFailed("delays", 0, "its checkpoint is lost", state_lost=True)


def row(*in_sync: Member) -> on.LeaseRead:
    return on.LeaseRead(LeaseRow("group-1", Holder("a", "p1"), 1, 1, in_sync), None)


def step(core: Core, event: on.Input) -> list[do.Action]:
    return core.step(core.now + 0.1, event)


def heartbeat(core: Core, oldest_revision: int) -> list[do.Action]:
    beat = say.Heartbeat(1, 0, oldest_revision=oldest_revision)
    return step(core, on.PeerMessage("a", beat))


def leaves(actions: list[do.Action]) -> list[bool]:
    """What the acks among ``actions`` say."""
    sent = [action.message for action in actions if isinstance(action, do.Send)]
    return [message.leaves for message in sent if isinstance(message, say.Ack)]


def of(kind: type[do.Action], actions: list[do.Action]) -> list[do.Action]:
    return [action for action in actions if isinstance(action, kind)]


@pytest.fixture
def core() -> Core:
    """Return a member in sync, whose one query runs."""
    core = member_b(plans=[plan("delays", "flights", "table")])
    core.step(0.0, on.Tick())
    step(core, on.PeerConnected("a"))
    step(core, row(A, B))
    step(core, on.PeerMessage("a", say.Follow(1, "jb", ORIGIN, ORIGIN)))
    record = Record(Position(1, 1), 0, EpochStart("a", "p1"))
    step(core, on.PeerMessage("a", say.Records(1, ORIGIN, (record,), 0)))
    step(core, on.RecordsDurable(1))
    incarnation = core.query_control.process.incarnation
    assert incarnation is not None
    step(core, on.QueryProcessAttended(incarnation))
    return core


def test_member_stays_in_sync_and_asks_for_a_snapshot_while_there_is_none(core: Core) -> None:
    step(core, LOST)
    actions = heartbeat(core, oldest_revision=0)
    assert leaves(actions) == [False]
    lacking = say.SnapshotLacking(1, "this node has lost the state of delays")
    assert do.Send("a", lacking) in actions
    assert do.Send("a", lacking) not in heartbeat(core, oldest_revision=0), "at most every 5 s"
    core.step(core.now + 5.0, on.Tick())
    assert do.Send("a", lacking) in heartbeat(core, oldest_revision=0)


def test_member_leaves_then_ends_spark_and_restores(core: Core) -> None:
    step(core, LOST)
    actions = heartbeat(core, oldest_revision=1)
    assert leaves(actions) == [True]
    assert of(do.Restore, actions) == [] == of(do.StopQueryProcess, actions), "it is still listed"
    step(core, row(A))
    assert of(do.StopQueryProcess, heartbeat(core, oldest_revision=1))
    incarnation = core.query_control.process.incarnation
    assert incarnation is not None
    actions = step(core, on.QueryProcessGone(incarnation, "asked to stop"))
    assert of(do.StartQueryProcess, actions) == [], "a restore would end it again"
    (restore,) = of(do.Restore, heartbeat(core, oldest_revision=1))
    assert isinstance(restore, do.Restore)
    assert restore.reason == "this node has lost the state of delays"
    assert restore.history.has(Position(1, 1))
    assert restore.given_up is None


def test_member_restores_only_after_it_has_read_a_row_that_does_not_list_it(core: Core) -> None:
    """RULES.md#r8: the row may list the member again since the last read."""
    step(core, LOST)
    step(core, row(A))
    step(core, on.DatabaseUnreachable("no answer"))
    heartbeat(core, oldest_revision=1)
    assert not core.follower.replacing_journal
    assert core.query_control.process.incarnation is not None


def test_failed_restore_is_repeated_after_a_pause(core: Core) -> None:
    step(core, LOST)
    step(core, row(A))
    heartbeat(core, oldest_revision=1)
    incarnation = core.query_control.process.incarnation
    assert incarnation is not None
    step(core, on.QueryProcessGone(incarnation, "asked to stop"))
    assert of(do.Restore, heartbeat(core, oldest_revision=1))
    step(core, on.RestoreFailed("revision 1 is damaged"))
    assert of(do.Restore, heartbeat(core, oldest_revision=1)) == []
    core.step(core.now + 5.0, on.Tick())
    step(core, row(A))
    assert of(do.Restore, heartbeat(core, oldest_revision=1))


def test_member_whose_query_runs_again_stays(core: Core) -> None:
    step(core, LOST)
    step(core, on.RetryAsked("delays"))
    core.deployment.lives["delays"].advanced()
    assert leaves(heartbeat(core, oldest_revision=1)) == [False]


def test_holder_drops_a_member_that_leaves_and_does_not_add_it_again() -> None:
    replication = Replication(A, 1, PeerTiming(0.2, 2.0), 0.0, ["b"], 0)
    replication.peers["b"].follows(0.0, "jb")
    for leaving, wanted in [(False, (A, B)), (True, (A,)), (True, (A,))]:
        ack = say.Ack(1, "jb", 7, headroom=True, warm=False, leaves=leaving)
        replication.acked(0.1, "b", ack)
        replication.choose_near(0.1)
        assert replication.wanted(0.1, (A, B), committed=7) == wanted
        assert replication.wanted(0.1, (A,), committed=7) == wanted
    replication.peers["b"].follows(0.2, "jb-restored")
    replication.acked(0.2, "b", say.Ack(1, "jb-restored", 7, headroom=True, warm=False))
    replication.choose_near(0.2)
    assert Member("b", "jb-restored") in replication.wanted(0.2, (A,), committed=7)
