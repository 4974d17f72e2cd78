"""The status of a node as plain values: the one source of /v1/status, /metrics and the CLI."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ha_engine import __version__
from ha_engine.api.cluster import Neighbours, strangers
from ha_engine.api.snapshot import Archive, snapshot_tree
from ha_engine.core import Core
from ha_engine.core.lease import Lease
from ha_engine.core.marks import QueryMarks
from ha_engine.core.queries import QueryLife
from ha_engine.latency import RecentLatency
from ha_engine.publish import SinkStatus
from ha_engine.receive.pull.puller import SourceStatus
from ha_engine.tally import Tally


class GateCounts(Protocol):
    """Totals of the receive stage since the process started."""

    rows_accepted: int
    rows_duplicate: int
    requests_rejected: dict[str, int]
    acks: RecentLatency


class Traffic(Protocol):
    """Totals of one link since the process started."""

    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...


class Links(Neighbours, Protocol):
    """The stage between nodes, with what went over it."""

    def traffic(self) -> Mapping[str, Traffic]: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """Spark's word on the newest batch of a query. Times in milliseconds, sizes in bytes."""

    batch: int = 0
    input_rows: int = 0
    duration_ms: int = 0
    watermark: str = ""
    dropped_by_watermark: int = 0
    state_rows: int = 0
    state_bytes: int = 0


def status_of(
    core: Core,
    group: str,
    gate: GateCounts,
    sinks: Sequence[SinkStatus],
    sources: Sequence[SourceStatus],
    progress: Mapping[str, Progress],
    links: Links,
    tally: Tally,
    archive: Archive,
    started_at: float,
    now: float,
) -> dict[str, Any]:
    """The body of GET /v1/status, ``now`` on the core's clock: it may have stood still since.

    Counts are since the process started, times in the unit that their name ends in. Where a name
    does not say it all:

    - ``lease``: ``authority_seconds`` is how long this node may act without another renewal, null
      while nobody else can acquire; ``takeover_seconds`` how long the row must still stand still
      before this node may acquire, null while it may not; ``database_answers`` is false from a
      call that failed or was late until one is answered;
    - ``receive.ack_ms``: ``p50`` and ``p99``, from a request's validated events to their commit,
      of the last five to ten seconds; null without a request in that time.
    """
    handover, process = core.tenure and core.tenure.handover, core.querying.process
    authority = core.authority_seconds(now)
    return {
        "group": group,
        "node": core.identity.node,
        "version": __version__,
        "role": core.role.value,
        "why": core.why,
        "epoch": core.epoch,
        "suspended": core.suspended(now),
        "protected": core.lease.protected,
        "in_sync": core.lease.row is not None and core.lease.member in core.lease.row.in_sync,
        "warm": core.warm,
        "room": core.following.room,
        "active": core.lease.active_url,
        "handover_to": handover.to if handover else None,
        "uptime_seconds": round(time.monotonic() - started_at, 1),
        "lease": _lease(core.lease, authority, now),
        "peers": {name: _peer(name, core, links) for name in links.names()},
        "strangers": strangers(links),
        "counts": _counts(tally),
        "journal": _journal(core),
        "snapshot": snapshot_tree(core, archive),
        "receive": _receive(gate, core),
        "sources": _sources(sources),
        "query_process": {
            "incarnation": process.incarnation,
            "attended": process.attended,
            "last_death": process.last_death,
        },
        "queries": {
            name: _query(marks, core.deployment.lives[name], progress.get(name, Progress()))
            | {"sinks": {sink.sink: _sink(sink) for sink in sinks if sink.query == name}}
            for name, marks in core.deployment.marks.items()
        },
    }


def _journal(core: Core) -> dict[str, Any]:
    return {
        "id": core.identity.journal_id,
        "last": str(core.journal.last),
        "base_sequence": core.journal.base.sequence,
        "last_sequence": core.journal.last.sequence,
        "durable_sequence": core.journal.durable,
        "committed_sequence": core.journal.committed,
    }


def _counts(tally: Tally) -> dict[str, Any]:
    return {
        "role_changes": [
            {"role": role, "reason": reason, "times": times}
            for (role, reason), times in sorted(tally.role_changes.items())
        ],
        "digest_mismatches": tally.digest_mismatches,
        "database_failures": tally.database_failures,
    }


def _receive(gate: GateCounts, core: Core) -> dict[str, Any]:
    return {
        "accepted_events": gate.rows_accepted,
        "duplicate_events": gate.rows_duplicate,
        "rejected_requests": dict(gate.requests_rejected),
        "backlog_events": core.deployment.backlog_events(),
        "ack_ms": _ack_ms(gate.acks),
    }


def _ack_ms(acks: RecentLatency) -> dict[str, float] | None:
    quantiles = acks.quantiles(0.5, 0.99)
    if quantiles is None:
        return None
    return {name: round(1000 * s, 2) for name, s in zip(("p50", "p99"), quantiles, strict=True)}


def _peer(name: str, core: Core, links: Links) -> dict[str, Any]:
    """Match, lag, warm and room are known on the holder alone."""
    peer = core.tenure.leading.peers.get(name) if core.tenure else None
    traffic = links.traffic()[name]
    known = peer is not None and peer.connected
    return {
        "connected": name in core.life.connected,
        "stage": peer.stage.value if peer and known else None,
        "durable_sequence": peer.match if peer and known else None,
        "lag_records": core.journal.last.sequence - peer.match if peer and known else None,
        "warm": peer.warm if peer and known else None,
        "room": peer.room if peer and known else None,
        "refused": links.refusals().get(name) or links.unreachable().get(name),
        "bytes_sent": traffic.bytes_sent,
        "bytes_received": traffic.bytes_received,
    }


def _lease(lease: Lease, authority: float, now: float) -> dict[str, Any]:
    row, takeover_at = lease.row, lease.takeover_at
    takeover = None if takeover_at is None or lease.mine else max(0.0, takeover_at - now)
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


def _query(marks: QueryMarks, life: QueryLife, progress: Progress) -> dict[str, Any]:
    batches, size = marks.outbox_backlog
    failure = life.failure
    return {
        "state": life.state.value,
        "reason": failure.reason if failure else None,
        "failed_batch": failure.number if failure else None,
        "restarts": life.restarts,
        "mark": marks.last.number,
        "batch": marks.admitted,
        "published": dict(marks.published),
        "backlog_events": marks.events_uncut,
        "outbox_batches": batches,
        "outbox_bytes": size,
        "batch_rows": progress.input_rows,
        "batch_duration_ms": progress.duration_ms,
        "watermark": progress.watermark or None,
        "dropped_by_watermark": progress.dropped_by_watermark,
        "state_rows": progress.state_rows,
        "state_bytes": progress.state_bytes,
    }


def _sources(sources: Sequence[SourceStatus]) -> dict[str, dict[str, Any]]:
    """By stream and name; rows, rejected and batches are all that the journal ever had."""
    found: dict[str, dict[str, Any]] = {}
    for one in sources:
        found.setdefault(one.stream, {})[one.source] = {
            "type": one.type,
            "state": one.state.value,
            **asdict(one.known),
            "backlog_bytes": one.backlog,
            "error": one.error,
            "since": one.since,
            "failures": one.failures,
            "dead_letters": str(one.dead_letters),
        }
    return found


def _sink(sink: SinkStatus) -> dict[str, Any]:
    return {
        "state": sink.state.value,
        "published_through": sink.published_through,
        "backlog": sink.backlog,
        "error": sink.error,
        "since": sink.since,
        "dead_letters": sink.dead_letters,
    }
