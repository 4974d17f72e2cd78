"""Moments at which time alone changes a decision.

Each part that compares ``now`` with a moment of its own has a ``wake_at`` too: the earliest moment
at which a Tick has an effect. It is infinite while no Tick has one, and in the past while a Tick
has work at once.
"""

from __future__ import annotations

import math


def ahead(now: float, *moments: float) -> float:
    """The first of ``moments`` after ``now``; an earlier step has acted on the others."""
    return min((moment for moment in moments if moment > now), default=math.inf)
