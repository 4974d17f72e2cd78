"""What a follower makes of the words of one holder after another."""

from __future__ import annotations

from ha_engine.core import Core
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.types import ORIGIN, EpochStart, Position, Record
from tests.core.lone import member_b


def follower() -> Core:
    core = member_b()
    core.step(0.0, on.Tick())
    core.step(0.1, on.PeerConnected("a"))
    return core


def hear(core: Core, message: say.Message) -> None:
    core.step(core.now + 0.1, on.PeerSaid("a", message))


def follow(core: Core, epoch: int) -> None:
    hear(core, say.Follow(epoch, "jb", ORIGIN, ORIGIN, False, ORIGIN, ()))


def test_what_one_holder_called_committed_is_not_committed_under_the_next() -> None:
    """I5, R26. 1. A follower hears how far its holder is, and lacks some. 2. An operator gives that
    up. 3. Under a later epoch other records get those numbers."""
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
    assert core.following.told_committed == 200
