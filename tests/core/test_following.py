"""The reactions of a follower to the messages of one holder after another."""

from __future__ import annotations

import pytest

from ha_engine.core import Core, QueryPlan
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.types import (
    ORIGIN,
    EpochStart,
    Holder,
    LeaseRow,
    Member,
    Position,
    Record,
    SnapshotPlace,
)
from tests.core.lone import member_b
from tests.core.world import plan

WISH = say.TakeSnapshot(1, SnapshotPlace(1, Position(1, 9), (("delays", 1),), Position(1, 9)))
"""Of the holder of epoch 1; batch 1 is yet to come."""


def follower(*plans: QueryPlan) -> Core:
    core = member_b(plans=plans)
    core.step(0.0, on.Tick())
    core.step(0.1, on.PeerConnected("a"))
    return core


def deliver(core: Core, message: say.Message) -> None:
    core.step(core.now + 0.1, on.PeerMessage("a", message))


def follow_message(epoch: int, begins: Position = ORIGIN) -> say.Follow:
    """Let an empty journal continue, or order it to begin from a snapshot."""
    return say.Follow(
        epoch, "jb", ORIGIN, ORIGIN, False, begins, (Position(1, 1),) if begins > ORIGIN else ()
    )


def follow(core: Core, epoch: int) -> None:
    deliver(core, follow_message(epoch))


def with_a_snapshot_request() -> Core:
    core = follower(plan("delays", "flights", "table"))
    follow(core, 1)
    deliver(core, WISH)
    return core


def test_commit_position_of_one_epoch_does_not_count_in_the_next() -> None:
    """RULES.md#i5, RULES.md#r26. 1. A follower learns its holder's commit and lacks some records.
    2. An operator gives those up. 3. Under a later epoch other records get their sequences."""
    core = follower()
    follow(core, 1)
    deliver(core, say.Heartbeat(1, committed=200))
    follow(core, 3)
    record = Record(Position(3, 1), 0, EpochStart("a", "p2", forced=True))
    deliver(core, say.Records(3, ORIGIN, (record,), 0))
    core.step(core.now, on.RecordsDurable(1))
    assert core.journal.durable == 1
    assert core.journal.committed == 0
    deliver(core, say.Committed(3, 1))
    assert core.journal.committed == 1
    assert core.follower.highest_announced == 200


def test_follower_reports_a_snapshot_to_the_holder_that_requested_it() -> None:
    """RULES.md#r28: requests are counted by epoch; other fields hold the result of an earlier
    one."""
    core = follower()
    follow(core, 1)
    first, second = (SnapshotPlace(1, Position(1, n), (), Position(1, n)) for n in (1, 2))
    deliver(core, say.TakeSnapshot(1, first))
    deliver(core, say.TakeSnapshot(1, second))
    assert told(core, on.SnapshotTaken(first, 7)) == []
    follow(core, 3)
    assert told(core, on.SnapshotTaken(second, 8)) == [say.SnapshotTaken(1, 1, 8, ())]


@pytest.mark.parametrize(
    ("event", "begun"),
    [
        (on.Tick(), 1),
        (on.PeerLost("a", "gone"), 0),
        (on.PeerMessage("a", follow_message(3)), 0),
    ],
    ids=["nothing", "link", "epoch"],
)
def test_snapshot_request_ends_with_its_link_and_with_its_epoch(
    event: on.Input, begun: int
) -> None:
    """A draft that no holder waits for would displace one that is being written."""
    core = with_a_snapshot_request()
    core.step(core.now, event)
    core.deployment.marks["delays"].finished = 1
    actions = core.step(core.now, on.BatchDigested("delays", 1, "digest"))
    assert sum(isinstance(action, do.TakeSnapshot) for action in actions) == begun


def test_late_follow_message_discards_no_records_that_continue_the_journal() -> None:
    """RULES.md#i14. 1. An outdated Follow says: begin from a snapshot. 2. There is none. 3. Records
    of the same holder continue this journal."""
    core = follower()
    core.step(1.0, on.LeaseRead(LeaseRow("group-1", Holder("a", "p1"), 1, 1, ()), None))
    follow(core, 1)
    deliver(core, follow_message(1, begins=Position(1, 50)))
    core.step(core.now, on.RestoreFailed("none is sound"))
    assert core.follower.giving_up
    deliver(core, say.Records(1, ORIGIN, (Record(Position(1, 1), 0, EpochStart("a", "p1")),), 0))
    assert not core.follower.giving_up


def told(core: Core, event: on.Input) -> list[say.HolderMessage]:
    actions = core.step(core.now + 0.1, event)
    return [action.message for action in actions if isinstance(action, do.Send)]


def test_follower_reports_that_spark_died_before_a_requested_snapshot() -> None:
    """The digest of a committed batch may never be reported."""
    core = with_a_snapshot_request()
    incarnation = core.query_control.process.incarnation
    assert incarnation is not None
    gone = on.QueryProcessGone(incarnation, "killed")
    failed = say.SnapshotFailed(1, 1, "the query process died: killed")
    assert told(core, gone) == [failed]


def test_spark_stays_stopped_until_a_snapshot_can_replace_a_lost_state() -> None:
    """Each start would end the process again, on a host that another node may share."""
    core = follower()
    row = LeaseRow("group-1", Holder("a", "p1"), 1, 1, (Member("a", "ja"),))
    core.step(1.0, on.LeaseRead(row, None))
    for _ in range(3):
        deliver(core, say.Probe(1))
        deliver(core, follow_message(1, begins=Position(1, 50)))
        core.step(core.now, on.RestoreFailed("none is sound"))
        actions = core.step(core.now + 10.0, on.Tick())
        assert not [action for action in actions if isinstance(action, do.StartQueryProcess)]
        core.step(core.now, on.LeaseRead(row, None))
        assert core.reason == "no snapshot was restored: none is sound"
