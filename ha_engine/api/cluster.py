"""The group as one node sees it, from its own report, its peers' last reports and the lease row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from ha_engine.api.cluster_body import Cluster, ClusterNode, LeaseBody, NodeQuery, Rejoin
from ha_engine.api.rollout import rollout_of, running_application
from ha_engine.core import Core, QueryState
from ha_engine.sync import Hello, QueryReport, Report
from ha_engine.types import LeaseRow, Member

SILENT_SECONDS = 3.5
"""A peer reports each second. After three missing reports it does not answer, linked or not."""
_ACTING = ("active", "promoting")


class Neighbours(Protocol):
    """The stage between nodes."""

    def names(self) -> list[str]: ...
    def hellos(self) -> Mapping[str, Hello]: ...
    def reports(self) -> Mapping[str, tuple[float, Report]]: ...
    def refusals(self) -> Mapping[str, str]: ...
    def unreachable(self) -> Mapping[str, str]: ...
    def silent_seconds(self) -> Mapping[str, float]: ...


def report_of(
    core: Core, now: float, to_restore: int, ingest: str = "", ranges: str = ""
) -> Report:
    """This node's report for its peers and its own status, at the time ``now`` of the core's clock.

    ``to_restore`` is the number of bytes of a snapshot that the node must still download.
    ``ingest`` is the gRPC address for producers. ``ranges`` is the one for executors.
    """
    return Report(
        role=core.role.value,
        reason=core.reason,
        epoch=core.epoch,
        url=core.identity.advertise or "",
        journal_id=core.identity.journal_id,
        last=core.journal.last.sequence,
        durable=core.journal.durable,
        committed=core.journal.committed,
        suspended=core.suspended(now),
        warm=core.warm,
        headroom=core.follower.headroom,
        follows=core.follower.epoch > 0,
        query_process_connected=core.query_control.process.connected,
        queries=tuple(
            QueryReport(
                name,
                core.deployment.lives[name].state.value,
                marks.last.number,
                marks.admitted,
                marks.published_through,
                core.query_control.digests.differing.get(name, 0),
            )
            for name, marks in core.deployment.marks.items()
        ),
        to_restore=to_restore,
        ingest=ingest,
        ranges=ranges,
        shadow=_shadow(core),
    )


def _shadow(core: Core) -> QueryReport | None:
    shadow = core.deployment.shadow
    if shadow is None:
        return None
    live = core.deployment.marks[shadow.record.query]
    state = shadow.life.state.value
    return QueryReport(shadow.name, state, live.admitted, shadow.admitted, live.published_through)


def cluster_of(core: Core, group: str, report: Report, links: Neighbours) -> Cluster:
    """The body of GET /v1/cluster, from this node's ``report``, its peers' reports and the lease
    row."""
    row, recent, hellos = core.lease.row, _recent_reports(core, report, links), links.hellos()
    active = _active(recent)
    holds = recent[active][1] if active else None
    names = sorted([core.identity.node, *links.names()])
    nodes = {name: _node(core, recent.get(name), hellos.get(name), holds) for name in names}
    for name in links.names():
        nodes[name]["refused"] = links.refusals().get(name)
        nodes[name]["unreachable"] = links.unreachable().get(name)
    return {
        "group": group,
        "node": core.identity.node,
        "active": active,
        "backup": core.identity.backup,
        "protected": core.lease.protected,
        "lease": None if row is None else _lease(row),
        "rollout": rollout_of(core, nodes, active, links.silent_seconds()),
        "nodes": nodes,
        "unknown_peers": unknown_peers(links),
    }


def unknown_peers(links: Neighbours) -> dict[str, str]:
    """The nodes that this node refused and that are not its peers, with the reasons."""
    return {name: reason for name, reason in links.refusals().items() if name not in links.names()}


def _recent_reports(core: Core, mine: Report, links: Neighbours) -> dict[str, tuple[float, Report]]:
    """The recent report of each node, with its age in seconds. The holder of the lease adds each
    peer's newest ack."""
    fresh = {
        name: (age, _as_the_holder_knows(core, name, report))
        for name, (age, report) in links.reports().items()
        if age < SILENT_SECONDS
    }
    return {**fresh, core.identity.node: (0.0, mine)}


