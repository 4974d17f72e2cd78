"""The scene of a fault, the bounds that are promised, and the table of the rows.

A fault is a function of one ``Scene``. It returns when the fault has lasted long enough; then
``World.heal`` ends it, and starts what has ended. Each row says how long no event may be acked, and
whether the pair needs an operator to become whole again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.matrix.hosts import TTL_SECONDS, HostedNode
from tests.faults.matrix.load import Log
from tests.faults.matrix.world import World

CRASH_SECONDS = 1.0
"""The promise for a process that dies while its supervisor lives."""
HOST_SECONDS = TTL_SECONDS + 1.0
"""The promise for a host that is lost or cut off."""
SYNC_SECONDS = 2.0 + 0.5
"""The promise for a passive that is lost: ``event_sync.sync_timeout``, and half a second."""
RESTART_SECONDS = 2 * HOST_SECONDS + 8.0
"""The promise while an operator restarts the only node twice, which reads its journal each time."""
CALM_SECONDS = 1.0
"""The promise for a fault that stops no ack."""
TAKEOVER_SECONDS = 30.0
"""The limit of a wait for what must happen at once or in a ttl, on a slow host too."""


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
