"""The decisions of a node, as a pure state machine.

    step(now, input) -> list of actions

``inputs`` says what can happen, ``actions`` what the node may be told to do, ``core`` how one leads
to the other. Its parts, each of which knows only those after it:

    life                       this node's role from start to stop: each transition
    tenure                     as the holder: records, commits, who is in sync, handover
      leading, progress        how far are the others, for whom does a commit wait
    following                  as a member that is not the holder
    querying                   its queries
      deployment, marks, uncut which run, from which records on; where each cuts its batches
      kept, skips              what the outbox has of each; which batches are given up
      process, queries         is it alive, and what happens when not
      digests                  what batches came to, here and on the holder
    lessee, lease              what to ask the database, what answers mean, when it may act
    own_journal                how far its journal is
    role, verdicts, messages   legal transitions; what an answer may come to; words between nodes

Nothing here reads a clock, opens a socket or a file, or draws a random number: time and outcomes
arrive as inputs, so every history can be replayed.
"""

from ha_engine.core.core import Core
from ha_engine.core.deployment import Deployment
from ha_engine.core.high_water import HighWater
from ha_engine.core.identity import Identity
from ha_engine.core.lease import LeaseTiming
from ha_engine.core.marks import MarkLimits
from ha_engine.core.own_journal import OwnJournal
from ha_engine.core.progress import PeerTiming
from ha_engine.core.queries import QueryPlan, QueryState, RestartPolicy

__all__ = [
    "Core",
    "Deployment",
    "HighWater",
    "Identity",
    "LeaseTiming",
    "MarkLimits",
    "OwnJournal",
    "PeerTiming",
    "QueryPlan",
    "QueryState",
    "RestartPolicy",
]
