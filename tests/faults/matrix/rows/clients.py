"""Producers that repeat requests."""

from __future__ import annotations

from typing import Any

import httpx

from tests.faults.matrix.hosts import HostedNode, holds
from tests.faults.matrix.load import STREAM
from tests.faults.matrix.scene import (
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
