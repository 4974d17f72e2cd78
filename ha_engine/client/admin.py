"""Send the command line's requests to a running node, over the node's HTTP interface."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from ha_engine.client.answers import body_of, object_of
from ha_engine.client.token import TOKEN_VARIABLE, authorization, require_as_safe, trusted
from ha_engine.errors import EngineError, NodeUnreachable, NotAllowed, NotReady

TIMEOUT_SECONDS = 5.0


def fetch_status(url: str) -> dict[str, Any]:
    """Return the node's answer to GET /v1/status. Raises NodeUnreachable."""
    return _read(url, "/v1/status")


def fetch_cluster(url: str) -> dict[str, Any]:
    """Return the node's answer to GET /v1/cluster. Raises NodeUnreachable."""
    return _read(url, "/v1/cluster")


def fetch_failover(url: str, confirmed_fenced: Sequence[str]) -> dict[str, Any]:
    """Return the node's answer to GET /v1/failover. Raises NodeUnreachable."""
    query = urlencode([("confirmed_fenced", name) for name in confirmed_fenced])
    return _read(url, f"/v1/failover?{query}")


def fetch_snapshot(url: str) -> dict[str, Any]:
    """Return the node's answer to GET /v1/snapshot. Raises NodeUnreachable."""
    return _read(url, "/v1/snapshot")


def skip_batch(url: str, query: str, by: str) -> None:
    """Skip the failed batch of ``query``. Raises EngineError with the node's reason when the node
    refuses."""
    _change(url, f"/v1/queries/{quote(query, safe='')}/skip", {"by": by}, httpx.codes.OK)


def retry_query(url: str, query: str) -> None:
    """Retry the failed batch of ``query``. Raises EngineError with the node's reason when the node
    refuses."""
    _change(url, f"/v1/queries/{quote(query, safe='')}/retry", None, httpx.codes.OK)


def rescale_query(url: str, query: str, partitions: int) -> None:
    """Change the number of partitions of a query's state. Raises EngineError with the node's reason
    when the node refuses."""
    path, body = f"/v1/queries/{quote(query, safe='')}/rescale", {"partitions": partitions}
    _change(url, path, body, httpx.codes.OK)


def force_failover(url: str, confirmed_fenced: Sequence[str], by: str) -> None:
    """Force a failover to the node at ``url``.

    Raises NodeUnreachable, or EngineError with the node's reason when the node refuses.
    """
    body = {"force": True, "confirmed_fenced": list(confirmed_fenced), "by": by}
    _change(url, "/v1/failover", body, httpx.codes.ACCEPTED)


def begin_switchover(url: str, to: str | None, by: str) -> tuple[str, str]:
    """Ask the active, through any node, for a switchover; return the active's URL and the name of
    the successor.

    Raises NotReady with the active's reason when the active refuses, EngineError, NodeUnreachable.
    """
    active, status, answered = _ask_active(url, "/v1/switchover", {"to": to, "by": by})
    if status == httpx.codes.CONFLICT:
        raise NotReady(answered["error"])
    return active, _accepted(status, answered)["to"]


def ask_snapshot(url: str) -> tuple[str, int]:
    """Ask the active, through any node, for a snapshot; return the active's URL and committed
    sequence.

    Raises EngineError when there is no active, NodeUnreachable.
    """
    active, status, answered = _ask_active(url, "/v1/snapshot", None)
    return active, _accepted(status, answered)["at_least"]


def fetch_application(url: str) -> dict[str, Any]:
    """Return the node's answer to GET /v1/application. Raises NodeUnreachable."""
    return _read(url, "/v1/application")


def fetch_archive(url: str, number: int) -> str:
    """Return the files of a deployment as the base64 of a ZIP file. Raises EngineError if the node
    does not have them, NodeUnreachable."""
    return str(_read(url, f"/v1/application/{number}/archive")["archive"])