def _as_the_holder_knows(core: Core, name: str, report: Report) -> Report:
    """Update a peer's report with the peer's acks, which the holder of the lease received later."""
    peer = core.term.replication.peers.get(name) if core.term else None
    if peer is None or peer.journal_id != report.journal_id:
        return report
    durable = max(report.durable, peer.acked_through)
    return replace(report, durable=durable, headroom=report.headroom and peer.headroom)


def _active(recent: Mapping[str, tuple[float, Report]]) -> str | None:
    """The name of the active. If two nodes report that they are the active, the node with the lower
    epoch has not yet noticed the end of its epoch."""
    epochs = {name: report.epoch for name, (_, report) in recent.items() if report.role in _ACTING}
    return max(epochs, key=lambda name: epochs[name], default=None)


def _node(
    core: Core, recent: tuple[float, Report] | None, hello: Hello | None, holds: Report | None
) -> ClusterNode:
    if recent is None or hello is None:
        return _silent()
    (age, report), row = recent, core.lease.row
    in_sync = row is not None and Member(hello.node, report.journal_id) in row.in_sync
    return {
        "answers": True,
        "reported_seconds_ago": round(age, 1),
        "url": report.url,
        "version": hello.engine,
        "protocol_min": hello.protocol_min,
        "protocol_max": hello.protocol_max,
        "application": running_application(core, hello),
        "executors_address": report.ranges,
        "role": report.role,
        "reason": report.reason,
        "epoch": report.epoch,
        "suspended": report.suspended,
        "warm": report.warm,
        "disk_headroom_ok": report.headroom,
        "in_sync": in_sync,
        "journal": {
            "id": report.journal_id,
            "last": report.last,
            "durable": report.durable,
            "committed": report.committed,
        },
        "lag_records": _lag(report, holds) if holds else None,
        "queries": {query.query: _query(query) for query in report.queries},
        "rejoin": _rejoin(report, in_sync, holds),
        "refused": None,
        "unreachable": None,
    }


def _silent() -> ClusterNode:
    return {
        "answers": False,
        "reported_seconds_ago": None,
        "url": None,
        "version": None,
        "protocol_min": None,
        "protocol_max": None,
        "application": None,
        "executors_address": None,
        "role": None,
        "reason": None,
        "epoch": None,
        "suspended": None,
        "warm": None,
        "disk_headroom_ok": None,
        "in_sync": None,
        "journal": None,
        "lag_records": None,
        "queries": None,
        "rejoin": None,
        "refused": None,
        "unreachable": None,
    }


def _query(query: QueryReport) -> NodeQuery:
    return {
        "state": query.state,
        "mark": query.mark,
        "batch": query.batch,
        "published": query.published,
        "differs": query.differs or None,
    }


def _rejoin(report: Report, in_sync: bool, holds: Report | None) -> Rejoin | None:
    if holds is None or report.role in _ACTING or (in_sync and report.warm):
        return None
    if report.role == "backup" and report.follows:
        return None
    return {
        "stage": _stage(report, in_sync),
        "records": _lag(report, holds),
        "batches": _batches_to_go(report, holds),
        "bytes": report.to_restore,
    }


def _stage(report: Report, in_sync: bool) -> str:
    if report.to_restore:
        return "snapshot"
    if not in_sync:
        return "journal" if report.follows else "comparing"
    if not report.query_process_connected:
        return "starting Spark"
    return "rebuild" if any(query.differs for query in report.queries) else "batches"


def _lag(report: Report, holds: Report) -> int:
    return 0 if report is holds else max(0, holds.last - report.durable)


def _batches_to_go(report: Report, holds: Report) -> int:
    """The batches that the node lacks, without those of queries that only the active runs."""
    has = {query.query: query.batch for query in report.queries}
    standby = {query.query for query in report.queries if query.state == QueryState.STANDBY.value}
    run = (query for query in holds.queries if query.query not in standby)
    return sum(max(0, query.batch - has.get(query.query, 0)) for query in run)


def _lease(row: LeaseRow) -> LeaseBody:
    database = row.identity
    return {
        "group_id": row.group_id,
        "holder": row.holder.node if row.holder else None,
        "process": row.holder.process if row.holder else None,
        "epoch": row.epoch,
        "version": row.version,
        "in_sync": [{"node": m.node, "journal_id": m.journal_id} for m in row.in_sync],
        "advertise": row.advertise,
        "successor": row.successor,
        "paused": row.paused,
        "system_identifier": database.system_identifier if database else None,
        "timeline": database.timeline if database else None,
    }
