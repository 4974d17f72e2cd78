"""Operators who change the roles."""

from __future__ import annotations

from tests.faults.matrix.hosts import holds
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)


@row(CALM_SECONDS)
def switchover(scene: Scene) -> None:
    answer = scene.active.http.post("/v1/switchover")
    if answer.is_success:
        assert holds(scene.passive.is_active, TAKEOVER_SECONDS)
