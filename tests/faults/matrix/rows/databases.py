"""The database of the lease and of the sink."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from tests.faults.matrix.database import PASSWORD, ROLE
from tests.faults.matrix.hosts import TTL_SECONDS, holds
from tests.faults.matrix.needs import LOGIN, STANDBY
from tests.faults.matrix.rows.network import both_ways
from tests.faults.matrix.rows.operators import switchover
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    HOST_SECONDS,
    SYNC_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)
from tests.faults.matrix.tracer import injected


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


@contextlib.contextmanager
def _frozen(scene: Scene) -> Iterator[None]:
    scene.world.database.freeze()
    yield
    scene.world.database.thaw()


@contextlib.contextmanager
def _slow(scene: Scene) -> Iterator[None]:
    scene.world.lan.throttle("db", "50kbit")
    yield
    scene.world.lan.heal()


def _locked(scene: Scene) -> contextlib.AbstractContextManager[None]:
    return scene.world.database.lease_row_locked()


Condition = Callable[[Scene], contextlib.AbstractContextManager[None]]


def _kill_active_under(condition: Condition, scene: Scene) -> None:
    """The passive takes over at the latest when it reaches the lease row again."""
    with condition(scene):
        scene.last(0.5 * TTL_SECONDS)
        scene.active.kill_everything()
        scene.last(scene.chance.uniform(0.5, 1.5) * TTL_SECONDS)
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)


for name, condition in {"frozen": _frozen, "locked": _locked, "slow": _slow}.items():
    row(2 * TTL_SECONDS + HOST_SECONDS, name=f"kill_active_while_the_database_is_{name}")(
        partial(_kill_active_under, condition)
    )


@row(HOST_SECONDS)
def messages_of_the_active_to_the_database_are_late(scene: Scene) -> None:
    """A batch that the active sent in its epoch reaches the sink in that of the next active."""
    late = round(3 * TTL_SECONDS * 1_000_000)
    scene.drop(*both_ways("{active}", "{passive}"))
    with injected(scene.active, f"sendto:delay_enter={late}"):
        assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
        scene.last(3 * TTL_SECONDS)


@row(CALM_SECONDS)
def stop_database_for_a_minute(scene: Scene) -> None:
    """Without a limit in time: the sink's outbox grows, and nothing else changes."""
    with scene.world.without_database():
        scene.world.database.stop()
        scene.last(60.0)


@row(CALM_SECONDS, STANDBY)
def stall_synchronous_replication(scene: Scene) -> None:
    """Each commit waits for a standby that is gone, also beyond the statement's timeout.

    An administrator may cancel the waits: then the commits succeed without the standby, and what
    the nodes know of their outcome is wrong until they read the row (RULES.md#r5).
    """
    world = scene.world
    assert world.standby is not None
    world.database.set("synchronous_standby_names", "*")
    world.undo.append(partial(world.database.set, "synchronous_standby_names", ""))
    scene.chance.choice((world.standby.stop, world.standby.freeze))()
    world.undo.append(world.standby.thaw)
    cancelling = scene.chance.random() < 0.5
    until = time.monotonic() + scene.chance.uniform(2.0, 4.0) * TTL_SECONDS
    with world.without_database():
        while time.monotonic() < until:
            scene.last(0.2)
            if cancelling:
                world.database.rows(CANCEL_WAITS)


CANCEL_WAITS = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


# -- rights ----------------------------------------------------------------------------------------

LIMITED = {
    "the_login": (f"ALTER ROLE {ROLE} NOLOGIN", f"ALTER ROLE {ROLE} LOGIN"),
    "the_password": (
        f"ALTER ROLE {ROLE} PASSWORD 'another'",
        f"ALTER ROLE {ROLE} PASSWORD '{PASSWORD}'",
    ),
    "the_rights_on_the_lease": (
        f"REVOKE ALL ON ha_engine.lease FROM {ROLE}",
        f"GRANT ALL ON ha_engine.lease TO {ROLE}",
    ),
    "the_rights_on_all_tables": (
        f"REVOKE ALL ON ALL TABLES IN SCHEMA ha_engine, public FROM {ROLE}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA ha_engine, public TO {ROLE}",
    ),
}
"""By what an administrator takes from the nodes: the statement, and the one that undoes it."""


