"""Wait for conditions in the demo, and fail when the demo makes no progress.

The watch asks both nodes for their status at most twice a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ha_engine.demo.interrupts import Interrupts
from ha_engine.demo.movement import PATIENCE_SECONDS, Movement, Status, signs_of, waits_for
from ha_engine.demo.nodes import DemoNode, DemoPair
from ha_engine.demo.processes import cpu_of
from ha_engine.demo.traffic import Traffic
from ha_engine.errors import DemoStuck

LOOK_SECONDS = 0.5
"""The pause after each request for the nodes' status. A slow host answers late, so the demo asks a
slow host less often."""


class Watch:
    """Polls the nodes. ``latest`` has the newest status of each node, which the whole demo uses."""

    def __init__(
        self, pair: DemoPair, directory: Path, traffic: Traffic, interrupts: Interrupts
    ) -> None:
        self.pair, self.traffic = pair, traffic
        self.latest: dict[str, Status | None] = {node.name: None for node in pair.nodes}
        self.on_look: Callable[[], None] = lambda: None
        self.refusal = ""
        self._what = ""
        self._interrupts = interrupts
        self._movement = Movement(lambda: cpu_of(directory))

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for ``condition``.

        Raises DemoStuck when the demo makes no progress, EngineError when a node ends, and the
        error that ended the traffic.
        """
        self._what, self.refusal = what, ""
        while True:
            self._interrupts.require_none()
            self._look()
            if condition():
                break
            if self._movement.stopped:
                minutes = PATIENCE_SECONDS / 60
                raise DemoStuck(
                    f"no progress for {minutes:.0f} minutes; {self.waiting}; see {self._logs}"
                )
            self.on_look()
            time.sleep(LOOK_SECONDS)
        self._what = ""

    def _look(self) -> None:
        for node in self.pair.nodes:
            node.require_alive()
        self.traffic.require_well()
        self.latest = {node.name: node.status() for node in self.pair.nodes}
        signs = [signs_of(status) for status in self.latest.values()]
        self._movement.look((signs, self.traffic.sent))

    @property
    def waiting(self) -> str:
        """The present wait, the work of each node that is not ready, and the last refusal of a
        switchover."""
        if not self._what:
            return ""
        nodes = {name: waits_for(status) for name, status in self.latest.items()}
        doing = [f"{name}: {what}" for name, what in nodes.items() if what]
        return "; ".join(filter(None, (f"waiting for {self._what}", *doing, self.refusal)))

    @property
    def _logs(self) -> str:
        return " and ".join(str(node.log) for node in self.pair.nodes)

    # -- questions about the newest answers --------------------------------------------------------

    def active(self) -> DemoNode | None:
        for node in self.pair.nodes:
            status = self.latest[node.name]
            if status is not None and status["role"] == "active":
                return node
        return None

    def has_joined(self, node: DemoNode) -> bool:
        status = self.latest[node.name]
        return status is not None and status["role"] in ("passive", "active")

    def is_whole(self) -> bool:
        """Whether one node is active, the other in sync, and the queries of both are warm."""
        statuses = self.latest.values()
        roles = sorted(status["role"] if status else "" for status in statuses)
        return roles == ["active", "passive"] and all(
            status and status["warm"] for status in statuses
        )
