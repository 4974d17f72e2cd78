"""What a follower makes of the words of one holder after another."""

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


def hear(core: Core, message: say.Message) -> None:
    core.step(core.now + 0.1, on.PeerSaid("a", message))


def go_on(epoch: int, begins: Position = ORIGIN) -> say.Follow:
    """A journal that is empty may go on, or is to begin from a snapshot."""
    return say.Follow(
        epoch, "jb", ORIGIN, ORIGIN, False, begins, (Position(1, 1),) if begins > ORIGIN else ()
    )


def follow(core: Core, epoch: int) -> None:
    hear(core, go_on(epoch))


def with_a_wish() -> Core:
    core = follower(plan("delays", "flights", "table"))
    follow(core, 1)
    hear(core, WISH)
    return core


def test_what_one_holder_called_committed_is_not_committed_under_the_next() -> None:
    """RULES.md#i5, RULES.md#r26. 1. A follower hears how far its holder is, and lacks some. 2. An
    operator gives that up. 3. Under a later epoch other records get those numbers."""
    core = follower()
    follow(core, 1)
    hear(core, say.Heartbeat(1, committed=200))
    follow(core, 3)
    record = Record(Position(3, 1), 0, EpochStart("a", "p2", forced=True))
    hear(core, say.Records(3, ORIGIN, (record,), 0))
    core.step(core.now, on.RecordsDurable(1))
    assert core.journal.durable == 1
    assert core.journal.committed == 0
    hear(core, say.Committed(3, 1))
    assert core.journal.committed == 1
    assert core.follower.highest_announced == 200


def test_a_snapshot_is_told_of_to_who_wished_for_it() -> None:
    """RULES.md#r28: requests are counted by epoch, and what came of an earlier one stands
    elsewhere."""
    core = follower()
    follow(core, 1)
    first, second = (SnapshotPlace(1, Position(1, n), (), Position(1, n)) for n in (1, 2))
    hear(core, say.TakeSnapshot(1, first))
    hear(core, say.TakeSnapshot(1, second))
    assert told(core, on.SnapshotTaken(first, 7)) == []
    follow(core, 3)
    assert told(core, on.SnapshotTaken(second, 8)) == [say.SnapshotTaken(1, 1, 8, ())]


@pytest.mark.parametrize(
    ("event", "begun"),
    [
        (on.Tick(), 1),
        (on.PeerLost("a", "gone"), 0),
        (on.PeerSaid("a", go_on(3)), 0),
    ],
    ids=["nothing", "link", "epoch"],
)
def test_a_wish_ends_with_the_link_and_with_the_epoch_in_which_it_was_told(
    event: on.Input, begun: int
) -> None:
    """A draft that nobody waits for would take the place of one that somebody writes."""
    core = with_a_wish()
    core.step(core.now, event)
    core.deployment.marks["delays"].finished = 1
    actions = core.step(core.now, on.BatchDigested("delays", 1, "digest"))
    assert sum(isinstance(action, do.TakeSnapshot) for action in actions) == begun


def test_what_a_late_follow_wants_given_up_is_not_when_records_go_on() -> None:
    """RULES.md#i14. 1. A Follow that answers an earlier moment says: begin from a snapshot. 2.
    There is none. 3. Records of the same holder continue this journal."""
    core = follower()
    core.step(1.0, on.LeaseRead(LeaseRow("group-1", Holder("a", "p1"), 1, 1, ()), None))
    follow(core, 1)
    hear(core, go_on(1, begins=Position(1, 50)))
    core.step(core.now, on.RestoreFailed("none is sound"))
    assert core.follower.giving_up
    hear(core, say.Records(1, ORIGIN, (Record(Position(1, 1), 0, EpochStart("a", "p1")),), 0))
    assert not core.follower.giving_up


def told(core: Core, event: on.Input) -> list[say.Word]:
    actions = core.step(core.now + 0.1, event)
    return [action.message for action in actions if isinstance(action, do.Send)]


def test_who_wished_for_a_snapshot_hears_that_spark_died_before_it_was_begun() -> None:
    """What a batch came to that is committed may never be told."""
    core = with_a_wish()
    incarnation = core.query_control.process.incarnation
    assert incarnation is not None
    gone = on.QueryProcessGone(incarnation, "killed")
    failed = say.SnapshotFailed(1, 1, "the query process died: killed")
    assert told(core, gone) == [failed]


def test_spark_stays_away_from_what_no_snapshot_could_replace_yet() -> None:
    """Each try would end it again, on a host that another node may share."""
    core = follower()
    row = LeaseRow("group-1", Holder("a", "p1"), 1, 1, (Member("a", "ja"),))
    core.step(1.0, on.LeaseRead(row, None))
    for _ in range(3):
        hear(core, say.Probe(1))
        hear(core, go_on(1, begins=Position(1, 50)))
        core.step(core.now, on.RestoreFailed("none is sound"))
        actions = core.step(core.now + 10.0, on.Tick())
        assert not [action for action in actions if isinstance(action, do.StartQueryProcess)]
        core.step(core.now, on.LeaseRead(row, None))
        assert core.reason == "no snapshot was restored: none is sound"
