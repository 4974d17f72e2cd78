"""Disks that are full, fail, are slow or lose power."""

from __future__ import annotations

import signal
from functools import partial

from ha_engine.system.stuck_watch import STUCK_SECONDS
from tests.faults.matrix.disks import MIN_FREE_BYTES
from tests.faults.matrix.hosts import TTL_SECONDS, HostedNode, holds
from tests.faults.matrix.needs import DATABASE_DISK, DISKS, PART_NAMES, PARTS
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    CRASH_SECONDS,
    HOST_SECONDS,
    SYNC_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)
from tests.faults.matrix.tracer import injected, until_it_dies


def _kill_at_a_sync(scene: Scene) -> str:
    return f"fsync,fdatasync:signal=KILL:when={scene.chance.randrange(1, 30)}"


FULL_SECONDS = 5.0
FAILED_WRITE = "writev:error=ENOSPC"
FAILED_SYNC = "fsync,fdatasync:error=EIO"
SLOW_SYNC = "fsync,fdatasync:delay_enter=200ms"
HUNG_SYNC = "fsync,fdatasync:delay_enter=3600s"


@row(CRASH_SECONDS)
def fsync_fails_on_active(scene: Scene) -> None:
    """The node process must end, since nobody knows what is on the disk."""
    until_it_dies(scene.active, FAILED_SYNC)


@row(SYNC_SECONDS)
def fsync_fails_on_passive(scene: Scene) -> None:
    until_it_dies(scene.passive, FAILED_SYNC)


@row(STUCK_SECONDS + HOST_SECONDS)
def disk_of_active_hangs(scene: Scene) -> None:
    """The node process must end by itself, so that the other node can take over."""
    until_it_dies(scene.active, HUNG_SYNC, within=2 * STUCK_SECONDS)


@row(SYNC_SECONDS)
def disk_of_passive_hangs(scene: Scene) -> None:
    until_it_dies(scene.passive, HUNG_SYNC, within=2 * STUCK_SECONDS)


@row(CRASH_SECONDS)
def journal_write_fails_on_active(scene: Scene) -> None:
    until_it_dies(scene.active, FAILED_WRITE)


@row(SYNC_SECONDS)
def journal_write_fails_on_passive(scene: Scene) -> None:
    until_it_dies(scene.passive, FAILED_WRITE)


@row(CRASH_SECONDS)
def kill_active_at_an_fsync(scene: Scene) -> None:
    until_it_dies(scene.active, _kill_at_a_sync(scene))


@row(SYNC_SECONDS)
def kill_passive_at_an_fsync(scene: Scene) -> None:
    until_it_dies(scene.passive, _kill_at_a_sync(scene))


@row(HOST_SECONDS)
def slow_fsync(scene: Scene) -> None:
    with injected(scene.chance.choice((scene.active, scene.passive)), SLOW_SYNC):
        scene.last(2 * TTL_SECONDS)


def _fill(scene: Scene, node: HostedNode, free_bytes: int) -> None:
    disk = scene.world.disks[node.name]
    scene.world.undo.append(disk.free)
    disk.fill(free_bytes)
    scene.last(FULL_SECONDS)


@row(FULL_SECONDS + CALM_SECONDS, DISKS)
def fill_disk(scene: Scene) -> None:
    """Producers get 429, whichever node it is, and both keep their roles (RULES.md#r30)."""
    free_bytes = scene.chance.choice((0, MIN_FREE_BYTES // 2))
    _fill(scene, scene.chance.choice((scene.active, scene.passive)), free_bytes)


def _lose_power(scene: Scene, *nodes: HostedNode) -> None:
    """What no fsync has put on the disk is lost, like all processes."""
    for node in nodes:
        node.signal(signal.SIGSTOP)
        scene.world.disks[node.name].copy()
        node.kill_everything()
        scene.world.disks[node.name].lose_power()


@row(HOST_SECONDS, DISKS)
def power_loss_of_active(scene: Scene) -> None:
    _lose_power(scene, scene.active)
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)


@row(SYNC_SECONDS, DISKS)
def power_loss_of_passive(scene: Scene) -> None:
    _lose_power(scene, scene.passive)


@row(HOST_SECONDS + 5, DISKS)
def power_loss_of_both(scene: Scene) -> None:
    _lose_power(scene, *scene.chance.sample(scene.world.nodes, 2))


@row(HOST_SECONDS, DISKS)
def disk_becomes_read_only(scene: Scene) -> None:
    """The kernel finds an error in the file system; the node process ends at its next write."""
    node = scene.chance.choice((scene.active, scene.passive))
    disk, before = scene.world.disks[node.name], node.pid_of("node")

    def repair() -> None:
        node.kill_everything()
        disk.repair()

    scene.world.undo.append(repair)
    disk.become_read_only()
    assert holds(lambda: node.pid_of("node") != before, TAKEOVER_SECONDS), f"{node.name} wrote"
    scene.last(scene.chance.uniform(0.0, TTL_SECONDS))


def _fill_part(part: str, scene: Scene) -> None:
    """Only the outbox or the checkpoints are full, which the free space of the disk does not show:
    the query process or the node process ends at a write until there is space again."""
    node = scene.chance.choice((scene.active, scene.passive))
    volume = scene.world.parts[node.name, part]
    scene.world.undo.append(volume.free)
    volume.fill(0)
    scene.last(FULL_SECONDS)


for part in PART_NAMES:
    row(HOST_SECONDS, PARTS, name=f"fill_the_disk_of_the_{part}")(partial(_fill_part, part))


@row(CALM_SECONDS, DATABASE_DISK)
def fill_the_disk_of_the_database(scene: Scene) -> None:
    """Its writes fail, or it ends; what it answers must not change a role."""
    disk = scene.world.disks["db"]
    scene.world.undo.append(disk.free)
    disk.fill(0)
    scene.last(scene.chance.uniform(2.0, 4.0) * TTL_SECONDS)
