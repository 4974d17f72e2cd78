"""The decisions of a node, as a pure state machine.

    step(now, input) -> list of actions

``inputs`` lists what can happen, and ``actions`` what the node may have to do. ``core`` decides
which actions follow from an input. ``invariants`` checks the state of all modules after each step.
Each module imports only modules of its own row and of lower rows of this table:

    core                    one input at a time; questions that change nothing
    role_machine            the role of this node from start to stop
    term                    one epoch as the active: records, commits, in-sync, handover
    forced_failover         a failover that an operator forces
    follower                a member that is not the active
    snapshots               when the active has a snapshot taken, and at which sequence
    replication, progress   how far the other members are, and which ones a commit waits for
    rollout                 how the group moves to a deployed application
    query_control, barrier  the queries of this node
    retention               which records the journal may trim
    journal_state, base     how far this journal is, and the state that trimmed records left
    deployment, versions    which queries run, from which definition and which records on
    shadow                  the shadow of a query: a changed version that runs beside it
    marks, pace, pending_events
                            where each batch of a query ends, when, from which events
    outbox_usage, skips, digests
                            the outbox, batches that an operator skipped, digests of batches
    process, queries        the query process and each query: alive, failed, started again
    lease_client, lease     what to ask the database, what answers mean, when this node may act
    verdicts, inputs, actions, messages
                            what an answer may lead to; inputs, actions; messages between nodes
    high_water, identity    what the disk and the config say about this node
    role, deadlines         legal transitions; moments at which time alone decides

No module of the core reads a clock, opens a socket or a file, or draws a random number. Time and
the outcomes of actions arrive as inputs, so every history can be replayed.
"""

from ha_engine.core.core import Core
from ha_engine.core.deployment import Deployment
from ha_engine.core.high_water import HighWater
from ha_engine.core.identity import NodeIdentity
from ha_engine.core.journal_state import JournalState
from ha_engine.core.lease import LeaseTiming
from ha_engine.core.marks import MarkLimits
from ha_engine.core.progress import PeerTiming
from ha_engine.core.queries import QueryPlan, QueryState, RestartPolicy
from ha_engine.core.shadow import ShadowLimits

__all__ = [
    "Core",
    "Deployment",
    "HighWater",
    "JournalState",
    "LeaseTiming",
    "MarkLimits",
    "NodeIdentity",
    "PeerTiming",
    "QueryPlan",
    "QueryState",
    "RestartPolicy",
    "ShadowLimits",
]
