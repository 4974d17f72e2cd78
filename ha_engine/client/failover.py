"""Request a forced failover from one node, and wait until that node is the active."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from ha_engine.client.admin import fetch_cluster, fetch_failover, fetch_status, force_failover
from ha_engine.client.token import require_as_safe
from ha_engine.errors import EngineError

WAIT_SECONDS_MAX = 15.0


def require_no_later_journal(url: str, node: str, ends: str) -> None:
    """Require that no other node answers whose journal ends later than at ``ends``, as
    EPOCH.SEQUENCE, which is the end at ``node``, the node at ``url``.

    The backup may have records that a returned node lacks (RULES.md#r37). Raises EngineError.
    """
    for name, other in fetch_cluster(url)["nodes"].items():
        theirs = _end_of(url, other) if other["answers"] and name != node else None
        if theirs is not None and _place(theirs) > _place(ends):
            raise EngineError(
                f"{name} answers, and its journal ends at {theirs}, later than that of {node} at "
                f"{ends}; force the failover to {name}, or stop it and add --confirm-fenced {name}"
            )


def _end_of(asked: str, node: dict[str, Any]) -> str | None:
    """The end of a node's journal, or None if the node does not answer this command."""
    try:
        return str(fetch_failover(require_as_safe(asked, node["url"]), ())["journal_ends"])
    except EngineError:
        return None


def _place(position: str) -> tuple[int, ...]:
    return tuple(map(int, position.split(".")))


def await_failover(url: str, confirmed_fenced: Sequence[str], by: str) -> float:
    """Force a failover to the node at ``url``; return the seconds until the node is the active.

    Raises EngineError when the node refuses, or is not the active after fifteen seconds.
    """
    began = time.monotonic()
    force_failover(url, confirmed_fenced, by)
    ask = Retrying(
        retry=retry_if_result(lambda role: role != "active"),
        wait=wait_fixed(0.05),
        stop=stop_after_delay(WAIT_SECONDS_MAX),
        retry_error_callback=lambda state: None,
    )
    if ask(lambda: fetch_status(url)["role"]) != "active":
        raise EngineError(
            f"the node has not become the active within {WAIT_SECONDS_MAX:g} s; "
            "run 'ha-engine status', and try again"
        )
    return time.monotonic() - began
