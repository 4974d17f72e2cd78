"""The type of the answer to GET /v1/cluster."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from ha_engine.api.bodies import DeploymentBody, RoleName, RunningApplication
from ha_engine.web.route import described

RolloutState = Literal["moving", "waiting", "done"]


@described
class MemberBody(TypedDict):
    """A journal that the lease row lists as in sync."""

    node: str
    journal_id: str


@described
class LeaseBody(TypedDict):
    """The lease row."""

    group_id: str
    holder: str | None
    process: str | None
    epoch: int
    version: int
    in_sync: list[MemberBody]
    advertise: str | None
    """URL of the holder."""
    successor: str | None
    paused: bool
    system_identifier: str | None
    timeline: str | None


@described
class NodeJournal(TypedDict):
    """The journal of a node. The fields last, durable and committed are sequences."""

    id: str
    last: int
    durable: int
    committed: int


@described
class NodeQuery(TypedDict):
    """A query of a node. The fields mark, batch, published and differs are numbers of batches."""

    state: str
    mark: int
    batch: int
    """Newest batch in the node's outbox."""
    published: int
    """Newest batch that every sink has."""
    differs: int | None
    """First batch whose output differs from the active's."""


@described
class Rejoin(TypedDict):
    """The work that a node must still do before it may take over."""

    stage: str
    """'comparing', 'snapshot', 'journal', 'starting Spark', 'batches' or 'rebuild'."""
    records: int
    batches: int
    bytes: int
    """Bytes of a snapshot that the node must still download."""


@described
class ClusterNode(TypedDict):
    """A node of the group. While the node does not answer, all fields except answers, refused and
    unreachable are null."""

    answers: bool
    """Whether a report of the node arrived within the last seconds."""
    reported_seconds_ago: float | None
    url: str | None
    version: str | None
    """Version of the engine."""
    protocol_min: int | None
    """Oldest version of the sync protocol that the node speaks."""
    protocol_max: int | None
    """Newest version of the sync protocol that the node speaks."""
    application: RunningApplication | None
    executors_address: str | None
    """Address at which executors read the node's journal; empty if the node runs on no cluster."""
    role: RoleName | None
    reason: str | None
    epoch: int | None
    suspended: bool | None
    warm: bool | None
    disk_headroom_ok: bool | None
    """The node's disk has room for events."""
    in_sync: bool | None
    """The lease row lists the node's journal as in sync."""
    journal: NodeJournal | None
    lag_records: int | None
    """Records of the active that are not on the node's disk; null without an active."""
    queries: dict[str, NodeQuery] | None
    rejoin: Rejoin | None
    refused: str | None
    """Why the two nodes refuse each other."""
    unreachable: str | None
    """Why the answering node cannot reach this node."""


@described
class Rollout(TypedDict):
    """The newest deployment, and how far the nodes are with it."""

    deployment: DeploymentBody
    state: RolloutState
    """'moving' while nodes restart, 'waiting' if a node is missing for it or failover is paused,
    'done' once each node that answers runs it."""
    restarting: list[str]
    """Nodes that restart with it now, so they may not answer for some seconds."""
    progress: str
    """Which nodes run it and who waits for what, in words."""


@described
class Cluster(TypedDict):
    """The state of the group as one node sees it."""

    group: str
    node: str
    """The node that answers this request."""
    active: str | None
    backup: str | None
    """The node that is the group's backup, whatever its role is now."""
    protected: bool
    """A second member is in sync."""
    lease: LeaseBody | None
    rollout: Rollout | None
    """Null while nothing is deployed."""
    nodes: dict[str, ClusterNode]
    unknown_peers: dict[str, str]
    """Nodes that call but are not peers, each with the reason of its refusal."""
