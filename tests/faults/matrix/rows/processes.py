"""Processes that die, pause or get too little CPU."""

from __future__ import annotations

import contextlib
import math
import signal
import time

import httpx

from tests.faults.matrix.cgroups import limited_cpu, limited_memory
from tests.faults.matrix.hosts import KILLED, TTL_SECONDS, HostedNode, holds
from tests.faults.matrix.load import STREAM
from tests.faults.matrix.needs import SPARK
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    CRASH_SECONDS,
    HOST_SECONDS,
    SYNC_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)


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


@row(SYNC_SECONDS, SPARK)
def kill_passive_jvm(scene: Scene) -> None:
    scene.passive.kill("jvm")


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


@row(math.inf)
def two_elections_without_an_event(scene: Scene) -> None:
    """The journals differ by epochs alone. No ack is promised, since nobody sends."""
    scene.log.quiet.set()
    scene.world.undo.append(scene.log.quiet.clear)
    for node, successor in ((scene.active, scene.passive), (scene.passive, scene.active)):
        node.kill_everything()
        assert holds(successor.is_active, TAKEOVER_SECONDS)
        node.start()
        scene.world.whole()


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


@row(SYNC_SECONDS)
def passive_with_a_tenth_of_a_core(scene: Scene) -> None:
    pids = [process.pid for process in scene.passive.tree()]
    with limited_cpu(pids, 0.1):
        scene.last(4 * TTL_SECONDS)


LITTLE_BYTES = 1 << 20
LARGE_BODY = b" " * (8 << 20)


def _out_of_memory(node: HostedNode) -> None:
    """Let the kernel kill the node process when it takes more memory, as for large requests."""
    pid = node.pid_of("node")
    assert pid is not None
    seen = len(node.log_text())
    with limited_memory(pid, LITTLE_BYTES):

        def is_killed() -> bool:
            with contextlib.suppress(httpx.TransportError):
                node.post(STREAM, LARGE_BODY, "application/json")
            return node.pid_of("node") != pid

        assert holds(is_killed, TAKEOVER_SECONDS), f"{node.name} was not killed"
    assert holds(lambda: KILLED in node.log_text()[seen:], TAKEOVER_SECONDS)


@row(CRASH_SECONDS)
def active_runs_out_of_memory(scene: Scene) -> None:
    _out_of_memory(scene.active)


@row(SYNC_SECONDS)
def passive_runs_out_of_memory(scene: Scene) -> None:
    _out_of_memory(scene.passive)
