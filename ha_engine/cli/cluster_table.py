"""The nodes of a group as a table for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.filesize import decimal
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from ha_engine.cli.formats import time_of

_ROLE_STYLES = {
    "active": "bold green",
    "passive": "green",
    "backup": "green",
    "stopped": "bold red",
}
_ROLLOUT_STYLES = {"done": "green", "moving": "yellow", "waiting": "bold yellow"}
_COLUMNS = ("node", "role", "epoch", "in sync", "warm", "lag", "batch/published")
_RIGHT = ("epoch", "lag")


def cluster_table(cluster: dict[str, Any]) -> Group:
    """A table with one row per node. Below it are a line per node with the reason of its role, the
    newest deployment, and what each node runs."""
    table = Table(title=_title(cluster))
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _RIGHT else "left", overflow="fold")
    for name, node in cluster["nodes"].items():
        asked = " *" if name == cluster["node"] else ""
        table.add_row(escape(name) + asked, *(_known(node) if node["answers"] else _silent(node)))
    lines = [f"[bold]{escape(n)}[/]: {escape(_why(node))}" for n, node in cluster["nodes"].items()]
    lines += [
        f"refused {escape(n)}: {escape(reason)}" for n, reason in cluster["unknown_peers"].items()
    ]
    lines += [*_rollout(cluster.get("rollout")), *_programs(cluster["nodes"])]
    return Group(table, *(Padding(line, (0, 1)) for line in lines), Padding("", 0))


def _title(cluster: dict[str, Any]) -> str:
    active, holder = cluster["active"], (cluster["lease"] or {}).get("holder")
    leads = f"active {active}" if active else f"lease held by {holder}" if holder else "no active"
    safe = "protected" if cluster["protected"] else "[bold yellow]not protected[/]"
    paused = bool(cluster["lease"]) and cluster["lease"]["paused"]
    return f"group {escape(cluster['group'])}: {escape(leads)}, {safe}" + (
        ", [bold yellow]failover paused[/]" if paused else ""
    )


def _silent(node: dict[str, Any]) -> list[str]:
    what = "refused" if node["refused"] else "no answer"
    return [f"[bold red]{what}[/]", *["-"] * (len(_COLUMNS) - 2)]


def _known(node: dict[str, Any]) -> list[str]:
    style = _ROLE_STYLES.get(node["role"], "yellow")
    suspended = " [bold yellow]suspended[/]" if node["suspended"] else ""
    return [
        f"[{style}]{escape(node['role'])}[/]{suspended}",
        str(node["epoch"]) if node["role"] == "active" else "-",
        _yes(node["in_sync"]),
        _yes(node["warm"]),
        "-" if node["lag_records"] is None else str(node["lag_records"]),
        "\n".join(_batches(name, query) for name, query in node["queries"].items()) or "-",
    ]


def _rollout(rollout: dict[str, Any] | None) -> list[str]:
    if rollout is None:
        return []
    line, style = _deployment(rollout["deployment"]), _ROLLOUT_STYLES[rollout["state"]]
    return [f"[bold]{escape(line)}[/]: [{style}]{escape(rollout['progress'])}[/]"]


def _deployment(deployment: dict[str, Any]) -> str:
    """The number, name, id, deployer and time of a deployment."""
    number, name, digest = deployment["number"], deployment["name"], deployment["id"][:8]
    by, at = deployment["by"], time_of(deployment["at_us"])
    return f"deployment {number} of {name} ({digest}, by {by}, {at})"


def _programs(nodes: dict[str, Any]) -> list[str]:
    """One line for all nodes that run the same. The answer of an older ha-engine does not say
    it."""
    named = dict[str, list[str]]()
    for name, node in nodes.items():
        if node.get("version"):
            line = f"{application_line(node['application'])}, {version_line(node)}"
            named.setdefault(line, []).append(name)
    return [f"{escape(', '.join(names))}: {escape(line)}" for line, names in named.items()]


def application_line(application: dict[str, Any]) -> str:
    """The application that a node runs, with the beginning of its id."""
    number, archive = application["deployment"], application["archive"]
    if archive is None:
        former = "former " if application["is_former"] else ""
        return f"{former}file of the config ({application['digest'][:8]})"
    return f"{'former deployment' if number is None else f'deployment {number}'} ({archive[:8]})"


def version_line(node: dict[str, Any]) -> str:
    """The versions of the engine and of the sync protocol."""
    low, high = node["protocol_min"], node["protocol_max"]
    protocol = str(low) if low == high else f"{low} to {high}"
    return f"ha_engine {node['version']}, sync protocol {protocol}"


def _yes(true: bool) -> str:
    return "yes" if true else "[yellow]no[/]"


def _batches(name: str, query: dict[str, Any]) -> str:
    if query["state"] == "standby":
        return f"{escape(name)} [dim]standby[/]"
    failed = " [bold red]failed[/]" if query["state"] == "failed" else ""
    return f"{escape(name)} {query['batch']}/{query['published']}{failed}"


def _why(node: dict[str, Any]) -> str:
    if not node["answers"]:
        return node["refused"] or node["unreachable"] or "no report for some seconds"
    return "; ".join(_reasons(node))


def _to_go(rejoin: dict[str, Any]) -> str:
    if rejoin["bytes"]:
        return decimal(rejoin["bytes"])
    return f"{rejoin['records']} records and {rejoin['batches']} batches"


def _reasons(node: dict[str, Any]) -> list[str]:
    """The reason of the node's role, the work that the node must do to rejoin, and its problems."""
    reasons = [node["reason"]]
    if rejoin := node["rejoin"]:
        reasons.append(f"{rejoin['stage']}, {_to_go(rejoin)} to go")
    reasons += [
        f"batch {query['differs']} of {name} differs from the active's"
        for name, query in node["queries"].items()
        if query["differs"]
    ]
    return reasons if node["disk_headroom_ok"] else [*reasons, "its disk has no room for events"]
