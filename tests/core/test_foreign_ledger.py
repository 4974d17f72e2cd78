"""What a ledger says of batches that this node never made (RULES.md#i7)."""

from __future__ import annotations

from ha_engine.core import inputs as on
from tests.core.world import World, plan


def test_a_ledger_ahead_of_what_was_admitted_is_not_recorded_and_ends_nothing() -> None:
    world = World(plans=(plan("delays", "flights", "board"),))
    world.start()
    records = list(world.disk.records)
    assert world.core.step(world.now, on.SinkPublished("delays", "board", 7)) == []
    assert world.disk.records == records
    world.offer("flights", 10)
    world.truth.require_all_published()
