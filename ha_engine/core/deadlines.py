"""Moments at which time alone changes a decision.

Each part that compares ``now`` with a moment of its own also answers ``wake_at``: the earliest
moment at which a Tick could do anything. It is infinite while no Tick could, and lies in the past
while a Tick has work to do at once.
"""

from __future__ import annotations

import math


def ahead(now: float, *moments: float) -> float:
    """The first of ``moments`` that is yet to come; each step has seen the others pass."""
    return min((moment for moment in moments if moment > now), default=math.inf)
