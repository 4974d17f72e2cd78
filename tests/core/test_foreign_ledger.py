"""A ledger with batches that this node never made (RULES.md#i7)."""

from __future__ import annotations

from ha_engine.core import inputs as on
from tests.core.world import World, plan


def test_ledger_ahead_of_the_outbox_is_not_recorded_and_stops_no_query() -> None:
    world = World(plans=(plan("delays", "flights", "board"),))
    world.start()
    records = list(world.disk.records)
    assert world.core.step(world.now, on.SinkPublished("delays", "board", 7)) == []
    assert world.disk.records == records
    world.offer("flights", 10)
    world.truth.require_all_published()
