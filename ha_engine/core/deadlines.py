"""The moments at which time alone changes a decision of the core.

Each class that compares ``now`` with a moment also has a ``wake_at``: the earliest moment at which
a Tick has an effect. ``wake_at`` is infinite while no Tick has an effect, and in the past while a
Tick has work at once.
"""

from __future__ import annotations

import math


def ahead(now: float, *moments: float) -> float:
    """The first of ``moments`` after ``now``, or infinity.

    An earlier step has acted on the moments up to ``now``.
    """
    return min((moment for moment in moments if moment > now), default=math.inf)