def deploy_application(
    url: str, archive: bytes, asked: Mapping[str, object]
) -> tuple[str, dict[str, Any]]:
    """Deploy an application to the group of the node at ``url``; return the active's URL and its
    answer, which comes after the check of the application, however long that takes. ``asked`` are
    the parameters of the request; one that is None is not sent.

    Raises EngineError with the active's reason when it refuses, NodeUnreachable.
    """
    active, status, answered = _ask_active(url, f"/v1/application?{_words(asked)}", archive)
    return active, _accepted(status, answered, httpx.codes.OK)


def remove_application(
    url: str, name: str, asked: Mapping[str, object]
) -> tuple[str, dict[str, Any]]:
    """Remove an application from the group of the node at ``url``. Returns and raises as
    ``deploy_application`` does."""
    path = f"/v1/application/{quote(name, safe='')}/remove?{_words(asked)}"
    active, status, answered = _ask_active(url, path, b"")
    return active, _accepted(status, answered, httpx.codes.OK)


def ask_shadow(url: str, query: str, what: str, by: str) -> tuple[str, dict[str, Any]]:
    """``promote`` or ``discard`` the shadow of ``query`` through the node at ``url``; return the
    active's URL and its answer.

    Raises EngineError with the active's reason when it refuses, NodeUnreachable.
    """
    path = f"/v1/queries/{quote(query, safe='')}/{what}?{urlencode({'by': by})}"
    active, status, answered = _ask_active(url, path, None)
    return active, _accepted(status, answered, httpx.codes.OK)


def compare_shadow(url: str, query: str, batches: int, rows: int) -> dict[str, Any]:
    """Compare a query with its shadow on the node at ``url``. Raises EngineError if it has none,
    NodeUnreachable."""
    asked = urlencode({"batches": batches, "rows": rows})
    return _read(url, f"/v1/queries/{quote(query, safe='')}/compare?{asked}")


def _words(asked: Mapping[str, object]) -> str:
    return urlencode(
        {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in asked.items()
            if value is not None
        }
    )


def _read(url: str, path: str) -> dict[str, Any]:
    status, answered = _call("GET", url, path)
    return _accepted(status, answered, httpx.codes.OK)


def _change(url: str, path: str, body: Any, expected: int) -> None:
    _accepted(*_call("POST", url, path, body), expected)


def _ask_active(url: str, path: str, body: Any) -> tuple[str, int, dict[str, Any]]:
    """Send a request to the node at ``url``. If the node at ``url`` refuses and names the active,
    send the request to the active.

    The named active is asked only once, because a node may name itself again under another URL.
    """
    status, answered = _call("POST", url, path, body)
    if status == httpx.codes.CONFLICT and answered.get("active"):
        url = require_as_safe(url, answered["active"])
        status, answered = _call("POST", url, path, body)
    return url, status, answered


def _accepted(
    status: int, answered: dict[str, Any], expected: int = httpx.codes.ACCEPTED
) -> dict[str, Any]:
    if status != expected:
        raise EngineError(answered["error"])
    return answered


def _verify(url: str) -> ssl.SSLContext | bool:
    """The certificate authorities to trust, or False for plain HTTP, since loading them is slow."""
    return False if url.lower().startswith("http:") else trusted()


def _call(method: str, url: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON object of the node's answer; a refusal's object has an
    ``error``. Bytes as the ``body`` ask for a deployment, whose check takes its time."""
    deploys = isinstance(body, bytes)
    try:
        answer = httpx.request(
            method,
            url.rstrip("/") + path,
            json=None if deploys else body,
            content=body if deploys else None,
            headers=authorization(),
            verify=_verify(url),
            timeout=httpx.Timeout(TIMEOUT_SECONDS, read=None if deploys else TIMEOUT_SECONDS),
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise NodeUnreachable(
            f"no node answers at {url} ({reason}); check --url, and that 'ha-engine run' is running"
        ) from error
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        reason = body_of(answer)["error"]
        raise NotAllowed(f"{reason}; set {TOKEN_VARIABLE} to a token with this right")
    answered = object_of(answer)
    if answered is None or (answer.is_error and "error" not in answered):
        raise NodeUnreachable(
            f"{url} answered {answer.status_code}, but not like a node; check that --url is the "
            "URL of a node, and that the node is running"
        )
    return answer.status_code, answered
