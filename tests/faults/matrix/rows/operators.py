"""Operators who change the roles, or err."""

from __future__ import annotations

import signal

import yaml

from tests.faults.matrix.hosts import TTL_SECONDS, HostedNode, holds
from tests.faults.matrix.rows.snapshots import newest_revision
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    HOST_SECONDS,
    RESTART_SECONDS,
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


def _with_query(scene: Scene, **keys: str) -> str:
    """Return the application file with these keys of its query."""
    application = yaml.safe_load(scene.active.application_path.read_text())
    (query,) = application["queries"].values()
    query.update(keys)
    return yaml.safe_dump(application)


def _other_sql(scene: Scene) -> str:
    """Return another definition of the query, which yields the same rows."""
    return f"SELECT id, text FROM events WHERE id > -{scene.chance.randrange(1, 1 << 30)}"


def _deploy(node: HostedNode, application: str) -> None:
    """Give the node an application file, and restart its service."""
    node.application_path.write_text(application)
    node.kill_everything()
    node.start()


@row(2 * HOST_SECONDS)
def change_the_application_on_both_nodes(scene: Scene) -> None:
    """A node cannot follow while the other one has another application. After a change that keeps
    the state, one of them needs a snapshot."""
    on_change = scene.chance.choice(["keep", "reset", "backfill"])
    application = _with_query(scene, sql=_other_sql(scene), on_change=on_change)
    nodes = scene.chance.sample([scene.active, scene.passive], 2)
    for node in nodes:
        _deploy(node, application)
        scene.last(scene.chance.uniform(0.0, 2.0) * TTL_SECONDS)
    if on_change == "keep":
        _take_snapshot(scene)


def _take_snapshot(scene: Scene) -> None:
    """Ask the active for a snapshot, again while its query is not running yet."""
    former = newest_revision(scene)

    def is_there() -> bool:
        for node in scene.world.nodes:
            if node.is_active() and newest_revision(scene) == former:
                node.http.post("/v1/snapshot")
        return newest_revision(scene) != former

    assert holds(is_there, TAKEOVER_SECONDS, every=1.0), "no snapshot became visible"


@row(RESTART_SECONDS)
def change_the_application_and_take_it_back(scene: Scene) -> None:
    """The passive, which had ended, never gets the changed file. It receives the change and its
    withdrawal in the journal."""
    former = _with_query(scene, on_change="reset")
    scene.passive.kill_everything()
    scene.passive.application_path.write_text(former)
    assert holds(lambda: scene.active.is_active() and _is_alone(scene.active), TAKEOVER_SECONDS)
    _deploy(scene.active, _with_query(scene, sql=_other_sql(scene), on_change="reset"))
    assert holds(scene.active.is_active, TAKEOVER_SECONDS), "the only node is not active"
    scene.passive.start()
    scene.last(scene.chance.uniform(1.0, 3.0) * TTL_SECONDS)
    _deploy(scene.active, former)


def _is_alone(node: HostedNode) -> bool:
    status = node.status()
    return status is not None and not status["protected"]


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
