"""Partitions, and lines that lose packets or are slow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.faults.matrix.hosts import TTL_SECONDS, holds
from tests.faults.matrix.needs import LINES
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    HOST_SECONDS,
    SYNC_SECONDS,
    TAKEOVER_SECONDS,
    Fault,
    Scene,
    row,
)
from tests.faults.matrix.world import BETWEEN_NODES


def both_ways(one: str, other: str) -> tuple[str, str]:
    return f"ip saddr {one} ip daddr {other}", f"ip saddr {other} ip daddr {one}"


def _cut(scene: Scene, *rules: str) -> None:
    scene.drop(*rules)
    scene.last(scene.chance.uniform(1.0, 2.5) * TTL_SECONDS)


@row(SYNC_SECONDS)
def cut_active_from_passive(scene: Scene) -> None:
    _cut(scene, *both_ways("{active}", "{passive}"))


@row(CALM_SECONDS)
def cut_active_from_database(scene: Scene) -> None:
    """The passive hears the active, so it does not take over (RULES.md#r16)."""
    _cut(scene, *both_ways("{active}", "{database}"))


@row(CALM_SECONDS)
def cut_passive_from_database(scene: Scene) -> None:
    _cut(scene, *both_ways("{passive}", "{database}"))


@row(HOST_SECONDS)
def cut_active_from_passive_and_database(scene: Scene) -> None:
    """Producers still reach the active, whose records differ from those of the next active."""
    scene.drop(*both_ways("{active}", "{passive}"), *both_ways("{active}", "{database}"))
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
    scene.last(scene.chance.uniform(0.0, 2.0))


@row(HOST_SECONDS)
def unplug_active(scene: Scene) -> None:
    scene.world.lan.unplug(scene.active.name)
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)


@row(SYNC_SECONDS)
def unplug_passive(scene: Scene) -> None:
    scene.world.lan.unplug(scene.passive.name)
    scene.last(scene.chance.uniform(0.5, 3.0) * TTL_SECONDS)


@row(CALM_SECONDS)
def unplug_database(scene: Scene) -> None:
    with scene.world.without_database():
        scene.world.lan.unplug("db")
        scene.last(scene.chance.uniform(1.0, 3.0) * TTL_SECONDS)


ONE_WAY = {
    "active_to_passive": SYNC_SECONDS,
    "passive_to_active": SYNC_SECONDS,
    "active_to_database": CALM_SECONDS,
    "database_to_active": CALM_SECONDS,
    "passive_to_database": CALM_SECONDS,
    "database_to_passive": CALM_SECONDS,
}


def _one_way(ends: str) -> Fault:
    source, _, target = ends.partition("_to_")
    return lambda scene: _cut(scene, f"ip saddr {{{source}}} ip daddr {{{target}}}")


for ends, acks in ONE_WAY.items():
    row(acks, name=f"cut_{ends}_one_way")(_one_way(ends))


@row(CALM_SECONDS)
def refuse_new_connections(scene: Scene) -> None:
    """Connections that exist continue."""
    _cut(scene, "ip saddr {active} tcp flags & (syn|ack) == syn")


@row(HOST_SECONDS)
def flapping_line_of_the_active(scene: Scene) -> None:
    for _ in range(scene.chance.randrange(3, 8)):
        scene.drop(*both_ways("{active}", "{passive}"), *both_ways("{active}", "{database}"))
        scene.last(scene.chance.uniform(0.1, 1.0))
        scene.world.lan.heal()
        scene.last(scene.chance.uniform(0.1, 1.0))


@row(HOST_SECONDS)
def lose_packets(scene: Scene) -> None:
    """A third of the packets of one node are lost, in both directions."""
    node = scene.chance.choice(("{active}", "{passive}"))
    rules = (f"ip {end} {node} numgen random mod 100 < 30" for end in ("saddr", "daddr"))
    scene.drop(*rules)
    scene.last(3 * TTL_SECONDS)


@row(HOST_SECONDS)
def throttle_a_node(scene: Scene) -> None:
    node = scene.chance.choice((scene.active, scene.passive))
    scene.world.lan.throttle(node.name, "200kbit")
    scene.last(3 * TTL_SECONDS)


# -- lines that are late ---------------------------------------------------------------------------


def _database_lines(scene: Scene) -> list[str]:
    """Return the line of one node, or of both."""
    nodes = scene.chance.sample(scene.world.nodes, scene.chance.choice((1, 2)))
    return [f"{node.name} to database" for node in nodes]


def _delay(lines: Callable[[Scene], list[str]], seconds: float, scene: Scene) -> None:
    for line in lines(scene):
        scene.world.lines[line].disturb(delay_seconds=seconds)
    scene.last(scene.chance.uniform(2.0, 3.0) * TTL_SECONDS + seconds)


for seconds in (0.2, 1.0, 5.0):
    fault = partial(_delay, lambda scene: [BETWEEN_NODES], seconds)
    acks = CALM_SECONDS if seconds < 1 else SYNC_SECONDS + seconds
    row(acks, LINES, name=f"delay_between_the_nodes_of_{seconds:g}_s")(fault)
    fault = partial(_delay, _database_lines, seconds)
    row(CALM_SECONDS, LINES, name=f"delay_to_the_database_of_{seconds:g}_s")(fault)


@row(HOST_SECONDS, LINES)
def reorder_connections(scene: Scene) -> None:
    """What a node sends on one connection overtakes what it has sent on another."""
    for line in scene.world.lines.values():
        line.disturb(delay_seconds=scene.chance.uniform(0.1, 0.6), reordering=True)
    scene.last(3 * TTL_SECONDS)


@row(HOST_SECONDS, LINES)
def stop_a_line_after_some_bytes(scene: Scene) -> None:
    """It stops amid a message, and closes nothing."""
    name = scene.chance.choice(list(scene.world.lines))
    scene.world.lines[name].disturb(allowance=scene.chance.randrange(1, 5000))
    scene.last(scene.chance.uniform(2.0, 4.0) * TTL_SECONDS)


@row(HOST_SECONDS + 2.0, LINES)
def kill_active_while_its_messages_are_late(scene: Scene) -> None:
    """Messages of the dead active, also its last renewal, arrive during the takeover."""
    seconds = scene.chance.uniform(0.2, 1.0)
    for line in scene.world.lines.values():
        line.disturb(delay_seconds=seconds)
    scene.last(TTL_SECONDS)
    scene.active.kill_everything()
    # A passive whose calls take longer than lease.db_timeout cannot take over.
    scene.world.lines[f"{scene.passive.name} to database"].repair()
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
