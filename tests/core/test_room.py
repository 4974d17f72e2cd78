"""A member whose disk is nearly full (RULES.md#r30) is named in the back-pressure and stays in
sync."""

from __future__ import annotations

from tests.core.world import World


def full(world: World) -> str | None:
    found: str | None = world.core.term.full_member()
    return found


def test_active_names_a_full_member_while_it_is_in_sync() -> None:
    world = World()
    world.start()
    world.ghost.link()
    world.wait(1)
    assert full(world) is None
    world.ghost.headroom = False
    world.wait(10)
    assert world.table.row is not None
    assert [member.node for member in world.table.row.in_sync] == ["a", "b"]
    assert full(world) == "b"
    world.ghost.headroom = True
    world.wait(1)
    assert full(world) is None


def test_full_node_out_of_sync_causes_no_back_pressure() -> None:
    world = World()
    world.start()
    world.ghost.headroom = False
    world.ghost.link()
    world.wait(10)
    assert world.table.row is not None
    assert [member.node for member in world.table.row.in_sync] == ["a"]
    assert full(world) is None
    world.ghost.headroom = True
    world.wait(2)
    assert [member.node for member in world.table.row.in_sync] == ["a", "b"]
