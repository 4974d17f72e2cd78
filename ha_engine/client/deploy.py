"""Deploy or remove an application, and wait until every node runs the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from ha_engine.client.admin import fetch_application, fetch_cluster
from ha_engine.errors import EngineError, NodeUnreachable

ASK_SECONDS = 0.2
Ask = Callable[[str], tuple[str, dict[str, Any]]]
"""Asks the node at a URL for a deployment, and returns the active's URL and its answer."""


@dataclass(frozen=True, slots=True)
class Rolled:
    """A deployment, the nodes that run it, and those that are not connected."""

    number: int
    id: str
    name: str
    nodes: tuple[str, ...]
    absent: tuple[str, ...]


def deploy(
    url: str,
    ask: Ask,
    seconds: float,
    say: Callable[[str], None] = lambda line: None,
) -> Rolled:
    """Deploy through the node at ``url``, and wait until each connected node runs the deployment.

    ``say`` gets a line for each step. Raises EngineError with the reason if the active refuses, and
    then nothing has changed, or if the nodes take longer than ``seconds`` to move to the
    deployment, NodeUnreachable.
    """
    active, accepted = ask(url)
    say(f"deployment {accepted['number']} is in the journal of every member")
    urls = {active, url, *_urls(active)}
    nodes = dict[str, str]()

    def move() -> bool:
        for one in urls - set(nodes):
            if (name := _runs(one, accepted["id"])) is not None:
                nodes[one] = name
                say(f"{name} runs it")
        return urls <= set(nodes)

    waiting = Retrying(
        retry=retry_if_result(lambda done: not done),
        wait=wait_fixed(ASK_SECONDS),
        stop=stop_after_delay(seconds),
        retry_error_callback=lambda state: False,
    )
    if not waiting(move):
        raise EngineError(
            f"deployment {accepted['number']} is in the journal, but {len(urls - set(nodes))} of "
            f"{len(urls)} nodes do not run it after {seconds:g} s; they continue, "
            "'ha-engine app list' shows them"
        )
    cluster = fetch_cluster(next(iter(nodes)))
    running = tuple(sorted(set(nodes.values())))
    absent = tuple(sorted(set(cluster["nodes"]) - set(running)))
    return Rolled(accepted["number"], accepted["id"], accepted["name"], running, absent)


def _urls(active: str) -> set[str]:
    """The URLs of the nodes that are connected."""
    try:
        nodes = fetch_cluster(active)["nodes"].values()
    except NodeUnreachable:
        return set()  # it restarts already; the others are asked by the given URLs
    return {node["url"] for node in nodes if node["url"]}


def _runs(url: str, archive: str) -> str | None:
    """The name of the node, if it runs the deployment ``archive``."""
    try:
        found = fetch_application(url)
    except EngineError:
        return None  # it restarts
    return str(found["node"]) if found["archive"] == archive else None
