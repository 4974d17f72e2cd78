"""The status of a node as plain values: the only source of /v1/status, /metrics and the CLI.

For facts that the node also reports to its peers, the status uses the node's report. So the web
pages of all nodes show the same facts about a node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ha_engine.api.cluster import Neighbours, unknown_peers
from ha_engine.api.rollout import running_application
from ha_engine.api.snapshot import SnapshotState, snapshot_tree
from ha_engine.api.status_body import (
    AckLatency,
    ConfigStatus,
    Counts,
    ExecutorsBody,
    JournalStatus,
    LeaseStatus,
    LogBody,
    PeerStatus,
    QueryProcessStatus,
    QueryStatus,
    ReceiveStatus,
    ShadowBody,
    SinkBody,
    SourceBody,
    Status,
)
from ha_engine.config.reload import Reloaded
from ha_engine.core import Core, QueryState
from ha_engine.core.marks import QueryMarks
from ha_engine.core.process import QueryProcessState
from ha_engine.publish import SinkStatus
from ha_engine.receive.pull.puller import SourceStatus
from ha_engine.stats.counters import NodeCounters
from ha_engine.stats.lag import Arrivals
from ha_engine.stats.latency import RecentLatency
from ha_engine.sync import QueryReport, Report
from ha_engine.types import LogHeadroom


class GateCounts(Protocol):
    """Totals of the receive stage since the node process started."""

    rows_accepted: int
    rows_duplicate: int
    rows_forwarded: int
    requests_rejected: dict[str, int]
    acks: RecentLatency


class Traffic(Protocol):
    """Bytes that this node exchanged with one peer since the node process started."""

    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...


class Links(Neighbours, Protocol):
    """The links of the sync stage, with the bytes that they transferred."""

    def traffic(self) -> Mapping[str, Traffic]: ...
    def in_flight(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """Spark's figures of the newest batch of a query. Durations are in milliseconds, and sizes are
    in bytes."""

    batch: int = 0
    input_rows: int = 0
    duration_ms: int = 0
    watermark: str = ""
    late_rows: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    dropped_rows: int = 0
    invalid_records: int = 0
    invalid_at: str = ""
    state_partitions: int = 0
    skew: float = 0.0


@dataclass(frozen=True, slots=True)
class StartStep:
    """The last step in the start of the query process ``incarnation``. The step began at the time
    ``at`` of the boot clock."""

    incarnation: str
    name: str
    at: float


@dataclass(frozen=True, slots=True)
class Executors:
    """The executors that the query process ``incarnation`` has on a cluster, with the id of its
    application at the master."""

    incarnation: str
    application: str
    live: int
    wanted: int
    master_connected: bool


@dataclass(frozen=True, slots=True)
class Queues:
    """The present lengths of the node's queues."""

    receive_bytes: int = 0
    acks: int = 0
    journal_bytes: int = 0
    mark_polls: int = 0
    connections: int = 0


@dataclass(frozen=True, slots=True)
class Stages:
    """The figures of a node's stages at one moment. The dict ``progress`` has the figures of each
    query's newest batch."""

    gate: GateCounts
    sinks: Sequence[SinkStatus]
    sources: Sequence[SourceStatus]
    logs: Mapping[str, LogHeadroom]
    progress: Mapping[str, Progress]
    step: StartStep | None
    executors: Executors | None
    links: Links
    counters: NodeCounters
    snapshots: SnapshotState
    arrivals: Arrivals
    queues: Queues
    closed_connections: Mapping[str, int]
    disk_late: bool
    reloaded: Reloaded
    uptime_seconds: float


@dataclass(frozen=True, slots=True)
class _Ages:
    """The ages of events and marks at the time ``now``, in seconds."""

    arrivals: Arrivals
    now: float

    def behind(self, sequence: int, streams: Iterable[str] = ()) -> float:
        return round(self.arrivals.seconds_behind(self.now, sequence, streams), 2)

    def of_mark(self, query: str) -> float | None:
        seconds = self.arrivals.seconds_since_mark(self.now, query)
        return None if seconds is None else round(seconds, 2)

    def of_query(self, marks: QueryMarks) -> float:
        """The lag of a query in seconds. Empty batches and the events of other queries do not add
        to the lag."""
        if not marks.events_pending and marks.in_flight is None:
            return 0.0
        done = min(max(marks.admitted, marks.kept_after.number), marks.last.number)
        return self.behind(marks.mark_at(done).through, marks.streams)


_DISK_LATE = "the disk does not answer; if it stays so, the node process ends"


