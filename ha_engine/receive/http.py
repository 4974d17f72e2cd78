"""Events over HTTP: the routes that the node's API mounts, and the answer to every refusal.

The endpoint for events is a bare ASGI callable: at thousands of requests a second a Request and a
Response object each cost as much as the parsing of a small body. Every answer is a JSON object.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

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
from ha_engine.receive.body import Body, ClientGone, Receive, is_gzip
from ha_engine.receive.decode import format_of
from ha_engine.receive.gate import Gate, Receipt
from ha_engine.receive.joining import JoiningDecoder
from ha_engine.receive.producers import digest_of
from ha_engine.types import Submission

DECODING_THREADS = 2
BODY_WITHIN_SECONDS = 30.0
SEQUENCE_MAX = (1 << 63) - 1

_PRODUCER_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_SEQUENCE = re.compile(rb"[0-9]{1,19}")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


def routes(
    gate: Gate, max_body: int, body_within_seconds: float = BODY_WITHIN_SECONDS
) -> list[Route]:
    """``POST /v1/streams/{stream}/events`` and ``GET /v1/streams/{stream}``."""
    return [
        Route(
            "/v1/streams/{stream}/events",
            EventsEndpoint(gate, max_body, body_within_seconds),
            name="publish events",
        ),
        Route("/v1/streams/{stream}", partial(_show_stream, gate), name="stream"),
    ]


class EventsEndpoint:
    """An ASGI application for one path; needs ``path_params`` in its scope."""

    def __init__(self, gate: Gate, max_body: int, body_within_seconds: float) -> None:
        self._gate, self._max_body, self._within = gate, max_body, body_within_seconds
        threads = ThreadPoolExecutor(DECODING_THREADS, thread_name_prefix="decode")
        self._decoders = {
            stream: JoiningDecoder(gate.decoder(stream), threads) for stream in gate.streams
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await _answer(send, 405, {"error": "events are sent by POST"}, [(b"allow", b"POST")])
            return
        stream: str = scope["path_params"]["stream"]
        try:
            receipt = await self._take(stream, dict(scope["headers"]), receive)
        except Rejected as refusal:
            self._count(stream, refusal)
            await _refuse(send, refusal)
        except ClientGone:
            return
        else:
            await _acknowledge(send, receipt)

    async def _take(self, stream: str, headers: dict[bytes, bytes], receive: Receive) -> Receipt:
        self._gate.decoder(stream)
        form = format_of(headers.get(b"content-type", b"").decode("latin-1"))
        packed = is_gzip(headers.get(b"content-encoding"))
        identity = _identity(headers)
        self._gate.require_open()
        with Body(self._gate.room, self._max_body) as body:
            body.require_fits(headers.get(b"content-length"))
            raw = await body.read(receive, self._within)
            if packed:
                raw = body.unzipped(raw)
            batch = await self._decoders[stream].decode(raw, form)
            submission = _submission(identity, stream, raw, batch.num_rows)
        return await self._gate.submit(stream, batch, submission)

    def _count(self, stream: str, refusal: Rejected) -> None:
        """Names that clients make up must not become names of metrics."""
        known = stream if stream in self._gate.streams else ""
        self._gate.counters.rejected(known, type(refusal).__name__)


async def _show_stream(gate: Gate, request: Request) -> JSONResponse:
    """Name and columns; types as Arrow names them."""
    try:
        schema = gate.decoder(request.path_params["stream"]).schema
    except UnknownStream as unknown:
        return JSONResponse({"error": str(unknown)}, 404)
    columns = [
        {"name": field.name, "type": str(field.type), "nullable": field.nullable}
        for field in schema
    ]
    return JSONResponse({"name": request.path_params["stream"], "schema": columns})


# -- who sends -------------------------------------------------------------------------------------


def _identity(headers: dict[bytes, bytes]) -> tuple[str, int] | None:
    producer, sequence = headers.get(b"x-producer-id"), headers.get(b"x-sequence")
    if producer is None and sequence is None:
        return None
    if producer is None or sequence is None:
        raise InvalidEvents("X-Producer-Id and X-Sequence come together; send both or none")
    if not _PRODUCER_ID.fullmatch(producer):
        raise InvalidEvents("X-Producer-Id must be 1 to 128 visible ASCII characters")
    if not _SEQUENCE.fullmatch(sequence) or int(sequence) > SEQUENCE_MAX:
        raise InvalidEvents(f"X-Sequence must be a whole number from 0 to {SEQUENCE_MAX}")
    return producer.decode(), int(sequence)


def _submission(
    identity: tuple[str, int] | None, stream: str, body: bytes, rows: int
) -> Submission | None:
    if identity is None:
        return None
    return Submission(*identity, digest_of(stream, body), rows)


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
    said = {"error": str(refusal)}
    match refusal:
        case InvalidEvents(row=row, reason=reason):
            await _answer(send, 400, said | {"row": row, "reason": reason})
        case UnknownStream():
            await _answer(send, 404, said)
        case BodyTooSlow():
            await _answer(send, 408, said, [(b"connection", b"close")])
        case SequenceForgotten():
            await _answer(send, 409, said | {"conflict": "forgotten"})
        case SequenceConflict():
            await _answer(send, 409, said | {"conflict": "payload"})
        case PayloadTooLarge():
            await _answer(send, 413, said)
        case UnsupportedFormat():
            await _answer(send, 415, said)
        case Backpressure(retry_after_seconds=seconds):
            after = str(math.ceil(seconds)).encode()
            headers = [(b"retry-after", after)]
            await _answer(send, 429, said | {"retry_after_seconds": seconds}, headers)
        case NotActive(active=active):
            await _answer(send, 503, said | {"active": active})
        case _:
            raise refusal


async def _answer(
    send: Send, status: int, said: dict[str, Any], headers: Headers | None = None
) -> None:
    await _send(send, status, json.dumps(said).encode(), headers)


async def _send(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    fixed = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    start = {"type": "http.response.start", "status": status, "headers": fixed + (headers or [])}
    await send(start)
    await send({"type": "http.response.body", "body": body})
