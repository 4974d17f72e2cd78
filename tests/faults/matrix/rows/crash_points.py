"""Processes that die just before a system call: before and after each step that must last.

A step ends where the next one begins. So a kill before the fsync of a record is one after its
write, and a kill before the message to the peer is one after the fsync. The seed decides which of
the calls it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.faults.matrix.database import PORT as DATABASE_PORT
from tests.faults.matrix.hosts import HTTP_PORT, KILLED, SYNC_PORT, HostedNode, holds
from tests.faults.matrix.needs import SEGMENTS
from tests.faults.matrix.rows.network import both_ways
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    CRASH_SECONDS,
    HOST_SECONDS,
    SYNC_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)
from tests.faults.matrix.tracer import sockets, until_it_dies

Places = Callable[[HostedNode], tuple[str, ...]]
"""The files and sockets whose calls count, of a node. None means all."""


def anything(node: HostedNode) -> tuple[str, ...]:
    return ()


def journal(node: HostedNode) -> tuple[str, ...]:
    return (str(node.segments()[-1]),)


def connections(port: int) -> Places:
    return lambda node: sockets(node, port)


STEPS: dict[str, tuple[str, Places, int]] = {
    "writing_records": ("writev", journal, 30),
    "syncing_records": ("fdatasync", journal, 30),
    "a_message_to_its_peer": ("sendmsg", connections(SYNC_PORT), 60),
    "a_message_to_the_database": ("sendto", connections(DATABASE_PORT), 20),
    "an_answer_of_the_database": ("recvfrom", connections(DATABASE_PORT), 20),
    "renaming_a_file_of_the_outbox": ("rename", anything, 10),
}
"""By name: the system call, its files or sockets, and how many of the calls may come before."""
ACK = ("write", connections(HTTP_PORT), 60)


def kill_before(
    node: HostedNode,
    step: tuple[str, Places, int],
    scene: Scene,
    begin: Callable[[], object] = lambda: None,
) -> None:
    """Kill the node process at one of the next calls, which ``begin`` may cause, and require that
    this ended it."""
    call, places, most = step
    before = len(node.log_text())
    when = scene.chance.randrange(1, most)
    until_it_dies(node, f"{call}:signal=KILL:when={when}", paths=places(node), begin=begin)
    ended = holds(lambda: KILLED in node.log_text()[before:], TAKEOVER_SECONDS)
    assert ended, f"{node.name} did not die before {call}"


def _of_the_active(step: tuple[str, Places, int], scene: Scene) -> None:
    kill_before(scene.active, step, scene)


def _of_the_passive(step: tuple[str, Places, int], scene: Scene) -> None:
    kill_before(scene.passive, step, scene)


for step_name, calls in {**STEPS, "an_ack": ACK}.items():
    row(CRASH_SECONDS, name=f"kill_active_before_{step_name}")(partial(_of_the_active, calls))
for step_name, calls in STEPS.items():
    row(SYNC_SECONDS, name=f"kill_passive_before_{step_name}")(partial(_of_the_passive, calls))


@row(CALM_SECONDS)
def kill_active_query_before_an_outbox_file(scene: Scene) -> None:
    """The batch is partly written, or whole and not reported, or reported and not admitted."""
    when = scene.chance.randrange(1, 20)
    until_it_dies(scene.active, f"openat,fsync,rename:signal=KILL:when={when}", what="query")


@row(HOST_SECONDS + 8)
def kill_active_before_it_removes_the_passive(scene: Scene) -> None:
    """The lease row may list the passive still, which then must return before any ack."""
    scene.passive.kill_everything()
    scene.last(scene.chance.uniform(1.4, 2.0))
    kill_before(scene.active, ("sendto", connections(DATABASE_PORT), 8), scene)


@row(HOST_SECONDS + 8)
def kill_passive_in_its_promotion(scene: Scene) -> None:
    """The lease row may already name it as the holder."""
    scene.active.kill_everything()
    kill_before(scene.passive, ("sendto,fsync,fdatasync,rename", anything, 30), scene)


@row(SYNC_SECONDS, SEGMENTS)
def kill_passive_in_a_snapshot(scene: Scene) -> None:
    """A draft of a revision stays, and perhaps some of its chunks."""
    assert scene.active.http.post("/v1/snapshot").is_success
    kill_before(scene.passive, ("sendto", anything, 40), scene)


@row(HOST_SECONDS)
def kill_former_active_before_it_truncates(scene: Scene) -> None:
    """Its journal has records that no other node has, and it dies when it cuts them off."""
    scene.drop(*both_ways("{active}", "{passive}"), *both_ways("{active}", "{database}"))
    assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
    scene.world.lan.heal()
    kill_before(scene.active, ("ftruncate,truncate,fsync,rename", anything, 4), scene)
