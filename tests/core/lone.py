"""A core without a world around it, which a test feeds by hand."""

from __future__ import annotations

from collections.abc import Iterable

from ha_engine.core import (
    Core,
    Deployment,
    HighWater,
    Identity,
    LeaseTiming,
    QueryPlan,
    RestartPolicy,
)
from ha_engine.core.marks import MarkLimits

TIMING = LeaseTiming(3.0, 0.8, 0.4)


def member_b(timing: LeaseTiming = TIMING, plans: Iterable[QueryPlan] = ()) -> Core:
    """The node b of a group that it knows."""
    identity = Identity("b", "p1", "jb", "group-1", "group-1")
    limits = MarkLimits(100, 0.0, 1.0, 3, 1000)
    return Core(
        identity, timing, HighWater(), Deployment("app", tuple(plans), limits, RestartPolicy())
    )
