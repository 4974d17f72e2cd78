"""A request of an operator to force a failover ends with the next epoch of the node
(RULES.md#r26)."""

from __future__ import annotations

from ha_engine.core import inputs as on
from tests.core.world import World


def test_acquisition_forgets_a_request_that_arrived_while_the_lease_was_written() -> None:
    world = World()
    world.start()
    forced = world.core.forced_failover
    forced.ask(world.now, on.FailoverForced("alice", ("b",)))
    assert forced.is_asked
    forced.acquired(7)
    assert not forced.is_asked
