"""What the command line asks of a running node, over its HTTP interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import httpx

from ha_engine.client.over_http import said_by
from ha_engine.client.token import TOKEN_VARIABLE, authorization, require_as_safe, trusted
from ha_engine.errors import EngineError, NodeUnreachable, NotAllowed, NotReady

TIMEOUT_SECONDS = 5.0


def fetch_status(url: str) -> dict[str, Any]:
    """The body of GET /v1/status. Raises NodeUnreachable."""
    status: dict[str, Any] = _call("GET", url, "/v1/status").json()
    return status


def fetch_cluster(url: str) -> dict[str, Any]:
    """The body of GET /v1/cluster. Raises NodeUnreachable."""
    cluster: dict[str, Any] = _call("GET", url, "/v1/cluster").json()
    return cluster


def skip_batch(url: str, query: str, by: str) -> None:
    """Raises EngineError with the node's reason when it refuses."""
    _change(url, f"/v1/queries/{query}/skip", {"by": by})


def retry_query(url: str, query: str) -> None:
    """Raises EngineError with the node's reason when it refuses."""
    _change(url, f"/v1/queries/{query}/retry")


def begin_switchover(url: str, to: str | None, by: str) -> tuple[str, str]:
    """Ask the active, wherever it is; returns its URL and who takes over.

    Raises NotReady with the node's reason when it refuses, EngineError, NodeUnreachable.
    """
    answer = _call("POST", url, "/v1/switchover", {"to": to, "by": by})
    active = answer.json().get("active")
    if answer.status_code == httpx.codes.CONFLICT and active:
        return begin_switchover(require_as_safe(url, active), to, by)
    if answer.status_code == httpx.codes.CONFLICT:
        raise NotReady(answer.json()["error"])
    if answer.status_code != httpx.codes.ACCEPTED:
        raise EngineError(answer.json()["error"])
    return url, answer.json()["to"]


def fetch_failover(url: str, confirmed_off: Sequence[str]) -> dict[str, Any]:
    """The body of GET /v1/failover. Raises NodeUnreachable."""
    query = urlencode([("confirmed_off", name) for name in confirmed_off])
    told: dict[str, Any] = _call("GET", url, f"/v1/failover?{query}").json()
    return told


def force_failover(url: str, confirmed_off: Sequence[str], by: str) -> None:
    """Ask this very node. Raises EngineError with its reason when it refuses, NodeUnreachable."""
    body = {"force": True, "confirmed_off": list(confirmed_off), "by": by}
    answer = _call("POST", url, "/v1/failover", body)
    if answer.status_code != httpx.codes.ACCEPTED:
        raise EngineError(answer.json()["error"])


def fetch_snapshot(url: str) -> dict[str, Any]:
    """The body of GET /v1/snapshot. Raises NodeUnreachable."""
    told: dict[str, Any] = _call("GET", url, "/v1/snapshot").json()
    return told


def ask_snapshot(url: str) -> tuple[str, int]:
    """Ask the active, wherever it is; its URL, and the sequence that is committed now.

    Raises EngineError when there is none, NodeUnreachable.
    """
    answer = _call("POST", url, "/v1/snapshot")
    told = answer.json()
    if answer.status_code == httpx.codes.CONFLICT and told.get("active"):
        return ask_snapshot(require_as_safe(url, told["active"]))
    if answer.status_code != httpx.codes.ACCEPTED:
        raise EngineError(told["error"])
    return url, told["at_least"]


def _change(url: str, path: str, body: Any = None) -> None:
    answer = _call("POST", url, path, body)
    if answer.status_code != httpx.codes.OK:
        raise EngineError(answer.json()["error"])


def _call(method: str, url: str, path: str, body: Any = None) -> httpx.Response:
    try:
        answer = httpx.request(
            method,
            url.rstrip("/") + path,
            json=body,
            headers=authorization(),
            verify=trusted(),
            timeout=TIMEOUT_SECONDS,
        )
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise NodeUnreachable(
            f"no node answers at {url} ({reason}); is 'ha-engine run' running, and is --url right?"
        ) from error
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        reason = said_by(answer)["error"]
        raise NotAllowed(f"{reason}; {TOKEN_VARIABLE} is to hold a token that may")
    return answer
