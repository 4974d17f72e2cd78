"""A core, or the deployment of one, without a world around it, which a test feeds by hand."""

from __future__ import annotations

from collections.abc import Iterable

from ha_engine.core import (
    Core,
    Deployment,
    HighWater,
    LeaseTiming,
    NodeIdentity,
    QueryPlan,
    RestartPolicy,
)
from ha_engine.core.marks import MarkLimits
from ha_engine.types import Body, Position, Record

LIMITS = MarkLimits(1000, 0.0, 0.5, 64, 1 << 20)
TIMING = LeaseTiming(3.0, 0.8, 0.4)


def member_b(
    timing: LeaseTiming = TIMING, plans: Iterable[QueryPlan] = (), archive: str | None = None
) -> Core:
    """Return the core of node b, which knows its group."""
    identity = NodeIdentity("b", "p1", "jb", "group-1", "group-1")
    limits = MarkLimits(100, 0.0, 1.0, 3, 1000)
    deployment = Deployment("app", tuple(plans), limits, RestartPolicy(), archive)
    return Core(identity, timing, HighWater(), deployment)


def take(deployment: Deployment, bodies: Iterable[Body], first: int = 1, mine: bool = True) -> int:
    """Take records numbered from ``first`` on; return the sequence of the last."""
    sequence = first - 1
    for sequence, body in enumerate(bodies, first):
        deployment.apply(Record(Position(1, sequence), 0, body), mine=mine)
    return sequence
