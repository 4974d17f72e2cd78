"""The type of the answer to GET /v1/status."""

from __future__ import annotations

from typing_extensions import TypedDict

from ha_engine.api.bodies import RoleName, RunningApplication, SnapshotBody
from ha_engine.web.route import described


@described
class ConfigStatus(TypedDict):
    """The result of the last reload of the config."""

    reloaded_at: str | None
    """ISO 8601; null before the first SIGHUP."""
    problems: list[str]
    """Why the new config, or a part of it, is not in use."""
    needs_restart: list[str]
    """Keys whose value in the files differs from the one in this process."""


@described
class LeaseStatus(TypedDict):
    """The lease row that this node read last, and the node's authority under that row."""

    holder: str | None
    epoch: int | None
    version: int | None
    in_sync: list[str]
    """Nodes whose journal the row lists as in sync."""
    paused: bool
    authority_seconds: float | None
    """Seconds of authority left; null while no other node can acquire."""
    alone: bool
    """Whether this node is confirmed as the only member in sync."""
    takeover_seconds: float | None
    """Seconds that the row must stay unchanged before this node may acquire; null while it may
    not."""
    database_answers: bool
    """False after a failed or late call, until the database answers one."""


@described
class PeerStatus(TypedDict):
    """Another node. Values that only the active knows are null on other nodes."""

    connected: bool
    stage: str | None
    """'probe' while the journals are compared, 'replicate' while records flow."""
    durable_sequence: int | None
    lag_records: int | None
    lag_events: int | None
    """Events of the last half hour that are not on the peer's disk, rounded up."""
    lag_seconds: float | None
    """Age of the oldest of these events."""
    in_flight_bytes: int
    """Bytes that this node has sent and the peer has not acked."""
    warm: bool | None
    disk_headroom_ok: bool | None
    refused: str | None
    """Why the two nodes refuse each other, or why this node cannot reach the peer."""
    bytes_sent: int
    bytes_received: int


@described
class RoleChange(TypedDict):
    """The number of times that the node took a role for one reason. The page docs/METRICS.md lists
    the roles and reasons."""

    role: RoleName
    reason: str
    times: int


@described
class Counts(TypedDict):
    """Totals since the node process started."""

    role_changes: list[RoleChange]
    digest_mismatches: int
    database_failures: int
    peer_rollbacks: int
    """Times that the journal of a peer had lost records that it had acked."""
    orphaned_query_processes: int
    """Query processes that called this node, which does not run them."""
    executor_bytes: int
    """Bytes of the journal that executors of a cluster read from this node."""
    outage_seconds: float | None
    """How long no node was active before this node last became active."""


@described
class JournalStatus(TypedDict):
    """The journal on this node's disk."""

    id: str
    last: str
    """Position of the newest record: epoch.sequence."""
    base_sequence: int
    """Everything up to this sequence was trimmed."""
    last_sequence: int
    durable_sequence: int
    committed_sequence: int
    pending_bytes: int
    """Bytes that wait to become durable."""


@described
class AckLatency(TypedDict):
    """The latency of acks in the last five to ten seconds. An ack's latency is the time from the
    validation of events to their commit, in milliseconds."""

    p50: float
    p99: float


@described
class ReceiveStatus(TypedDict):
    """Requests of producers since the node process started."""

    accepted_events: int
    duplicate_events: int
    forwarded_events: int
    rejected_requests: dict[str, int]
    """Number of rejected requests by reason."""
    connections: int
    """Open HTTP connections."""
    closed_connections: dict[str, int]
    """Number of connections and gRPC streams that the node closed because of their clients, by
    reason."""
    backlog_events: int
    """Events that are in no batch yet."""
    pending_bytes: int
    """Bytes of bodies that are being read, and of events that wait for their commit."""
    pending_acks: int
    """Records with events that wait for their commit."""
    ack_ms: AckLatency | None
    """Null if no request was acked in that time."""


@described
class LogBody(TypedDict):
    """The room in the topic of a stream, until retention deletes what this node may still need."""

    partition: int
    """The partition in which least of what Kafka has may be deleted."""
    headroom_events: int
    """Offsets from its first record to the first needed one; negative if needed ones are gone."""
    retained_events: int
    """Offsets of all its records."""


class SourceBody(TypedDict):
    """One source of a stream. The fields rows, rejected and batches also count what the journal has
    trimmed."""

    type: str
    state: str
    """'stopped' on a node that is not active; else the present state of reading."""
    offset: str | None
    """Where the source continues, in its own format; null before its first batch."""
    rows: int
    rejected: int
    batches: int
    backlog_events: int | None
    """Unread events of the source; null if the source does not report them."""
    backlog_bytes: int | None
    """Unread bytes of the source; null if the source does not report them."""
    backlog_seconds: float | None
    """Age of the next unread event; null if the source does not report it."""
    error: str | None
    since: float
    """Unix time of the last change of state."""
    failures: int
    """Failed attempts to read it since the node process started."""
    dead_letters: str
    """Directory of the rows that this node rejected."""


