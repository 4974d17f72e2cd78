"""The steps of an upgrade on one host: before its node stops, and after its node has started.

Each step asks the nodes only what an operator could ask them. Every wait has a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tenacity import RetryCallState, RetryError, Retrying, retry_if_result, wait_fixed
from tenacity.stop import stop_after_delay

from ha_engine.client.admin import fetch_cluster, fetch_status
from ha_engine.client.switchover import await_switchover
from ha_engine.client.token import require_as_safe
from ha_engine.errors import EngineError, NodeUnreachable, NotReady

POLL_SECONDS = 0.2
SWITCHOVER_SECONDS = 30.0
"""How long the other node may be behind again, after it was warm."""

_WORKING = ("active", "passive")

Say = Callable[[str], None]
"""Shows what a step waits for."""


@dataclass(frozen=True, slots=True)
class NodeStep:
    """A node of the group in an upgrade. ``version`` is None if the node does not tell it."""

    node: str
    version: str | None
    role: str
    in_sync: bool
    warm: bool


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a step: the node at the URL, all nodes that answer, and what to do next."""

    node: str
    nodes: tuple[NodeStep, ...]
    next: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def prepare(url: str, by: str, patience: float, say: Say) -> Step:
    """Make the node at ``url`` passive, so that its stop delays no event.

    If the node is the active, the step waits until another node than the backup is in sync and
    warm, and switches over to it. The step is right on either host first, but with the passive's
    host first a pair needs only one switchover. Raises NotReady after ``patience`` seconds. Raises
    EngineError.
    """
    cluster = _await(url, _no_active, patience, say)
    mine = cluster["node"]
    if cluster["active"] == mine:
        _await(url, _no_successor, patience, say)
        successor = await_switchover(url, None, by, SWITCHOVER_SECONDS)[1]
        say(f"{successor} is the active")
        cluster = _await(url, _still_active, patience, say)
    return Step(
        mine,
        _nodes(url, cluster),
        f"stop {mine}, install the other version, start it, and run 'ha-engine upgrade verify'",
    )


def verify(url: str, patience: float, say: Say) -> Step:
    """Wait until every node of the group answers, is in sync and is warm. It is enough for the
    backup that it follows, since it is in sync only while another node is away (RULES.md#r37).

    Raises NotReady after ``patience`` seconds, with what is missing. Raises EngineError.
    """
    cluster = _await(url, _not_whole, patience, say)
    nodes = _nodes(url, cluster)
    return Step(cluster["node"], nodes, _next(cluster, nodes))


def _next(cluster: dict[str, Any], nodes: tuple[NodeStep, ...]) -> str:
    if len({node.version for node in nodes if node.version is not None}) > 1:
        others = [node.node for node in nodes if node.node != cluster["node"]]
        return f"run 'ha-engine upgrade prepare' on the host of {', '.join(others)}"
    return (
        "all nodes run one version; to keep it for good, run 'ha-engine db upgrade --finalize', "
        "after which no older version may return"
    )


# -- what a step waits for, as a reason, or None ---------------------------------------------------

Reason = Callable[[dict[str, Any]], str | None]
"""Why the answer to GET /v1/cluster is not the wanted one, or None."""


def _no_active(cluster: dict[str, Any]) -> str | None:
    return None if cluster["active"] else "no node is the active"


def _still_active(cluster: dict[str, Any]) -> str | None:
    mine = cluster["nodes"][cluster["node"]]
    if cluster["active"] in (None, cluster["node"]) or mine["role"] == "active":
        return f"{cluster['node']} is still {mine['role']}"
    return None


def _no_successor(cluster: dict[str, Any]) -> str | None:
    # A node of a release before the backup does not name one.
    excluded = {cluster["node"], cluster.get("backup")}
    others = {name: node for name, node in cluster["nodes"].items() if name not in excluded}
    reasons = [_missing(name, node) for name, node in others.items()]
    if None in reasons:
        return None
    return "; ".join(filter(None, reasons)) or "the group has no other node"


def _not_whole(cluster: dict[str, Any]) -> str | None:
    reasons = [_missing(name, node) for name, node in cluster["nodes"].items()]
    return _no_active(cluster) or "; ".join(filter(None, reasons)) or None


def _missing(name: str, node: dict[str, Any]) -> str | None:
    if node["refused"]:
        return f"the other node refuses {name}: {node['refused']}"
    if not node["answers"]:
        return f"{name} does not answer"
    if rejoin := node["rejoin"]:
        left = ", ".join(f"{rejoin[what]} {what}" for what in ("records", "batches", "bytes"))
        return f"{name} is at stage '{rejoin['stage']}', and still needs {left}"
    if node["role"] == "backup":
        return None
    if not node["in_sync"]:
        return f"{name} is not in sync"
    if node["role"] not in _WORKING or node["suspended"]:
        return f"{name} is {node['role']}: {node['reason']}"
    return None if node["warm"] else f"{name} is not warm"


def _await(url: str, why_not: Reason, patience: float, say: Say) -> dict[str, Any]:
    """Return the group as the node at ``url`` sees it, once there is no reason to wait."""

    def ask() -> tuple[str | None, dict[str, Any]]:
        try:
            cluster = fetch_cluster(url)
        except NodeUnreachable as error:
            return str(error), {}
        return why_not(cluster), cluster

    said: list[str] = []

    def progress(state: RetryCallState) -> None:
        reason = state.outcome.result()[0] if state.outcome else None
        if reason and said[-1:] != [reason]:
            said.append(reason)
            say(f"waiting: {reason}")

    waiting = Retrying(
        retry=retry_if_result(lambda found: found[0] is not None),
        wait=wait_fixed(POLL_SECONDS),
        stop=stop_after_delay(patience),
        before_sleep=progress,
    )
    try:
        return waiting(ask)[1]
    except RetryError as error:
        reason = error.last_attempt.result()[0]
        raise NotReady(
            f"after {patience:g} s: {reason}; run 'ha-engine status', and repeat the command"
        ) from None


def _nodes(url: str, cluster: dict[str, Any]) -> tuple[NodeStep, ...]:
    return tuple(
        NodeStep(
            name,
            _version(url, url if name == cluster["node"] else node["url"]),
            node["role"],
            node["in_sync"],
            node["warm"],
        )
        for name, node in cluster["nodes"].items()
        if node["answers"]
    )


def _version(asked: str, url: str) -> str | None:
    """The version of the node at ``url``, which the node at ``asked`` has named."""
    try:
        return str(fetch_status(require_as_safe(asked, url))["version"])
    except EngineError:
        return None
