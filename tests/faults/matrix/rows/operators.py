"""Operators who change the roles, or err."""

from __future__ import annotations

import signal

from tests.faults.matrix.hosts import TTL_SECONDS, holds
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    SYNC_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)


@row(CALM_SECONDS)
def switchover(scene: Scene) -> None:
    answer = scene.active.http.post("/v1/switchover")
    if answer.is_success:
        assert holds(scene.passive.is_active, TAKEOVER_SECONDS)


@row(SYNC_SECONDS)
def interrupt_passive_twice_at_its_start(scene: Scene) -> None:
    """It ends, and leaves no process behind, however far its start has come."""
    node = scene.passive
    node.kill_everything()
    node.start()
    assert node.process is not None
    for _ in range(2):
        scene.last(scene.chance.uniform(0.0, 1.5))
        node.process.send_signal(signal.SIGINT)
    process = node.process
    assert holds(lambda: process.poll() is not None, TAKEOVER_SECONDS), f"{node.name} runs"
    assert holds(lambda: not node.left_over(), TAKEOVER_SECONDS), "a process is left"


@row(SYNC_SECONDS, operator=True)
def two_hosts_with_the_name_of_one_node(scene: Scene) -> None:
    """A host that was installed from a copy of another one's config takes no part: it never was in
    sync, so neither its start nor its end changes a role. An operator removes it."""
    world, node = scene.world, scene.chance.choice(scene.world.nodes)
    home = world.directory / f"twin-{scene.chance.randrange(1 << 30)}"
    with node.twin(home, world.lan.on("db"), world.addresses["db"]) as twin:
        scene.last(scene.chance.uniform(2.0, 4.0) * TTL_SECONDS)
        assert not twin.is_active(), "the second host became the active"