def status_of(core: Core, group: str, report: Report, stages: Stages, now: float) -> Status:
    """The body of GET /v1/status. The time ``now`` of the core's clock may be later than the core's
    last step."""
    handover = core.term and core.term.handover
    authority, ages = core.authority_seconds(now), _Ages(stages.arrivals, now)
    hello = stages.links.hellos()[core.identity.node]
    return {
        "group": group,
        "node": core.identity.node,
        "version": hello.engine,
        "protocol_min": hello.protocol_min,
        "protocol_max": hello.protocol_max,
        "application": running_application(core, hello),
        "role": report.role,
        "reason": _DISK_LATE if stages.disk_late else report.reason,
        "epoch": report.epoch,
        "suspended": report.suspended,
        "protected": core.lease.protected,
        "in_sync": core.lease.row is not None and core.lease.member in core.lease.row.in_sync,
        "warm": report.warm,
        "disk_headroom_ok": report.headroom,
        "disk_late": stages.disk_late,
        "active": core.lease.active_url,
        "handover_to": handover.to if handover else None,
        "uptime_seconds": round(stages.uptime_seconds, 1),
        "config": _config(stages.reloaded),
        "lease": _lease(core, authority, now),
        "peers": {name: _peer(name, core, stages.links, ages) for name in stages.links.names()},
        "unknown_peers": unknown_peers(stages.links),
        "counts": _counts(stages.counters),
        "journal": _journal(core, report, stages.queues),
        "snapshot": snapshot_tree(core, stages.snapshots),
        "receive": _receive(stages, core),
        "sources": _sources(stages.sources),
        "logs": {name: _log(one) for name, one in stages.logs.items()},
        "query_process": _process(core.query_control.process, stages, now),
        "queries": {one.query: _query(one, core, stages, ages) for one in report.queries},
        "shadow": _shadow(core, stages),
    }


def _shadow(core: Core, stages: Stages) -> ShadowBody | None:
    shadow = core.deployment.shadow
    if shadow is None:
        return None
    failure, (batches, size) = shadow.life.failure, shadow.kept
    progress = stages.progress.get(shadow.name, Progress())
    return {
        "name": shadow.name,
        "query": shadow.record.query,
        "state": shadow.life.state.value,
        "reason": failure.reason if failure else None,
        "batch": shadow.admitted,
        "behind_batches": shadow.behind,
        "behind_events": shadow.behind_events,
        "outbox_batches": batches,
        "outbox_bytes": size,
        "state_rows": progress.state_rows,
        "state_bytes": progress.state_bytes,
    }


def _config(reloaded: Reloaded) -> ConfigStatus:
    return {
        "reloaded_at": reloaded.at,
        "problems": list(reloaded.problems),
        "needs_restart": list(reloaded.needs_restart),
    }


def _process(process: QueryProcessState, stages: Stages, now: float) -> QueryProcessStatus:
    step = stages.step
    known = step is not None and step.incarnation == process.incarnation
    return {
        "incarnation": process.incarnation,
        "connected": process.connected,
        "step": step.name if step and known else None,
        "step_seconds": round(now - step.at, 1) if step and known else None,
        "starts": process.starts,
        "last_death": process.last_death,
        "polls_pending": stages.queues.mark_polls,
        "executors": _executors(process, stages.executors),
    }


def _executors(process: QueryProcessState, found: Executors | None) -> ExecutorsBody | None:
    """The executors of the present query process. Those of an earlier one are of no driver."""
    if found is None or found.incarnation != process.incarnation:
        return None
    return {
        "application": found.application,
        "live": found.live,
        "wanted": found.wanted,
        "master_connected": found.master_connected,
    }


def _journal(core: Core, report: Report, queues: Queues) -> JournalStatus:
    return {
        "id": report.journal_id,
        "last": str(core.journal.last),
        "base_sequence": core.journal.base.sequence,
        "last_sequence": report.last,
        "durable_sequence": report.durable,
        "committed_sequence": report.committed,
        "pending_bytes": queues.journal_bytes,
    }


def _counts(counters: NodeCounters) -> Counts:
    return {
        "role_changes": [
            {"role": role, "reason": reason, "times": times}
            for (role, reason), times in sorted(counters.role_changes.items())
        ],
        "digest_mismatches": counters.digest_mismatches,
        "database_failures": counters.database_failures,
        "peer_rollbacks": counters.peer_rollbacks,
        "orphaned_query_processes": counters.orphans,
        "executor_bytes": counters.executor_bytes,
        "outage_seconds": counters.outage_seconds,
    }


def _receive(stages: Stages, core: Core) -> ReceiveStatus:
    gate, queues = stages.gate, stages.queues
    return {
        "accepted_events": gate.rows_accepted,
        "duplicate_events": gate.rows_duplicate,
        "forwarded_events": gate.rows_forwarded,
        "rejected_requests": dict(gate.requests_rejected),
        "connections": queues.connections,
        "closed_connections": dict(stages.closed_connections),
        "backlog_events": core.deployment.backlog_events(),
        "pending_bytes": queues.receive_bytes,
        "pending_acks": queues.acks,
        "ack_ms": _ack_ms(gate.acks),
    }


