"""The database of the lease and of the sink."""

from __future__ import annotations

from tests.faults.matrix.hosts import TTL_SECONDS, holds
from tests.faults.matrix.needs import STANDBY
from tests.faults.matrix.rows.operators import switchover
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    HOST_SECONDS,
    SYNC_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)


@row(CALM_SECONDS)
def stop_database(scene: Scene) -> None:
    with scene.world.without_database():
        scene.world.database.stop()
        scene.last(scene.chance.uniform(1.0, 4.0) * TTL_SECONDS)


@row(CALM_SECONDS)
def freeze_database(scene: Scene) -> None:
    with scene.world.without_database():
        scene.world.database.freeze()
        scene.last(scene.chance.uniform(1.0, 4.0) * TTL_SECONDS)


@row(CALM_SECONDS)
def slow_database(scene: Scene) -> None:
    scene.world.lan.throttle("db", "50kbit")
    scene.last(3 * TTL_SECONDS)


@row(CALM_SECONDS)
def lock_the_lease_row(scene: Scene) -> None:
    with scene.world.database.lease_row_locked():
        scene.last(scene.chance.uniform(1.0, 3.0) * TTL_SECONDS)


@row(HOST_SECONDS)
def lose_the_lease_row(scene: Scene) -> None:
    """The active writes it again, since it knows what the row said (RULES.md#r5)."""
    scene.world.database.execute("DELETE FROM ha_engine.lease")
    scene.last(scene.chance.uniform(0.5, 1.5) * TTL_SECONDS)


@row(HOST_SECONDS, STANDBY)
def fail_the_database_over(scene: Scene) -> None:
    """The standby lacks the last writes of the lease row, perhaps an epoch or a removed member."""
    world = scene.world
    assert world.standby is not None
    world.standby.lag_behind()
    match scene.chance.choice(("renewals", "a member", "an epoch")):
        case "renewals":
            scene.last(1.0)
        case "a member":
            scene.passive.kill_everything()
            scene.last(1.5 * SYNC_SECONDS)
        case "an epoch":
            switchover(scene)
    world.fail_over()


@row(4 * TTL_SECONDS + HOST_SECONDS)
def stop_database_then_kill_active(scene: Scene) -> None:
    """Nobody takes over before the database is back."""
    with scene.world.without_database():
        scene.world.database.stop()
        scene.last(TTL_SECONDS)
        scene.active.kill_everything()
        scene.last(2 * TTL_SECONDS)
    scene.world.database.start()
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)


@row(TTL_SECONDS + SYNC_SECONDS)
def stop_database_then_kill_passive(scene: Scene) -> None:
    """The active may not ack without a passive that the row lists, until the database is back."""
    with scene.world.without_database():
        scene.world.database.stop()
        scene.last(TTL_SECONDS)
        scene.passive.kill_everything()
        scene.last(TTL_SECONDS)
