"""Wall clocks that jump."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from tests.faults.matrix.hosts import TTL_SECONDS, holds
from tests.faults.matrix.needs import CLOCKS
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    HOST_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)


def _jump(scene: Scene, hosts: Collection[str]) -> None:
    clock = scene.world.clocks[scene.chance.choice(list(hosts))]
    scene.world.undo.append(partial(clock.move, 0))
    clock.move(scene.chance.choice((3600, -600)))
    scene.last(scene.chance.uniform(0.5, 2.0) * TTL_SECONDS)


@row(CALM_SECONDS, CLOCKS)
def wall_clock_of_a_host_jumps(scene: Scene) -> None:
    _jump(scene, scene.world.clocks)


@row(HOST_SECONDS, CLOCKS)
def wall_clock_of_a_node_jumps_and_the_active_dies(scene: Scene) -> None:
    """The clock of the database stays right, since the checker takes the elections' times of it."""
    _jump(scene, scene.world.pair.nodes)
    scene.active.kill_everything()
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
