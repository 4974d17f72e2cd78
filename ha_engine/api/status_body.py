"""The type of GET /v1/status."""

from __future__ import annotations

from typing_extensions import TypedDict

from ha_engine.api.bodies import RoleName, SnapshotBody
from ha_engine.web.route import described


@described
class ConfigStatus(TypedDict):
    """How the config was last read again."""

    reloaded_at: str | None
    """ISO 8601; null before the first SIGHUP."""
    problems: list[str]
    """Why nothing of it was taken."""
    needs_restart: list[str]
    """Keys that are otherwise in the files than this process has them."""


@described
class LeaseStatus(TypedDict):
    """The lease row as it was read last, and what this node may do under it."""

    holder: str | None
    epoch: int | None
    version: int | None
    in_sync: list[str]
    """Nodes whose journal is listed as in sync."""
    paused: bool
    authority_seconds: float | None
    """Until safe_until; null while nobody else can acquire."""
    alone: bool
    """Whether it is confirmed as the only member in sync."""
    takeover_seconds: float | None
    """How long the row must still stand still before this node may acquire; null while it may
    not."""
    database_answers: bool
    """False from a call that failed or was late until one is answered."""


@described
class PeerStatus(TypedDict):
    """Another node; what only the active knows is null elsewhere."""

    connected: bool
    stage: str | None
    """'probe' while the journals are compared, 'replicate' while records flow."""
    durable_sequence: int | None
    lag_records: int | None
    lag_events: int | None
    """Events that came and are not on its disk, rounded up; of the last half hour."""
    lag_seconds: float | None
    """How long ago the oldest of them came."""
    in_flight_bytes: int
    """Sent, and not confirmed by its disk."""
    warm: bool | None
    disk_headroom_ok: bool | None
    refused: str | None
    """Why the two do not work together, or why it cannot be dialled."""
    bytes_sent: int
    bytes_received: int


@described
class RoleChange(TypedDict):
    """How often a role was taken for one reason; docs/METRICS.md lists both."""

    role: RoleName
    reason: str
    times: int


@described
class Counts(TypedDict):
    """Totals since the node process started."""

    role_changes: list[RoleChange]
    digest_mismatches: int
    database_failures: int
    orphaned_query_processes: int
    """That called and are not the one this node runs."""
    outage_seconds: float | None
    """How long nobody was active before this node, when it last became it."""


@described
class JournalStatus(TypedDict):
    """The journal on this node's disk."""

    id: str
    last: str
    """Position of the newest record: epoch.sequence."""
    base_sequence: int
    """Everything through it was trimmed."""
    last_sequence: int
    durable_sequence: int
    committed_sequence: int
    pending_bytes: int
    """Written, and not on disk yet."""


@described
class AckLatency(TypedDict):
    """Milliseconds from a request's validated events to their commit, in the last five to ten
    seconds."""

    p50: float
    p99: float


@described
class ReceiveStatus(TypedDict):
    """What producers sent since the node process started."""

    accepted_events: int
    duplicate_events: int
    rejected_requests: dict[str, int]
    """By reason."""
    backlog_events: int
    """Events that no batch has taken in yet."""
    pending_bytes: int
    """Of bodies that are read, and of events that wait for their commit."""
    pending_acks: int
    """Records with events that wait for their commit."""
    ack_ms: AckLatency | None
    """Null without a request in that time."""


@described
class SourceBody(TypedDict):
    """One source of a stream. Rows, rejected and batches are all that the journal ever had."""

    type: str
    state: str
    """'stopped' wherever the node is not active; else what it is at."""
    offset: str | None
    """Where it goes on, in the source's own words; null before its first batch."""
    rows: int
    rejected: int
    batches: int
    backlog_bytes: int | None
    """What the source knows to wait; null when it does not know."""
    error: str | None
    since: float
    """Unix time of the last change of state."""
    failures: int
    """Attempts to read it that failed, since the node process started."""
    dead_letters: str
    """Where this node keeps the rows that it rejected."""


@described
class QueryProcessStatus(TypedDict):
    """The process with Spark in it."""

    incarnation: str | None
    attended: bool
    """Whether it has reported for work."""
    step: str | None
    """What it does now, such as "starting Java" or "ready"; null until it says so."""
    step_seconds: float | None
    """Since when, in seconds before now."""
    starts: int
    """Query processes that this node process has asked for."""
    last_death: str | None
    """The reason for which the last one ended."""
    polls_pending: int
    """Queries that wait for a mark."""


@described
class SinkBody(TypedDict):
    """One sink of a query."""

    state: str
    published_through: int | None
    """Newest batch that it has."""
    backlog: int
    """Batches in the outbox that it lacks."""
    error: str | None
    since: float
    """Unix time of the last change of state."""
    dead_letters: int
    """Rows that it will never take."""


@described
class QueryStatus(TypedDict):
    """One query; its batches are numbered."""

    state: str
    """'waiting', 'running' or 'failed'."""
    reason: str | None
    """Why it has failed."""
    failed_batch: int | None
    restarts: int
    poisoned_batches: int
    """At which it became failed, since the node process started."""
    mark: int
    """Newest batch that is cut."""
    mark_age_seconds: float | None
    """Since then; null while this process has seen none."""
    batch: int
    """Newest batch whose output is in the outbox."""
    published: dict[str, int]
    """Newest batch by sink, as the journal has it."""
    settled: bool
    """Everything that the events so far yield is in every sink; only new ones bring more. True of
    the active: a passive does not count the batches that only time brings."""
    differs: int | None
    """The first batch that came out differently from the active's."""
    backlog_events: int
    lag_seconds: float
    """Since the oldest event came whose output is not in the outbox; half an hour at most."""
    outbox_batches: int
    outbox_bytes: int
    batch_rows: int
    batch_duration_ms: int
    watermark: str | None
    late_rows: int
    """Rows too late, in the newest batch."""
    dropped_rows: int
    """The same, in all batches that Spark told of since the node process started."""
    state_rows: int
    state_bytes: int
    sinks: dict[str, SinkBody]


@described
class Status(TypedDict):
    """A node as it sees itself."""

    group: str
    node: str
    version: str
    role: RoleName
    why: str
    """Why it has this role, or waits for another."""
    epoch: int
    suspended: bool
    """Past safe_until: no acks, no output."""
    protected: bool
    """A second member is in sync."""
    in_sync: bool
    warm: bool
    """The queries run, are caught up, and no batch has differed."""
    disk_headroom_ok: bool
    """The disk takes events."""
    active: str | None
    """URL of the active, where known."""
    handover_to: str | None
    uptime_seconds: float
    config: ConfigStatus
    lease: LeaseStatus
    peers: dict[str, PeerStatus]
    strangers: dict[str, str]
    """Nodes that call and are none of the peers, each with why it is refused."""
    counts: Counts
    journal: JournalStatus
    snapshot: SnapshotBody
    receive: ReceiveStatus
    sources: dict[str, dict[str, SourceBody]]
    """By stream and name."""
    query_process: QueryProcessStatus
    queries: dict[str, QueryStatus]
