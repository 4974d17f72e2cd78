"""The status of a node as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from ha_engine.cli.cluster_table import application_line, version_line

_STATE_STYLES = {"running": "green", "standby": "dim", "waiting": "yellow", "failed": "bold red"}


def node_table(status: dict[str, Any]) -> Table:
    """A table with one column of names and one of values."""
    table = Table(title=f"{status['node']} of group {status['group']}", show_header=False)
    table.add_column(style="dim")
    table.add_column()
    lease, journal, receive = status["lease"], status["journal"], status["receive"]
    role = status["role"].upper() + (" (suspended)" if status["suspended"] else "")
    rows = {
        "role": f"{role}  {escape(status['reason'])}",
        "epoch": status["epoch"],
        "lease": f"{lease['holder'] or 'no holder'}, version {lease['version']}"
        f", in sync: {', '.join(lease['in_sync']) or '-'}",
        **_pause(lease),
        "journal": f"last {journal['last']}, committed {journal['committed_sequence']}",
        "events": f"{receive['accepted_events']} accepted, "
        f"{receive['duplicate_events']} duplicate, "
        f"{receive['backlog_events']} waiting for a batch",
        **_sources(status),
        **{f"peer {name}": _peer(peer) for name, peer in status["peers"].items()},
        **_application(status),
        "query process": _process(status["query_process"]),
        **_executors(status["query_process"]),
        **_shadow(status),
        "snapshot": escape(snapshot_line(status["snapshot"])),
        **_config(status["config"]),
        "uptime": f"{status['uptime_seconds']:.0f} s",
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def snapshot_line(snapshots: dict[str, Any]) -> str:
    """The newest snapshot, the transfers in progress, and why there is no newer snapshot."""
    newest, moving = snapshots["newest"], snapshots["taking"] or snapshots["restoring"]
    parts = ["none yet"]
    if newest is not None:
        place, size = f"{newest['epoch']}.{newest['sequence']}", decimal(newest["bytes_total"])
        parts = [f"at {place}, {snapshots['age_seconds']:.0f} s old, {size}"]
    if moving is not None:
        what = "storing" if snapshots["taking"] else "restoring"
        done, total = (decimal(moving[key]) for key in ("bytes_done", "bytes_total"))
        parts.append(f"{what} {done} of {total}")
    if snapshots["why_not"]:
        parts.append(f"no newer one: {snapshots['why_not']}")
    return "; ".join(parts)


def _sources(status: dict[str, Any]) -> dict[str, str]:
    """The state of each source by its name. The status of an older ha-engine lists no sources."""
    found = {}
    for stream, sources in status.get("sources", {}).items():
        for name, source in sources.items():
            text = f"{source['state']}, {source['rows']} rows, {source['rejected']} rejected"
            error = f": {escape(source['error'])}" if source["error"] else ""
            found[f"source {stream}/{name}"] = text + error
    return found


def _application(status: dict[str, Any]) -> dict[str, str]:
    """The application and the versions. The status of an older ha-engine says neither."""
    found = status.get("application")
    if found is None:
        return {}
    return {"application": application_line(found), "version": version_line(status)}


def _peer(peer: dict[str, Any]) -> str:
    if not peer["connected"]:
        return f"not connected: {escape(peer['refused'] or 'no answer')}"
    if peer["stage"] is None:
        return "connected"
    warm = "warm" if peer["warm"] else "not warm"
    return f"{peer['stage']}, {peer['lag_records']} records behind, {warm}"


def _pause(lease: dict[str, Any]) -> dict[str, str]:
    if not lease["paused"]:
        return {}
    return {
        "failover": "[bold yellow]paused[/bold yellow]: no node takes over until 'ha-engine resume'"
    }


def _config(config: dict[str, Any]) -> dict[str, str]:
    """The problems of the last reload, and the keys that need a restart; empty without both."""
    parts = [f"not applied: {problem}" for problem in config["problems"]]
    if config["needs_restart"]:
        parts.append(f"needs a restart: {', '.join(config['needs_restart'])}")
    return {"config": "[bold yellow]" + escape("; ".join(parts)) + "[/]"} if parts else {}


def _process(process: dict[str, Any]) -> str:
    step = process["step"] or "starting"
    if process["connected"] and step in ("starting", "ready"):
        return "running"
    since = f" for {process['step_seconds']:.0f} s" if process["step"] else ""
    died = f"; the last one ended: {process['last_death']}" if process["last_death"] else ""
    return escape(f"{step}{since}{died}")


def _executors(process: dict[str, Any]) -> dict[str, str]:
    """The executors on a cluster. The status of an older ha-engine lists none."""
    found = process.get("executors")
    if not found:
        return {}
    master = "connected" if found["master_connected"] else "[bold yellow]not connected[/]"
    text = f"{found['live']} of {found['wanted']}, master {master}, {found['application']}"
    return {"executors": text}


def _shadow(status: dict[str, Any]) -> dict[str, str]:
    """The shadow beside a live query. The status of an older ha-engine has no such field."""
    found = status.get("shadow")
    if not found:
        return {}
    behind = f", {found['behind_batches']} behind the live query" if found["behind_batches"] else ""
    style = _STATE_STYLES.get(found["state"], "")
    text = f"[{style}]{found['state']}[/] at batch {found['batch']}{behind}"
    reason = f": {escape(found['reason'])}" if found["reason"] else ""
    return {f"shadow of {found['query']}": text + reason}


def query_table(status: dict[str, Any]) -> Table:
    """A table with one row per query."""
    table = Table(title="queries")
    for name in ("query", "state", "batch", "published", "backlog", "outbox", "ms", "watermark"):
        table.add_column(name, justify="left" if name in ("query", "state") else "right")
    table.add_column("reason", overflow="fold")
    for name, query in status["queries"].items():
        style = _STATE_STYLES[query["state"]]
        published = ", ".join(f"{s} {n}" for s, n in query["published"].items())
        errors = [s["error"] for s in query["sinks"].values() if s.get("error")]
        table.add_row(
            name,
            f"[{style}]{query['state']}[/{style}]",
            str(query["batch"]),
            published or "-",
            str(query["backlog_events"]),
            f"{query['outbox_batches']}",
            str(query["batch_duration_ms"]),
            query["watermark"] or "-",
            escape("; ".join(filter(None, [query["reason"], *errors]))) or "-",
        )
    return table
