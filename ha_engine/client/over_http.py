"""Send requests to nodes over HTTP, and interpret the answers of the nodes.

The transport uses threads, because the asynchronous client of httpx takes more CPU time. In a
measurement the asynchronous client took twice the CPU time for each request, and three times with
32 connections.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx

from ha_engine.client.answers import body_of, object_of
from ha_engine.client.token import TOKEN_VARIABLE, authorization, trusted
from ha_engine.client.transport import (
    CONNECT_TIMEOUT_SECONDS,
    NoAnswer,
    RemoteColumn,
    Request,
)
from ha_engine.errors import (
    Backpressure,
    InvalidEvents,
    NotActive,
    NotAllowed,
    PayloadTooLarge,
    Rejected,
    SequenceConflict,
    SequenceForgotten,
    UnknownStream,
    UnsupportedFormat,
)
from ha_engine.types import Position


class OverHttp:
    """The transport over HTTP, with at most ``width`` connections."""

    def __init__(self, width: int) -> None:
        self._client = httpx.Client(
            headers=authorization(),
            verify=trusted(),
            limits=httpx.Limits(max_connections=width, max_keepalive_connections=width),
        )
        self._threads = ThreadPoolExecutor(width, thread_name_prefix="producer")

    async def post(self, url: str, request: Request, patience: float) -> Position:
        """Store a request. Raises NoAnswer, Rejected."""
        headers = {
            "Content-Type": request.payload.form.value,
            "X-Producer-Id": request.producer,
            "X-Sequence": str(request.sequence),
        }
        path = f"/v1/streams/{quote(request.stream, safe='')}/events"
        content = await self._ask("POST", url + path, patience, headers, request.payload.body)
        return Position(content["position"]["epoch"], content["position"]["sequence"])

    async def columns(self, url: str, stream: str, patience: float) -> list[RemoteColumn]:
        """The columns of ``stream``. Raises NoAnswer, Rejected."""
        path = f"/v1/streams/{quote(stream, safe='')}"
        content = await self._ask("GET", url + path, patience, {}, b"")
        return [RemoteColumn(**column) for column in content["schema"]]

    async def close(self) -> None:
        self._threads.shutdown(wait=False)
        self._client.close()

    async def _ask(
        self, method: str, url: str, patience: float, headers: dict[str, str], body: bytes
    ) -> dict[str, Any]:
        call = partial(self._call, method, url, patience, headers, body)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _call(
        self, method: str, url: str, patience: float, headers: dict[str, str], body: bytes
    ) -> dict[str, Any]:
        timeout = httpx.Timeout(patience, connect=min(patience, CONNECT_TIMEOUT_SECONDS))
        try:
            answer = self._client.request(
                method, url, headers=headers, content=body, timeout=timeout
            )
        except httpx.TimeoutException as error:
            raise NoAnswer(str(error) or type(error).__name__, silent=True) from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise NoAnswer(str(error) or type(error).__name__) from None
        if answer.status_code != httpx.codes.OK:
            raise _refusal(answer)
        content = object_of(answer)
        if content is None:
            raise NoAnswer("the answer has status 200, but is not from a node")
        return content


def _refusal(answer: httpx.Response) -> Rejected | NoAnswer:
    content = body_of(answer)
    reason = content["error"]
    match answer.status_code:
        case 400:
            return InvalidEvents(content.get("reason", reason), content.get("row"))
        case 401 | 403:
            return NotAllowed(f"{reason}; set {TOKEN_VARIABLE} to a token that may send")
        case 404:
            return UnknownStream(reason)
        case 409 if content.get("conflict") == "forgotten":
            return SequenceForgotten(reason)
        case 409:
            return SequenceConflict(reason)
        case 413:
            return PayloadTooLarge(reason)
        case 415:
            return UnsupportedFormat(reason)
        case 429:
            return Backpressure(reason, _retry_after(answer, content))
        case 503:
            return NotActive(reason, content.get("active"))
        case 408 | 425 | 500 | 502 | 504:
            return NoAnswer(reason)
        case status:
            return Rejected(f"{answer.url.host} answered {status}: {reason}")


def _retry_after(answer: httpx.Response, content: dict[str, Any]) -> float:
    try:
        return max(
            0.0, float(content.get("retry_after_seconds", answer.headers.get("Retry-After")))
        )
    except (TypeError, ValueError):
        return 1.0
