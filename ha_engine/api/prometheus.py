"""Prometheus metrics of a node: its status at each scrape, and three histograms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from ha_engine.errors import Rejected
from ha_engine.receive.gate import MemoryCounters
from ha_engine.stats.latency import RecentLatency
from ha_engine.web.closed import Closed

_Definitions = Mapping[str, tuple[str, str]]
"""By metric: its place in the status, and its meaning."""
_Values = Mapping[tuple[str, ...], Mapping[str, Any]]
"""By values of the labels: the part of the status about them."""

ROLE_CODES = {
    "starting": 0,
    "joining": 1,
    "passive": 2,
    "promoting": 3,
    "active": 4,
    "demoting": 5,
    "stopped": 6,
    "backup": 7,
}
"""The numbers never change, because dashboards and alerts compare with them."""
STATE_CODES = {"waiting": 0, "running": 1, "failed": 2, "standby": 3}
SOURCE_CODES = {
    "stopped": 0,
    "idle": 1,
    "reading": 2,
    "paused": 3,
    "late": 4,
    "unavailable": 5,
    "refused": 6,
}

_ACK_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_DATABASE_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_BATCH_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)

_FLAGS = {
    "suspended": "1 while this node is active without authority to act.",
    "in_sync": "1 while the last read lease row lists this node's journal as in sync.",
    "warm": "1 while the queries run, have caught up, and no batch has differed.",
    "protected": "1 while a second member is in sync.",
    "disk_headroom_ok": (
        "1 while the disk has journal.min_free left and the journal is below its max_size."
    ),
    "disk_late": "1 while the disk has not answered for some seconds.",
}
_NODE_GAUGES = {
    "journal_last_sequence": ("journal", "last_sequence", "Newest record in the journal."),
    "journal_durable_sequence": ("journal", "durable_sequence", "Newest record on disk."),
    "journal_committed_sequence": ("journal", "committed_sequence", "Newest committed record."),
    "journal_pending_bytes": (
        "journal",
        "pending_bytes",
        "Bytes of the journal that are not on disk yet.",
    ),
    "receive_backlog_events": ("receive", "backlog_events", "Events that are in no batch yet."),
    "receive_pending_bytes": (
        "receive",
        "pending_bytes",
        "Bytes of bodies that are being read, and of events that wait for their commit.",
    ),
    "receive_pending_acks": (
        "receive",
        "pending_acks",
        "Records with events that wait for their commit.",
    ),
    "http_connections": ("receive", "connections", "Open HTTP connections."),
    "failover_paused": (
        "lease",
        "paused",
        "1 while failover is paused in the last read lease row.",
    ),
    "mark_polls_pending": ("query_process", "polls_pending", "Queries that wait for a mark."),
    "outage_seconds": (
        "counts",
        "outage_seconds",
        "Seconds without an active before this node last became active, or NaN if it never did.",
    ),
}
_EXECUTOR_GAUGES = {
    "executors": ("live", "Executors that the node's driver has; missing without a cluster."),
    "executors_wanted": ("wanted", "Executors in execution.executors; missing without a cluster."),
    "master_connected": (
        "master_connected",
        "1 while a master answers and knows the node's driver; missing without a cluster.",
    ),
}
_NODE_COUNTERS = {
    "events_accepted": ("accepted_events", "Events stored."),
    "events_duplicate": (
        "duplicate_events",
        "Events in repeated requests, which the node does not store again.",
    ),
    "events_forwarded": (
        "forwarded_events",
        "Events of requests that this node forwarded to the active, which has them.",
    ),
}
_COUNTS = {
    "digest_mismatches": "Batches whose output differed from the active's.",
    "database_failures": "Calls on the lease row that failed or were late.",
    "peer_rollbacks": "Times that the journal of a peer had lost records that it had acked.",
    "orphaned_query_processes": ("Query processes that called this node, which does not run them."),
    "executor_bytes": "Bytes of the journal that executors of a cluster read from this node.",
}
_SNAPSHOT_GAUGES = {
    "age_seconds": (
        "age_seconds",
        "Seconds since the newest snapshot became visible; NaN without one.",
    ),
    "bytes": ("bytes_total", "Size of the newest snapshot; NaN without one."),
    "new_bytes": (
        "bytes_new",
        "Bytes of the newest snapshot that the database did not have before; NaN without one.",
    ),
    "revisions": ("revisions", "Snapshots in the database."),
    "seconds": ("seconds", "Duration of the newest snapshot that this node took."),
}
_SNAPSHOT_COUNTERS = {
    "taken": "Snapshots that this node took.",
    "failed": "Snapshots that this node could not take.",
    "skipped": "Snapshots that a restore of this node, or of one query's state, could not use.",
}
_PEER_GAUGES = {
    "peer_connected": ("connected", "1 while a link to the peer is open."),
    "peer_lag_records": (
        "lag_records",
        "Records that are not on the peer's disk; on the active only.",
    ),
    "peer_lag_events": (
        "lag_events",
        "Events of the last half hour that are not on the peer's disk, rounded up; on the active "
        "only.",
    ),
    "peer_lag_seconds": (
        "lag_seconds",
        "Age of the oldest event that is not on the peer's disk, half an hour at most; on the "
        "active only.",
    ),
    "sync_in_flight_bytes": ("in_flight_bytes", "Bytes sent to the peer and not acked."),
}
_PEER_COUNTERS = {
    "sync_sent_bytes": ("bytes_sent", "Bytes sent to the peer."),
    "sync_received_bytes": ("bytes_received", "Bytes received from the peer."),
}
_QUERY_GAUGES = {
    "query_batch": ("batch", "Newest batch whose output is in the outbox."),
    "query_mark": ("mark", "Newest mark in the journal."),
    "query_backlog_events": ("backlog_events", "Events that are in no batch of the query yet."),
    "query_lag_seconds": (
        "lag_seconds",
        "Age of the oldest event whose output is not in the outbox, half an hour at most.",
    ),
    "query_mark_age_seconds": (
        "mark_age_seconds",
        "Seconds since the newest mark; missing while this process has seen no mark.",
    ),
    "query_state_rows": ("state_rows", "Rows in Spark's state."),
    "query_state_bytes": ("state_bytes", "Memory of Spark's state, in bytes."),
    "query_state_partitions": (
        "state_partitions",
        "Partitions of Spark's state in the newest batch; 0 if the query has no state.",
    ),
    "query_skew": (
        "skew",
        "Rows of the busiest partition of Spark's state in a recent batch, divided by the mean.",
    ),
    "query_differing_batch": (
        "differs",
        "First batch whose output differs from the active's; 0 without one.",
    ),
    "query_late_rows": ("late_rows", "Late rows that the newest batch dropped."),
    "outbox_batches": ("outbox_batches", "Admitted batches that not every sink has."),
    "outbox_bytes": ("outbox_bytes", "Bytes of the admitted batches that not every sink has."),
}
_SOURCE_COUNTERS = {
    "source_rows": ("rows", "All rows of the source that the journal ever contained."),
    "source_rejected": ("rejected", "All rows of the source that became dead letters."),
    "source_failures": ("failures", "Failed attempts to read the source."),
}
_SOURCE_GAUGES = {
    "source_state": ("state", "State of the source, as a stable code."),
    "source_backlog_events": (
        "backlog_events",
        "Unread events of the source, if the source reports them; on the active only.",
    ),
    "source_backlog_seconds": (
        "backlog_seconds",
        "Age of the next unread event of the source, if the source reports it; on the active only.",
    ),
    "source_backlog_bytes": (
        "backlog_bytes",
        "Unread bytes of the source, if the source reports them; on the active only.",
    ),
}
_LOG_GAUGES = {
    "log_headroom_events": (
        "headroom_events",
        "Records of Kafka that may be deleted before one that this node may still need; negative "
        "if such a record is gone.",
    ),
    "log_retained_events": ("retained_events", "All records of Kafka in the same partition."),
}
_QUERY_COUNTERS = {
    "query_dropped_rows": ("dropped_rows", "Late rows that all batches dropped."),
    "query_invalid_records": (
        "invalid_records",
        "Records of Kafka that batches skipped as no events of their stream.",
    ),
    "query_restarts": ("restarts", "Restarts of the query after a failure."),
    "poisoned_batches": ("poisoned_batches", "Batches at which the query became FAILED."),
}


class GateCounters(MemoryCounters):
    """The counters of the gate for events, with the latency of acks."""

    def __init__(self, ack_seconds: Histogram) -> None:
        super().__init__()
        self._ack_seconds = ack_seconds
        self.acks = RecentLatency()

    def accepted(self, stream: str, rows: int, seconds: float) -> None:
        super().accepted(stream, rows, seconds)
        self._ack_seconds.observe(seconds)
        self.acks.observe(seconds)


class NodeMetrics:
    """The metrics of one node process, which calls ``status`` at each scrape."""

    def __init__(self, group: str, node: str, status: Callable[[], Mapping[str, Any]]) -> None:
        self._labels = {"group": group, "node": node}
        self._status = status
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ack = Histogram(
            "ha_engine_ack_seconds",
            "Time from a request's validated events to their commit.",
            list(self._labels),
            buckets=_ACK_BUCKETS,
            registry=self.registry,
        )
        self.gate = GateCounters(ack.labels(**self._labels))
        self._batch = Histogram(
            "ha_engine_batch_seconds",
            "Duration of a micro-batch, measured by Spark.",
            [*self._labels, "query"],
            buckets=_BATCH_BUCKETS,
            registry=self.registry,
        )
        database = Histogram(
            "ha_engine_database_seconds",
            "Time from a call on the lease row to its answer or deadline.",
            list(self._labels),
            buckets=_DATABASE_BUCKETS,
            registry=self.registry,
        )
        self.database = database.labels(**self._labels)

    def observe_batch(self, query: str, seconds: float) -> None:
        self._batch.labels(**self._labels, query=query).observe(seconds)

    def exposition(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield InfoMetricFamily(
            "ha_engine_build",
            "Version of the node.",
            value={**self._labels, "version": status["version"]},
        )
        yield self._gauge("role", "Role of the node, as a stable code.", ROLE_CODES[status["role"]])
        yield self._gauge("epoch", "Epoch under which the node acts.", status["epoch"])
        yield self._authority(status["lease"]["authority_seconds"])
        for name, text in _FLAGS.items():
            yield self._gauge(name, text, status[name])
        for name, (section, key, text) in _NODE_GAUGES.items():
            yield self._gauge(name, text, _number(status[section][key]))
        for name, (key, text) in _NODE_COUNTERS.items():
            yield self._counter(name, text, status["receive"][key])
        for name, text in _COUNTS.items():
            yield self._counter(name, text, status["counts"][name])
        executors = status["query_process"]["executors"]
        yield from self._gauges((), _EXECUTOR_GAUGES, {(): executors} if executors else {})
        yield from self._snapshots(status["snapshot"])
        yield from self._reasons(status["receive"])
        yield self._role_changes(status["counts"]["role_changes"])
        yield from self._peers(status["peers"])
        yield from self._sources(status["sources"])
        logs: _Values = {(stream,): values for stream, values in status["logs"].items()}
        yield from self._gauges(("stream",), _LOG_GAUGES, logs)
        yield from self._queries(status["queries"])

    def _snapshots(self, snapshots: dict[str, Any]) -> Iterator[Metric]:
        figures = snapshots | (snapshots["newest"] or {})
        for name, (key, text) in _SNAPSHOT_GAUGES.items():
            value = figures.get(key)
            yield self._gauge(f"snapshot_{name}", text, _number(value))
        restored = snapshots["restored"] or {"seconds": math.nan, "skipped": ()}
        text = "Duration of the restore on which this node's data is based; NaN without one."
        yield self._gauge("snapshot_restore_seconds", text, restored["seconds"])
        text = "Newer snapshots that the restore on which this node's data is based could not use."
        yield self._gauge("snapshot_restore_skipped", text, len(restored["skipped"]))
        for key, text in _SNAPSHOT_COUNTERS.items():
            yield self._counter(f"snapshots_{key}", text, snapshots[key])

    def _authority(self, seconds: float | None) -> GaugeMetricFamily:
        text = "Seconds of authority left; +Inf while no other node can acquire, 0 when not active."
        return self._gauge("authority_seconds", text, math.inf if seconds is None else seconds)

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(f"ha_engine_{name}", text, labels=list(self._labels))
        gauge.add_metric(list(self._labels.values()), value)
        return gauge

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        counter = CounterMetricFamily(f"ha_engine_{name}", text, labels=list(self._labels))
        counter.add_metric(list(self._labels.values()), value)
        return counter

    def _role_changes(self, changes: list[dict[str, Any]]) -> CounterMetricFamily:
        labels = [*self._labels, "role", "reason"]
        counter = CounterMetricFamily(
            "ha_engine_role_changes",
            "Changes of the node's role, by new role and reason.",
            labels=labels,
        )
        for change in changes:
            own = [*self._labels.values(), change["role"], change["reason"]]
            counter.add_metric(own, change["times"])
        return counter

    def _peers(self, peers: dict[str, Any]) -> Iterator[Metric]:
        labelled: _Values = {(peer,): values for peer, values in peers.items()}
        yield from self._gauges(("peer",), _PEER_GAUGES, labelled)
        yield from self._counters(("peer",), _PEER_COUNTERS, labelled)

    def _gauges(
        self, by: tuple[str, ...], definitions: _Definitions, labelled: _Values
    ) -> Iterator[Metric]:
        """Yield a gauge for each metric in ``definitions``, with a sample for each value except
        None."""
        for name, (key, text) in definitions.items():
            gauge = GaugeMetricFamily(f"ha_engine_{name}", text, labels=[*self._labels, *by])
            for which, values in labelled.items():
                if values[key] is not None:
                    gauge.add_metric([*self._labels.values(), *which], values[key])
            yield gauge

    def _counters(
        self, by: tuple[str, ...], definitions: _Definitions, labelled: _Values
    ) -> Iterator[Metric]:
        for name, (key, text) in definitions.items():
            counter = CounterMetricFamily(f"ha_engine_{name}", text, labels=[*self._labels, *by])
            for which, values in labelled.items():
                counter.add_metric([*self._labels.values(), *which], values[key])
            yield counter

    def _sources(self, streams: dict[str, Any]) -> Iterator[Metric]:
        labelled: _Values = {
            (stream, source): {**values, "state": SOURCE_CODES[values["state"]]}
            for stream, sources in streams.items()
            for source, values in sources.items()
        }
        yield from self._counters(("stream", "source"), _SOURCE_COUNTERS, labelled)
        yield from self._gauges(("stream", "source"), _SOURCE_GAUGES, labelled)

    def _reasons(self, receive: dict[str, Any]) -> Iterator[Metric]:
        """Yield the counters by reason. Prometheus sees no increase in the first value of a series,
        so the series of each reason begins at 0."""
        refused = dict.fromkeys(refusals(), 0) | receive["rejected_requests"]
        yield self._by_reason("requests_rejected", "Refused requests.", refused)
        closed = dict.fromkeys(Closed, 0) | receive["closed_connections"]
        text = "Connections and gRPC streams that the node closed because of their clients."
        yield self._by_reason("connections_closed", text, closed)

    def _by_reason(self, name: str, text: str, reasons: dict[str, int]) -> CounterMetricFamily:
        labels = [*self._labels, "reason"]
        counter = CounterMetricFamily(f"ha_engine_{name}", text, labels=labels)
        for reason, count in reasons.items():
            counter.add_metric([*self._labels.values(), reason], count)
        return counter

    def _sinks(self, queries: dict[str, Any]) -> Iterator[Metric]:
        labels = [*self._labels, "query", "sink"]
        published = GaugeMetricFamily(
            "ha_engine_published_batch", "Newest batch in the sink.", labels=labels
        )
        put_aside = CounterMetricFamily(
            "ha_engine_dead_letters", "Rows that the sink will never take.", labels=labels
        )
        for query, values in queries.items():
            own = [*self._labels.values(), query]
            for sink, batch in values["published"].items():
                published.add_metric([*own, sink], batch)
            for sink, status in values["sinks"].items():
                put_aside.add_metric([*own, sink], status["dead_letters"])
        yield from (published, put_aside)

    def _queries(self, queries: dict[str, Any]) -> Iterator[Metric]:
        labels = [*self._labels, "query"]
        state = GaugeMetricFamily(
            "ha_engine_query_state", "0 waiting, 1 running, 2 failed, 3 standby.", labels=labels
        )
        for query, values in queries.items():
            state.add_metric([*self._labels.values(), query], STATE_CODES[values["state"]])
        yield state
        yield from self._sinks(queries)
        labelled: _Values = {
            (query,): {**values, "differs": values["differs"] or 0}
            for query, values in queries.items()
        }
        yield from self._gauges(("query",), _QUERY_GAUGES, labelled)
        yield from self._counters(("query",), _QUERY_COUNTERS, labelled)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def refusals(kind: type[Rejected] = Rejected) -> Iterator[str]:
    """Yield the name of each reason for which a request is refused."""
    for refusal in kind.__subclasses__():
        yield refusal.__name__
        yield from refusals(refusal)
