"""The verdicts: what an answer or a message means for the whole node.

``role_machine`` performs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.core import actions as do


@dataclass(frozen=True, slots=True)
class Stop:
    """The database or a holder's journal is of another history than this node's journal."""

    reason: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """This epoch is over: another node holds the lease, may acquire it, or received it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do now; ``reason`` is for status."""

    reason: str


Verdict = Stop | StepDown | Wait
Outcome = do.Action | Verdict
