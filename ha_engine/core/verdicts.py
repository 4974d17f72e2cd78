"""The verdicts: what an answer of the database or a message means for the role of the node.

``role_machine`` acts on the verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.core import actions as do


@dataclass(frozen=True, slots=True)
class Stop:
    """The node must stop: the database or a holder's journal has another history than its own
    journal."""

    reason: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """The epoch of this node is over: another node holds the lease, may acquire it, or received
    it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The node has nothing to do now.

    ``reason`` says what the node waits for, and the status shows it.
    """

    reason: str


Verdict = Stop | StepDown | Wait
Outcome = do.Action | Verdict
