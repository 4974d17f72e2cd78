"""The decisions of a node, as a pure state machine.

    step(now, input) -> list of actions

``inputs`` says what can happen, ``actions`` what the node may be told to do, ``core`` how one leads
to the other. Its parts: ``role`` (who am I for my group), ``lease`` and ``lessee`` (when may I act,
what do I ask the database), ``leading`` and ``progress`` (how far are the others, for whom does a
commit wait), ``following`` (whom do I follow), ``messages`` (what nodes say to each other),
``deployment`` (which queries run, from which records on), ``marks`` and ``uncut`` (where does each
query cut its batches), ``queries`` and ``process`` (is it alive, and what happens when not).
Nothing here reads a clock, opens a socket or a file, or draws a random number: time and outcomes
arrive as inputs, so every history can be replayed.
"""

from ha_engine.core.core import Core, Identity
from ha_engine.core.deployment import Deployment, QueryPlan
from ha_engine.core.lease import HighWater, LeaseTiming
from ha_engine.core.marks import MarkLimits
from ha_engine.core.progress import PeerTiming
from ha_engine.core.queries import QueryState, RestartPolicy

__all__ = [
    "Core",
    "Deployment",
    "HighWater",
    "Identity",
    "LeaseTiming",
    "MarkLimits",
    "PeerTiming",
    "QueryPlan",
    "QueryState",
    "RestartPolicy",
]
