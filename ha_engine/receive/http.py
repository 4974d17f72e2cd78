"""Receive events over HTTP: the routes for the node's API, and the answer to each kind of refusal.

The endpoint for events is a bare ASGI callable, to save time at thousands of requests a second. A
Request or Response object of Starlette costs as much time as the parsing of a small body. Every
answer to a client is a JSON object.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from ha_engine.errors import (
    Backpressure,
    BodyTooSlow,
    InvalidEvents,
    NotActive,
    PayloadTooLarge,
    Rejected,
    SequenceConflict,
    SequenceForgotten,
    UnknownStream,
    UnsupportedFormat,
)
from ha_engine.receive import http_operations as operations
from ha_engine.receive.body import BodyLimit, ClientGone, Receive, is_gzip
from ha_engine.receive.decode import format_of
from ha_engine.receive.gate import Receipt
from ha_engine.receive.intake import DecodedRequest, Intake, SubmissionIdentity, identity_of
from ha_engine.web.route import OperationRoute

BODY_WITHIN_SECONDS = 30.0
NAMES = "X-Producer-Id", "X-Sequence"
_ONCE = {b"x-producer-id", b"x-sequence", b"content-type", b"content-encoding"}
"""Headers whose second value would silently replace the first one."""
_SEQUENCE = re.compile(rb"[0-9]{1,19}")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


def routes(
    intake: Intake, body_max: int, body_within_seconds: float = BODY_WITHIN_SECONDS
) -> list[OperationRoute]:
    """The routes ``POST /v1/streams/{stream}/events`` and ``GET /v1/streams/{stream}``."""
    limit = BodyLimit(body_max, "http.max_body")
    return [
        OperationRoute(
            "/v1/streams/{stream}/events",
            EventsEndpoint(intake, limit, body_within_seconds),
            operations.PUBLISH,
            "POST",
        ),
        OperationRoute(
            "/v1/streams/{stream}", partial(_show_stream, intake), operations.STREAM, "GET"
        ),
    ]


class EventsEndpoint:
    """The ASGI application that takes events. The router must put ``path_params`` into the scope of
    each call."""

    def __init__(self, intake: Intake, limit: BodyLimit, body_within_seconds: float) -> None:
        self._intake, self._limit, self._within = intake, limit, body_within_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream: str = scope["path_params"]["stream"]
        try:
            request = await self._take(stream, _once_each(scope["headers"]), receive)
            receipt = await self._intake.store(request)
        except Rejected as refusal:
            self._intake.count(stream, refusal)
            await _refuse(send, refusal)
        except ClientGone:
            return
        else:
            await _acknowledge(send, receipt)

    async def _take(
        self, stream: str, headers: dict[bytes, bytes], receive: Receive
    ) -> DecodedRequest:
        self._intake.require_stream(stream)
        form = format_of(headers.get(b"content-type", b"").decode("latin-1"))
        packed = is_gzip(headers.get(b"content-encoding"))
        identity = _identity(headers)
        self._intake.require_open()
        with self._intake.body(self._limit) as body:
            body.require_fits(headers.get(b"content-length"))
            raw = await body.read(receive, self._within)
            if packed:
                raw = await body.unzipped(raw, self._intake.threads)
            return await self._intake.unpack(stream, raw, form, identity)


async def _show_stream(intake: Intake, request: Request) -> JSONResponse:
    """Answer with a stream's name and columns; the types of the columns have Arrow's names."""
    name = request.path_params["stream"]
    try:
        columns = intake.columns(name)
    except UnknownStream as unknown:
        return JSONResponse({"error": str(unknown)}, 404)
    return JSONResponse({"name": name, "schema": [column._asdict() for column in columns]})


def _once_each(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers by name. Raises InvalidEvents if one of _ONCE occurs twice."""
    found = dict[bytes, bytes]()
    for name, value in headers:
        if name in found and name in _ONCE:
            raise InvalidEvents(f"the header {name.decode()} occurs more than once")
        found[name] = value
    return found


def _identity(headers: dict[bytes, bytes]) -> SubmissionIdentity | None:
    producer, sequence = headers.get(b"x-producer-id"), headers.get(b"x-sequence")
    number = None
    if sequence is not None:
        number = int(sequence) if _SEQUENCE.fullmatch(sequence) else -1
    return identity_of(None if producer is None else producer.decode("latin-1"), number, NAMES)


# -- answers ---------------------------------------------------------------------------------------


async def _acknowledge(send: Send, receipt: Receipt) -> None:
    position = receipt.position
    await _send(
        send,
        200,
        b'{"accepted": %d, "position": {"epoch": %d, "sequence": %d}}'
        % (receipt.accepted, position.epoch, position.sequence),
    )


async def _refuse(send: Send, refusal: Rejected) -> None:
    content = {"error": str(refusal)}
    match refusal:
        case InvalidEvents(row=row, reason=reason):
            await _answer(send, 400, content | {"row": row, "reason": reason})
        case UnknownStream():
            await _answer(send, 404, content)
        case BodyTooSlow():
            await _answer(send, 408, content, [(b"connection", b"close")])
        case SequenceForgotten():
            await _answer(send, 409, content | {"conflict": "forgotten"})
        case SequenceConflict():
            await _answer(send, 409, content | {"conflict": "payload"})
        case PayloadTooLarge():
            await _answer(send, 413, content)
        case UnsupportedFormat():
            await _answer(send, 415, content)
        case Backpressure(retry_after_seconds=seconds):
            after = str(math.ceil(seconds)).encode()
            headers = [(b"retry-after", after)]
            await _answer(send, 429, content | {"retry_after_seconds": seconds}, headers)
        case NotActive(active=active):
            await _answer(send, 503, content | {"active": active})
        case _:
            raise refusal


async def _answer(
    send: Send, status: int, content: dict[str, Any], headers: Headers | None = None
) -> None:
    await _send(send, status, json.dumps(content).encode(), headers)


async def _send(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    fixed = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    start = {"type": "http.response.start", "status": status, "headers": fixed + (headers or [])}
    await send(start)
    await send({"type": "http.response.body", "body": body})