@described
class ExecutorsBody(TypedDict):
    """The executors of this node's driver on a Spark cluster."""

    application: str
    """Id of the application at the master, YARN or Kubernetes."""
    live: int
    wanted: int
    """The number in execution.executors."""
    master_connected: bool
    """A master, on YARN the ApplicationMaster, answers and knows the application. Without one the
    queries run on, but no executor starts. Always true on Kubernetes."""


@described
class QueryProcessStatus(TypedDict):
    """The query process, which runs Spark."""

    incarnation: str | None
    connected: bool
    """Whether the process has reported to the node."""
    step: str | None
    """Current step, such as "starting Java" or "ready"; null before the first report."""
    step_seconds: float | None
    """Seconds since the step began."""
    starts: int
    """Starts of a query process that this node process has requested."""
    last_death: str | None
    """Why the last query process ended."""
    polls_pending: int
    """Queries that wait for a mark."""
    executors: ExecutorsBody | None
    """Null on no cluster, and before the query process has reported."""


@described
class SinkBody(TypedDict):
    """One sink of a query."""

    state: str
    published_through: int | None
    """Newest batch that the sink has."""
    backlog: int
    """Batches in the outbox that the sink lacks."""
    error: str | None
    since: float
    """Unix time of the last change of state."""
    dead_letters: int
    """Rows that the sink will never take."""


@described
class QueryStatus(TypedDict):
    """One query. Each batch is identified by its number."""

    state: str
    """'waiting', 'running', 'failed', or 'standby' while only the active runs the query."""
    reason: str | None
    """Why the query has failed."""
    failed_batch: int | None
    restarts: int
    poisoned_batches: int
    """Batches at which the query failed, since the node process started."""
    mark: int
    """Newest batch that a mark has ended."""
    mark_age_seconds: float | None
    """Seconds since that mark; null if this process has seen no mark."""
    batch: int
    """Newest batch whose output is in the outbox."""
    published: dict[str, int]
    """Newest published batch by sink, according to the journal."""
    settled: bool
    """Every sink has all output of the events so far, and only new events produce more. Exact on
    the active only: a passive does not count ticks."""
    differs: int | None
    """First batch whose output differs from the active's."""
    backlog_events: int
    lag_seconds: float
    """Seconds since the oldest event whose output is not in the outbox; half an hour at most."""
    outbox_batches: int
    outbox_bytes: int
    batch_rows: int
    batch_duration_ms: int
    watermark: str | None
    late_rows: int
    """Late rows that the newest batch dropped."""
    dropped_rows: int
    """Late rows that all batches dropped since the node process started."""
    invalid_records: int
    """Records of streams with a log that batches skipped since the node process started."""
    invalid_at: str | None
    """First place and reason in the newest batch that skipped such records."""
    state_rows: int
    state_bytes: int
    state_partitions: int
    """Partitions of the state in the newest batch; 0 if the query has no state."""
    skew: float | None
    """Rows of the busiest partition of the state in a recent batch, divided by the mean of all."""
    sinks: dict[str, SinkBody]


@described
class ShadowBody(TypedDict):
    """The shadow that runs beside a query."""

    name: str
    query: str
    state: str
    """'waiting', 'running' or 'failed'."""
    reason: str | None
    """Why the shadow failed."""
    batch: int
    """Newest batch whose output is in the shadow's outbox."""
    behind_batches: int
    """Batches that the live query has on this node and the shadow lacks."""
    behind_events: int
    outbox_batches: int
    outbox_bytes: int
    state_rows: int
    state_bytes: int


@described
class Status(TypedDict):
    """The status of a node, as the node itself sees it."""

    group: str
    node: str
    version: str
    """Version of the engine."""
    protocol_min: int
    """Oldest version of the sync protocol that the node speaks."""
    protocol_max: int
    """Newest version of the sync protocol that the node speaks."""
    application: RunningApplication
    role: RoleName
    reason: str
    """Why the node has its role, or waits for another."""
    epoch: int
    suspended: bool
    """The node's authority is over: it does not ack, mark or publish."""
    protected: bool
    """A second member is in sync."""
    in_sync: bool
    warm: bool
    """The queries run and have caught up, and no batch has differed."""
    disk_headroom_ok: bool
    """The disk has room for events."""
    disk_late: bool
    """The disk has not answered for some seconds, so the node can neither ack nor take over."""
    active: str | None
    """URL of the active, where known."""
    handover_to: str | None
    uptime_seconds: float
    config: ConfigStatus
    lease: LeaseStatus
    peers: dict[str, PeerStatus]
    unknown_peers: dict[str, str]
    """Nodes that call but are not peers, each with the reason of its refusal."""
    counts: Counts
    journal: JournalStatus
    snapshot: SnapshotBody
    receive: ReceiveStatus
    sources: dict[str, dict[str, SourceBody]]
    """Sources by stream and name."""
    logs: dict[str, LogBody]
    """Topics by the stream whose log they are, if Kafka has records that this node may need."""
    query_process: QueryProcessStatus
    queries: dict[str, QueryStatus]
    shadow: ShadowBody | None
    """The shadow on this node, or null without one."""