def _limit(taken: str, scene: Scene) -> None:
    """A refusal is an error like any other, so the roles stay (RULES.md#r16)."""
    world = scene.world
    statement, undone = LIMITED[taken]
    with world.without_database():
        world.database.execute(statement)
        world.undo.append(partial(world.database.execute, undone))
        world.database.end_sessions(ROLE)
        scene.last(scene.chance.uniform(1.0, 3.0) * TTL_SECONDS)


for taken in LIMITED:
    row(CALM_SECONDS, LOGIN, name=f"take_{taken}")(partial(_limit, taken))


# -- ledger and sink -------------------------------------------------------------------------------


KEPT = """
CREATE TABLE IF NOT EXISTS kept (LIKE ha_engine_ledger);
TRUNCATE kept;
WITH deleted AS (DELETE FROM ha_engine_ledger RETURNING *) INSERT INTO kept SELECT * FROM deleted
"""
PUT_BACK = """
ALTER TABLE ha_engine_ledger DISABLE TRIGGER audit;
UPDATE ha_engine_ledger SET batch = kept.batch FROM kept;
ALTER TABLE ha_engine_ledger ENABLE TRIGGER audit
"""


@row(CALM_SECONDS, operator=True)
def delete_the_ledger_row(scene: Scene) -> None:
    """The node never guesses what the sink has, so an operator puts the row back."""
    seen = len(scene.active.log_text())
    scene.world.sink.execute(KEPT)
    refusal = "restore the sink's ledger"
    assert holds(lambda: refusal in scene.active.log_text()[seen:], TAKEOVER_SECONDS)
    scene.last(scene.chance.uniform(0.0, 2.0))
    scene.world.sink.execute(PUT_BACK)


def _change_the_sink(change: str, undo: str, reason: str, scene: Scene) -> None:
    """Output waits until an operator undoes the change; acks do not."""
    seen = len(scene.active.log_text())
    scene.world.sink.execute(change)
    assert holds(lambda: reason in scene.active.log_text()[seen:], TAKEOVER_SECONDS)
    scene.last(scene.chance.uniform(0.5, 3.0))
    scene.world.sink.execute(undo)


CHANGES = {
    "rename_the_sinks_table": (
        "ALTER TABLE copies RENAME TO aside",
        "ALTER TABLE aside RENAME TO copies",
    ),
    "rename_a_column_of_the_sink": (
        "ALTER TABLE copies RENAME COLUMN text TO other",
        "ALTER TABLE copies RENAME COLUMN other TO text",
    ),
    "refuse_rows_in_the_sink": (
        "ALTER TABLE copies ADD CONSTRAINT no_more CHECK (id < 0) NOT VALID",
        "ALTER TABLE copies DROP CONSTRAINT no_more",
    ),
}
for name, (change, undo) in CHANGES.items():
    fault = partial(_change_the_sink, change, undo, "sink fails")
    row(CALM_SECONDS, operator=True, name=name)(fault)


@row(CALM_SECONDS)
def kill_db_init(scene: Scene) -> None:
    """An operator repeats the command, which completes the schema or finds it complete."""
    schema = f"init_{scene.chance.randrange(1 << 30)}"
    config = scene.passive.config_for("init.yaml", database={"schema": schema})
    words = ("db", "init", "-c", str(config))
    killed = f"inject=sendto:signal=KILL:when={scene.chance.randrange(1, 80)}"
    traced = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", killed]
    subprocess.run(
        [*traced, sys.executable, "-m", "ha_engine", *words], capture_output=True, check=False
    )
    for _ in range(2):
        ended = scene.passive.command(*words)
        assert ended.code == 0, ended.err
    version = scene.world.database.rows(f"SELECT version_num FROM {schema}.schema_version")
    assert version == scene.world.database.rows(VERSION)
    scene.world.database.execute(f"DROP SCHEMA {schema} CASCADE")


VERSION = "SELECT version_num FROM ha_engine.schema_version"
