"""Producers that repeat requests, and clients that send too many or misbehave."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx

from ha_engine.config.ingest import DEFAULT_LISTEN
from tests.e2e.attacks import FULL, INGEST, QUICK, Attack, attack
from tests.faults.matrix.hosts import HostedNode, holds
from tests.faults.matrix.load import STREAM
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    HOST_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)


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


# -- load ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _keeping_the_lease(scene: Scene) -> Iterator[None]:
    """Require that neither the holder nor the epoch changes meanwhile."""
    query = "SELECT holder_node, holder_process, epoch FROM ha_engine.lease"
    before = scene.world.database.rows(query)
    yield
    assert scene.world.database.rows(query) == before, "the lease was lost to load"


def _flood(events_max: int, seconds: int, scene: Scene) -> None:
    """Always 200 requests wait, more than the node acks at a time."""
    name = f"flood-{scene.chance.randrange(1 << 30)}"
    first = scene.log.numbers(events_max)[0]
    command = [sys.executable, "-m", "tests.faults.matrix.flood", scene.active.url, name]
    command += map(str, (first, events_max, seconds))
    with _keeping_the_lease(scene):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    for line in done.stdout.splitlines():
        scene.log.told(name, **json.loads(line))


row(CALM_SECONDS, name="flood_of_requests")(partial(_flood, 10_000, 15))
row(CALM_SECONDS, name="flood_for_five_minutes")(partial(_flood, 1_000_000, 300))


@row(CALM_SECONDS)
def many_producers(scene: Scene) -> None:
    """Each request has a producer id of its own, and is repeated once."""
    with _keeping_the_lease(scene):
        for number in range(300):
            producer = f"one-of-many-{scene.chance.randrange(1 << 60)}-{'x' * 80}"
            event = scene.log.sent(producer)
            rows = [{"id": event, "text": producer}]
            answers = [scene.active.send(STREAM, rows, (producer, number)) for _ in range(2)]
            assert answers[0].json()["position"] == answers[1].json()["position"]
            scene.log.acked(event, answers[0].json()["position"]["epoch"])


SENDING = ("endless_streams", "many_producers")
"""Attacks with events that a node accepts, and that the checker would miss among the sent ones."""
ATTACKS = {one.name: one for one in (*QUICK, *FULL) if one.name not in SENDING}
ATTACK_SECONDS = 6.0


def _attack(against: Attack, scene: Scene) -> None:
    """The clients run on the node's own host, so that its peer does not suffer from the network."""
    node = scene.chance.choice((scene.active, scene.active, scene.passive))
    target = DEFAULT_LISTEN if against.name in INGEST else node.url.removeprefix("http://")
    with _keeping_the_lease(scene), attack(target, against, node.launcher):
        scene.last(ATTACK_SECONDS)


for name, against in ATTACKS.items():
    row(CALM_SECONDS, name=f"attack_by_{name}")(partial(_attack, against))
