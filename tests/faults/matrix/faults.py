"""The rows of the matrix: what happens to the pair, and what is promised then.

A fault is a function of one ``Scene``. It returns when the fault has lasted long enough; then
``World.heal`` ends it, and starts what has ended. Each row says how long no event may be acked, and
whether the pair needs an operator to become whole again.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from ha_engine.journal import Journal
from ha_engine.journal.reading import FILE_HEADER_BYTES
from ha_engine.journal.segment import segment_paths
from tests.faults.matrix.disks import MIN_FREE_BYTES
from tests.faults.matrix.hosts import (
    CLOCKS,
    DISKS,
    SPARK,
    STANDBY,
    TTL_SECONDS,
    HostedNode,
    World,
    holds,
)
from tests.faults.matrix.load import STREAM, Log

CRASH_SECONDS = 1.0
"""The promise for a process that dies while its supervisor lives."""
HOST_SECONDS = TTL_SECONDS + 1.0
"""The promise for a host that is lost or cut off."""
SYNC_SECONDS = 2.0 + 0.5
"""The promise for a passive that is lost: ``event_sync.sync_timeout``, and half a second."""
CALM_SECONDS = 1.0
"""The promise for a fault that stops no ack."""
TAKEOVER_SECONDS, ATTACH_SECONDS = 30.0, 10.0
"""The limits of a wait for what must happen at once or in a ttl, on a slow host too."""
FULL_SECONDS = 5.0


@dataclass(frozen=True)
class Scene:
    """A whole pair under load. ``chance`` decides all that a fault may choose."""

    world: World
    chance: random.Random
    active: HostedNode
    passive: HostedNode
    log: Log

    def last(self, seconds: float) -> None:
        """Let the fault last."""
        time.sleep(seconds)

    def drop(self, *rules: str) -> None:
        """Drop packets; a rule names hosts in braces, such as ``ip saddr {active}``."""
        world = self.world
        addresses = {"active": self.active.address, "passive": self.passive.address}
        addresses["database"] = world.addresses["db"]
        world.lan.drop(*(rule.format(**addresses) for rule in rules))


Fault = Callable[[Scene], None]


@dataclass(frozen=True)
class Row:
    """A row of the matrix: ``acks`` is the longest promised time without an ack, in seconds, and
    ``needs`` is what its world must have."""

    name: str
    fault: Fault
    acks: float
    operator: bool = False
    needs: tuple[str, ...] = ()


ROWS: dict[str, Row] = {}


def row(
    acks: float, *needs: str, operator: bool = False, name: str = ""
) -> Callable[[Fault], Fault]:
    """Register a function as a row of the matrix, under its own name by default."""

    def register(fault: Fault) -> Fault:
        called = name or fault.__name__
        ROWS[called] = Row(called, fault, acks, operator, needs)
        return fault

    return register


# -- kill -9 ---------------------------------------------------------------------------------------


@row(CRASH_SECONDS)
def kill_active_node(scene: Scene) -> None:
    scene.active.kill("node")


@row(CALM_SECONDS)
def kill_active_query(scene: Scene) -> None:
    scene.active.kill("query")


@row(CALM_SECONDS, SPARK)
def kill_active_jvm(scene: Scene) -> None:
    scene.active.kill("jvm")


@row(HOST_SECONDS)
def kill_active_supervisor(scene: Scene) -> None:
    scene.active.kill_supervisor()


@row(HOST_SECONDS)
def kill_active_host(scene: Scene) -> None:
    scene.active.kill_everything()
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)


@row(HOST_SECONDS)
def kill_active_host_and_return_at_once(scene: Scene) -> None:
    scene.active.kill_everything()


@row(SYNC_SECONDS)
def kill_passive_node(scene: Scene) -> None:
    scene.passive.kill("node")


@row(CALM_SECONDS)
def kill_passive_query(scene: Scene) -> None:
    scene.passive.kill("query")


@row(SYNC_SECONDS)
def kill_passive_supervisor(scene: Scene) -> None:
    scene.passive.kill_supervisor()


@row(SYNC_SECONDS)
def kill_passive_host(scene: Scene) -> None:
    scene.passive.kill_everything()
    scene.last(scene.chance.uniform(0.0, 4.0))


@row(HOST_SECONDS + 5)
def kill_both_hosts(scene: Scene) -> None:
    """Both return, in an order and at a distance that the seed gives."""
    nodes = scene.chance.sample(scene.world.nodes, 2)
    for node in nodes:
        node.kill_everything()
    for node in nodes:
        node.start()
        scene.last(scene.chance.choice((0.0, 1.0, 3.0)))


@row(HOST_SECONDS + 8)
def kill_both_hosts_and_one_does_not_return(scene: Scene) -> None:
    """The one that returns was in sync, so it becomes the active alone."""
    for node in scene.world.nodes:
        node.kill_everything()
    left = scene.chance.choice(scene.world.nodes)
    left.start()
    assert holds(left.is_active, TAKEOVER_SECONDS), f"{left.name} alone did not become the active"


@row(CALM_SECONDS)
def kill_postmaster(scene: Scene) -> None:
    with scene.world.without_database():
        scene.world.database.kill()
        scene.last(scene.chance.uniform(0.0, 3.0))


@row(CALM_SECONDS)
def kill_backend(scene: Scene) -> None:
    """PostgreSQL ends all its other backends then, and recovers."""
    scene.world.database.kill_backend(scene.active.address)
    scene.last(1.0)


# -- pauses ----------------------------------------------------------------------------------------


def _pause(node: HostedNode, scene: Scene, ttls: float, what: str | None = None) -> None:
    node.signal(signal.SIGSTOP, what)
    scene.last(ttls * TTL_SECONDS)
    node.signal(signal.SIGCONT, what)


@row(0.5 * TTL_SECONDS + CALM_SECONDS)
def pause_active_half_a_ttl(scene: Scene) -> None:
    _pause(scene.active, scene, 0.5)


@row(HOST_SECONDS)
def pause_active_one_and_a_half_ttl(scene: Scene) -> None:
    _pause(scene.active, scene, 1.5)


@row(HOST_SECONDS)
def pause_active_four_ttl(scene: Scene) -> None:
    _pause(scene.active, scene, 4)


@row(HOST_SECONDS)
def pause_active_node_process(scene: Scene) -> None:
    _pause(scene.active, scene, 2, "node")


@row(CALM_SECONDS)
def pause_active_query(scene: Scene) -> None:
    _pause(scene.active, scene, 1.5, "query")


@row(CALM_SECONDS, SPARK)
def pause_active_jvm(scene: Scene) -> None:
    _pause(scene.active, scene, 1.5, "jvm")


@row(SYNC_SECONDS)
def pause_passive(scene: Scene) -> None:
    _pause(scene.passive, scene, scene.chance.choice((0.5, 1.5, 4)))


def _starve(node: HostedNode, scene: Scene) -> None:
    """Give the node a tenth of the time."""
    until = time.monotonic() + 2 * TTL_SECONDS
    while time.monotonic() < until:
        _pause(node, scene, 0.09 / TTL_SECONDS)
        scene.last(0.01)


@row(HOST_SECONDS)
def starve_active(scene: Scene) -> None:
    _starve(scene.active, scene)


@row(SYNC_SECONDS)
def starve_passive(scene: Scene) -> None:
    _starve(scene.passive, scene)


# -- partitions ------------------------------------------------------------------------------------


def _both_ways(one: str, other: str) -> tuple[str, str]:
    return f"ip saddr {one} ip daddr {other}", f"ip saddr {other} ip daddr {one}"


def _cut(scene: Scene, *rules: str) -> None:
    scene.drop(*rules)
    scene.last(scene.chance.uniform(1.0, 2.5) * TTL_SECONDS)


@row(SYNC_SECONDS)
def cut_active_from_passive(scene: Scene) -> None:
    _cut(scene, *_both_ways("{active}", "{passive}"))


@row(CALM_SECONDS)
def cut_active_from_database(scene: Scene) -> None:
    """The passive hears the active, so it does not take over (RULES.md#r16)."""
    _cut(scene, *_both_ways("{active}", "{database}"))


@row(CALM_SECONDS)
def cut_passive_from_database(scene: Scene) -> None:
    _cut(scene, *_both_ways("{passive}", "{database}"))


@row(HOST_SECONDS)
def cut_active_from_passive_and_database(scene: Scene) -> None:
    """Producers still reach the active, whose records differ from those of the next active."""
    scene.drop(*_both_ways("{active}", "{passive}"), *_both_ways("{active}", "{database}"))
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
        scene.drop(*_both_ways("{active}", "{passive}"), *_both_ways("{active}", "{database}"))
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


# -- database --------------------------------------------------------------------------------------


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


# -- disks -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _injected(node: HostedNode, fault: str) -> Iterator[None]:
    """Let strace change what the system calls of the node process do."""
    pid = node.pid_of("node")
    assert pid is not None
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={fault}", "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
        try:
            assert holds(lambda: _tracer(pid) == tracer.pid, ATTACH_SECONDS, every=0.01)
            yield
        finally:
            # A polite end would wait for the threads of a dead process, which nobody reaps before.
            tracer.kill()


def _tracer(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("TracerPid:")[2].split()[0])


def _until_it_dies(node: HostedNode, fault: str) -> None:
    before = node.pid_of("node")
    with _injected(node, fault):
        died = holds(lambda: node.pid_of("node") != before, TAKEOVER_SECONDS)
        assert died, f"the node process of {node.name} survived {fault}"


def _kill_at_a_sync(scene: Scene) -> str:
    return f"fsync,fdatasync:signal=KILL:when={scene.chance.randrange(1, 30)}"


FAILED_WRITE = "writev:error=ENOSPC"
FAILED_SYNC = "fsync,fdatasync:error=EIO"
SLOW_SYNC = "fsync,fdatasync:delay_enter=200ms"


@row(CRASH_SECONDS)
def fsync_fails_on_active(scene: Scene) -> None:
    """The node process must end, since nobody knows what is on the disk."""
    _until_it_dies(scene.active, FAILED_SYNC)


@row(SYNC_SECONDS)
def fsync_fails_on_passive(scene: Scene) -> None:
    _until_it_dies(scene.passive, FAILED_SYNC)


@row(CRASH_SECONDS)
def journal_write_fails_on_active(scene: Scene) -> None:
    _until_it_dies(scene.active, FAILED_WRITE)


@row(SYNC_SECONDS)
def journal_write_fails_on_passive(scene: Scene) -> None:
    _until_it_dies(scene.passive, FAILED_WRITE)


@row(CRASH_SECONDS)
def kill_active_at_an_fsync(scene: Scene) -> None:
    _until_it_dies(scene.active, _kill_at_a_sync(scene))


@row(SYNC_SECONDS)
def kill_passive_at_an_fsync(scene: Scene) -> None:
    _until_it_dies(scene.passive, _kill_at_a_sync(scene))


@row(HOST_SECONDS)
def slow_fsync(scene: Scene) -> None:
    with _injected(scene.chance.choice((scene.active, scene.passive)), SLOW_SYNC):
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


# -- journals --------------------------------------------------------------------------------------


def _newest_segment(node: HostedNode) -> Path:
    return segment_paths(node.data_dir / "journal")[-1]


@row(SYNC_SECONDS)
def torn_write_at_the_end_of_the_passives_journal(scene: Scene) -> None:
    scene.passive.kill_everything()
    path = _newest_segment(scene.passive)
    cut = scene.chance.randrange(1, 400)
    os.truncate(path, max(FILE_HEADER_BYTES, path.stat().st_size - cut))


@row(SYNC_SECONDS)
def zeros_at_the_end_of_the_passives_journal(scene: Scene) -> None:
    """A crash leaves them where the file grew and its content did not reach the disk."""
    scene.passive.kill_everything()
    with _newest_segment(scene.passive).open("ab") as file:
        file.write(bytes(scene.chance.randrange(1, 10_000)))


@row(SYNC_SECONDS, operator=True)
def garbage_at_the_end_of_the_passives_journal(scene: Scene) -> None:
    """No crash writes that, so the node refuses its journal (RULES.md#r31)."""
    scene.passive.kill_everything()
    with _newest_segment(scene.passive).open("ab") as file:
        file.write(bytes(range(1, scene.chance.randrange(60, 256))))
    _until_it_refuses(scene.passive, "is damaged at byte")
    _reinit(scene.passive)


@row(SYNC_SECONDS, operator=True)
def flipped_bit_in_the_passives_journal(scene: Scene) -> None:
    """The node refuses its journal, and an operator lets it begin with an empty one."""
    node = scene.passive
    node.kill_everything()
    path = _newest_segment(node)
    content = bytearray(path.read_bytes())
    # Behind it there is a whole record, so that no node may take it for a torn write.
    at = scene.chance.randrange(FILE_HEADER_BYTES, len(content) // 2)
    content[at] ^= 1 << scene.chance.randrange(8)
    path.write_bytes(content)
    _until_it_refuses(node, "is damaged at byte")
    _reinit(node)


@row(SYNC_SECONDS)
def journal_of_another_group(scene: Scene) -> None:
    """The node refuses it; then its own is put back."""
    node = scene.passive
    node.kill_everything()
    journal, aside = node.data_dir / "journal", node.data_dir / "aside"
    journal.rename(aside)
    Journal.open(journal, group="another").close()
    _until_it_refuses(node, "another")
    shutil.rmtree(journal)
    aside.rename(journal)


@row(SYNC_SECONDS)
def passive_loses_its_disk(scene: Scene) -> None:
    scene.passive.kill_everything()
    shutil.rmtree(scene.passive.data_dir)


@row(HOST_SECONDS)
def active_loses_its_disk(scene: Scene) -> None:
    scene.active.kill_everything()
    shutil.rmtree(scene.active.data_dir)
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)


def _until_it_refuses(node: HostedNode, reason: str) -> None:
    """Start the node, and wait until it ends with this reason in its log."""
    before = len(node.log_text())
    node.start()
    assert node.process is not None
    process = node.process
    assert holds(lambda: process.poll() is not None, TAKEOVER_SECONDS), f"{node.name} runs"
    assert reason in node.log_text()[before:]


def _reinit(node: HostedNode) -> None:
    ended = node.command("reinit", node.name, "--yes", "-c", str(node.config_path))
    assert ended.code == 0, ended.err


# -- clocks ----------------------------------------------------------------------------------------


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


# -- requests --------------------------------------------------------------------------------------


@row(HOST_SECONDS)
def repeat_requests_across_a_failover(scene: Scene) -> None:
    """Each request keeps its first position, and none may come with other rows (RULES.md#i11)."""
    producer = f"repeats-{scene.chance.randrange(1 << 30)}"
    events: list[list[dict[str, Any]]] = [
        [{"id": scene.log.sent(producer), "text": producer}] for _ in range(20)
    ]

    def answers(node: HostedNode) -> list[dict[str, Any]]:
        sent = [node.send(STREAM, rows, (producer, n)) for n, rows in enumerate(events)]
        assert all(answer.is_success for answer in sent)
        return [answer.json()["position"] for answer in sent]

    first = answers(scene.active)
    for rows, position in zip(events, first, strict=True):
        scene.log.acked(rows[0]["id"], position["epoch"])
    assert not scene.passive.send(STREAM, events[0], (producer, 0)).is_success
    scene.active.kill_everything()
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
    assert answers(scene.passive) == first
    other = scene.passive.send(STREAM, [{"id": 0, "text": "other"}], (producer, 0))
    assert other.status_code == httpx.codes.CONFLICT


# -- planned ---------------------------------------------------------------------------------------


@row(CALM_SECONDS)
def switchover(scene: Scene) -> None:
    answer = scene.active.http.post("/v1/switchover")
    if answer.is_success:
        assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