def _ack_ms(acks: RecentLatency) -> AckLatency | None:
    quantiles = acks.quantiles(0.5, 0.99)
    if quantiles is None:
        return None
    p50, p99 = (round(1000 * seconds, 2) for seconds in quantiles)
    return {"p50": p50, "p99": p99}


def _peer(name: str, core: Core, links: Links, ages: _Ages) -> PeerStatus:
    """The status of a peer. Only the active knows which records the peer has on disk."""
    peer = core.term.replication.peers.get(name) if core.term else None
    traffic = links.traffic()[name]
    known = peer is not None and peer.connected
    return {
        "connected": name in core.role_machine.connected,
        "stage": peer.stage.value if peer and known else None,
        "durable_sequence": peer.acked_through if peer and known else None,
        "lag_records": core.journal.last.sequence - peer.acked_through if peer and known else None,
        "lag_events": ages.arrivals.events_behind(peer.acked_through) if peer and known else None,
        "lag_seconds": ages.behind(peer.acked_through) if peer and known else None,
        "in_flight_bytes": links.in_flight().get(name, 0),
        "warm": peer.warm if peer and known else None,
        "disk_headroom_ok": peer.headroom if peer and known else None,
        "refused": links.refusals().get(name) or links.unreachable().get(name),
        "bytes_sent": traffic.bytes_sent,
        "bytes_received": traffic.bytes_received,
    }


def _lease(core: Core, authority: float, now: float) -> LeaseStatus:
    lease = core.lease
    row, takeover_at = lease.row, lease.takeover_at
    if lease.lacks_committed(core.journal.last):
        takeover_at = None
    takeover = None if takeover_at is None or lease.is_holder else max(0.0, takeover_at - now)
    return {
        "holder": row.holder.node if row and row.holder else None,
        "epoch": row.epoch if row else None,
        "version": row.version if row else None,
        "in_sync": [member.node for member in row.in_sync] if row else [],
        "paused": row.paused if row else False,
        "authority_seconds": None if math.isinf(authority) else round(authority, 3),
        "alone": lease.alone,
        "takeover_seconds": None if takeover is None else round(takeover, 3),
        "database_answers": not lease.failing,
    }


def _query(report: QueryReport, core: Core, stages: Stages, ages: _Ages) -> QueryStatus:
    marks, life = core.deployment.marks[report.query], core.deployment.lives[report.query]
    progress = stages.progress.get(report.query, Progress())
    batches, size = marks.outbox.backlog
    failure = life.failure
    return {
        "state": report.state,
        "reason": failure.reason if failure else None,
        "failed_batch": failure.number if failure else None,
        "restarts": life.restarts,
        "poisoned_batches": life.poisoned,
        "mark": report.mark,
        "mark_age_seconds": ages.of_mark(marks.query),
        "batch": report.batch,
        "published": dict(marks.published),
        "settled": marks.settled,
        "differs": report.differs or None,
        "backlog_events": marks.events_pending,
        "lag_seconds": 0.0 if life.state is QueryState.STANDBY else ages.of_query(marks),
        "outbox_batches": batches,
        "outbox_bytes": size,
        "batch_rows": progress.input_rows,
        "batch_duration_ms": progress.duration_ms,
        "watermark": progress.watermark or None,
        "late_rows": progress.late_rows,
        "dropped_rows": progress.dropped_rows,
        "invalid_records": progress.invalid_records,
        "invalid_at": progress.invalid_at or None,
        "state_rows": progress.state_rows,
        "state_bytes": progress.state_bytes,
        "state_partitions": progress.state_partitions,
        "skew": progress.skew or None,
        "sinks": {sink.sink: _sink(sink) for sink in stages.sinks if sink.query == report.query},
    }


def _sources(sources: Sequence[SourceStatus]) -> dict[str, dict[str, SourceBody]]:
    """The status of each source, by stream and by the source's name."""
    found: dict[str, dict[str, SourceBody]] = {}
    for one in sources:
        found.setdefault(one.stream, {})[one.source] = _source(one)
    return found


def _log(headroom: LogHeadroom) -> LogBody:
    return {
        "partition": headroom.partition,
        "headroom_events": headroom.events,
        "retained_events": headroom.retained,
    }


def _source(source: SourceStatus) -> SourceBody:
    known = source.known
    return {
        "type": source.type,
        "state": source.state.value,
        "offset": known.offset,
        "rows": known.rows,
        "rejected": known.rejected,
        "batches": known.batches,
        "backlog_events": source.backlog.events,
        "backlog_bytes": source.backlog.bytes,
        "backlog_seconds": source.backlog.seconds,
        "error": source.error,
        "since": source.since,
        "failures": source.failures,
        "dead_letters": str(source.dead_letters),
    }


def _sink(sink: SinkStatus) -> SinkBody:
    return {
        "state": sink.state.value,
        "published_through": sink.published_through,
        "backlog": sink.backlog,
        "error": sink.error,
        "since": sink.since,
        "dead_letters": sink.dead_letters,
    }
