"""Receive events over HTTP: the routes for the node's API, and the answer to each kind of refusal.

Events arrive as JSON or Arrow, as CloudEvents, or as samples of Prometheus remote write. Each
protocol has an endpoint, and the modules ``cloud_events`` and ``remote_write`` know the formats of
the latter two. An endpoint is a bare ASGI callable, to save time at thousands of requests a second.
A Request or Response object of Starlette costs as much time as the parsing of a small body. Every
answer to a client is a JSON object, or has no body.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

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
from ha_engine.receive.body import BodyLimit, ClientGone, Packing, Receive, packing_of
from ha_engine.receive.cloud_events import HEADER, Head, head_of
from ha_engine.receive.decode import Format, format_of
from ha_engine.receive.intake import DecodedRequest, Intake, SubmissionIdentity, identity_of
from ha_engine.receive.remote_write import Message, message_of
from ha_engine.web.route import OperationRoute

BODY_WITHIN_SECONDS = 30.0
NAMES = "X-Producer-Id", "X-Sequence"
_ONCE = {b"x-producer-id", b"x-sequence", b"content-type", b"content-encoding"}
"""Headers whose second value would silently replace the first one."""
_SEQUENCE = re.compile(rb"[0-9]{1,19}")
WRITTEN = b"x-prometheus-remote-write-%s-written"
_NOTHING_ELSE_WRITTEN = [(WRITTEN % what, b"0") for what in (b"histograms", b"exemplars")]
_NOTHING_WRITTEN = [(WRITTEN % b"samples", b"0"), *_NOTHING_ELSE_WRITTEN]

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class HttpAnswer(NamedTuple):
    """The answer to a request with events; ``body`` is JSON or empty."""

    status: int
    body: bytes = b""
    headers: Sequence[tuple[bytes, bytes]] = ()


def routes(
    intake: Intake, body_max: int, body_within_seconds: float = BODY_WITHIN_SECONDS
) -> list[OperationRoute]:
    """The routes ``GET /v1/streams/{stream}``, ``POST`` to ``events``, ``cloudevents`` and
    ``remote-write`` below it, and ``OPTIONS`` of ``cloudevents``."""
    takes = intake, BodyLimit(body_max, "http.max_body"), body_within_seconds
    stream = "/v1/streams/{stream}"
    return [
        OperationRoute(f"{stream}/events", EventsEndpoint(*takes), operations.PUBLISH, "POST"),
        OperationRoute(
            f"{stream}/cloudevents", CloudEventsEndpoint(*takes), operations.CLOUD_EVENTS, "POST"
        ),
        OperationRoute(
            f"{stream}/remote-write", RemoteWriteEndpoint(*takes), operations.REMOTE_WRITE, "POST"
        ),
        OperationRoute(
            f"{stream}/cloudevents", partial(_allow, intake), operations.ALLOW, "OPTIONS"
        ),
        OperationRoute(stream, partial(_show_stream, intake), operations.STREAM, "GET"),
    ]


Form = TypeVar("Form")


class Endpoint(ABC, Generic[Form]):
    """The ASGI application that takes the events of one protocol. The router must put
    ``path_params`` into the scope of each call.

    ``Form`` is what the headers of a request say about its body. ``packings`` are the accepted
    compressions of a body, of which None is none.
    """

    packings: tuple[Packing | None, ...] = (Packing.GZIP, None)

    def __init__(self, intake: Intake, limit: BodyLimit, body_within_seconds: float) -> None:
        self._intake, self._limit, self._within = intake, limit, body_within_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream: str = scope["path_params"]["stream"]
        try:
            request = await self._take(stream, _once_each(scope["headers"]), receive)
            answer = await self._store(request)
        except Rejected as refusal:
            self._intake.count(stream, refusal)
            answer = self.answer_to(refusal)
        except ClientGone:
            return
        await _send(send, answer)

    async def _take(
        self, stream: str, headers: dict[bytes, bytes], receive: Receive
    ) -> DecodedRequest:
        self._intake.require_stream(stream)
        form = self._form(headers)
        packing = packing_of(headers.get(b"content-encoding"), self.packings)
        identity = _identity(headers)
        self._intake.require_open(stream)
        with self._intake.body(self._limit) as body:
            body.require_fits(headers.get(b"content-length"))
            raw = await body.read(receive, self._within)
            if packing is not None:
                raw = await body.unpacked(raw, packing, self._intake.threads)
            return await self._unpack(stream, raw, form, identity)

    @abstractmethod
    def _form(self, headers: dict[bytes, bytes]) -> Form:
        """Read the headers about the body. Raises UnsupportedFormat, InvalidEvents."""

    @abstractmethod
    async def _unpack(
        self, stream: str, raw: bytes, form: Form, identity: SubmissionIdentity | None
    ) -> DecodedRequest:
        """Decode the body of a request. Raises InvalidEvents, PayloadTooLarge."""

    @abstractmethod
    async def _store(self, request: DecodedRequest) -> HttpAnswer:
        """Store a request and return the answer when it is committed. Raises Rejected."""

    def answer_to(self, refusal: Rejected) -> HttpAnswer:
        """The answer to a request that the node refused."""
        return _answer_to(refusal)


class EventsEndpoint(Endpoint[Format]):
    """Takes events as JSON, NDJSON or Arrow."""

    def _form(self, headers: dict[bytes, bytes]) -> Format:
        return format_of(headers.get(b"content-type", b"").decode("latin-1"))

    async def _unpack(
        self, stream: str, raw: bytes, form: Format, identity: SubmissionIdentity | None
    ) -> DecodedRequest:
        return await self._intake.unpack(stream, raw, form, identity)

    async def _store(self, request: DecodedRequest) -> HttpAnswer:
        receipt = await self._intake.store(request)
        position = receipt.position
        return HttpAnswer(
            200,
            b'{"accepted": %d, "position": {"epoch": %d, "sequence": %d}}'
            % (receipt.accepted, position.epoch, position.sequence),
        )


class CloudEventsEndpoint(Endpoint[Head]):
    """Takes CloudEvents in each content mode. A stored request gets an answer without a body,
    because some brokers take a body for an event in reply."""

    def _form(self, headers: dict[bytes, bytes]) -> Head:
        return head_of(headers)

    async def _unpack(
        self, stream: str, raw: bytes, form: Head, identity: SubmissionIdentity | None
    ) -> DecodedRequest:
        return await self._intake.unpack_cloud_events(stream, raw, form, identity)

    async def _store(self, request: DecodedRequest) -> HttpAnswer:
        if request.batch.num_rows:
            await self._intake.store(request)
        return HttpAnswer(204)


class RemoteWriteEndpoint(Endpoint[Message]):
    """Takes samples of Prometheus remote write. A sender drops samples that get an answer of 4xx,
    by default even 429, so each refusal that passes is answered with 503."""

    packings = (Packing.SNAPPY,)

    def _form(self, headers: dict[bytes, bytes]) -> Message:
        return message_of(headers.get(b"content-type", b"").decode("latin-1"))

    async def _unpack(
        self, stream: str, raw: bytes, form: Message, identity: SubmissionIdentity | None
    ) -> DecodedRequest:
        return await self._intake.unpack_samples(stream, raw, form, identity)

    async def _store(self, request: DecodedRequest) -> HttpAnswer:
        written = 0
        if request.batch.num_rows:
            written = (await self._intake.store(request)).accepted
        count = str(written).encode()
        return HttpAnswer(204, headers=[(WRITTEN % b"samples", count), *_NOTHING_ELSE_WRITTEN])

    def answer_to(self, refusal: Rejected) -> HttpAnswer:
        answer = _answer_to(refusal)
        if isinstance(refusal, InvalidEvents | PayloadTooLarge):  # the specification wants them
            return answer._replace(headers=[*answer.headers, *_NOTHING_WRITTEN])
        return answer._replace(status=503) if answer.status in (408, 429) else answer


async def _show_stream(intake: Intake, request: Request) -> JSONResponse:
    """Answer with a stream's name and columns; the types of the columns have Arrow's names."""
    name = request.path_params["stream"]
    try:
        columns = intake.columns(name)
    except UnknownStream as unknown:
        return JSONResponse({"error": str(unknown)}, 404)
    return JSONResponse({"name": name, "schema": [column._asdict() for column in columns]})


async def _allow(intake: Intake, request: Request) -> Response:
    """Agree that a sender of web hooks sends CloudEvents to the stream, at any rate. Such a sender
    asks first, so that nobody makes it send to a host that expects no events."""
    try:
        intake.require_stream(request.path_params["stream"])
    except UnknownStream as unknown:
        return JSONResponse({"error": str(unknown)}, 404)
    headers = {"Allow": "OPTIONS, POST"}
    if origin := request.headers.get(operations.ORIGIN):
        headers |= {"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": "*"}
    return Response(headers=headers)


def _once_each(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers by name. Raises InvalidEvents if one of _ONCE, or an attribute of a CloudEvent,
    occurs twice."""
    found = dict[bytes, bytes]()
    for name, value in headers:
        if name in found and (name in _ONCE or name.startswith(HEADER)):
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


def _answer_to(refusal: Rejected) -> HttpAnswer:
    content = {"error": str(refusal)}
    match refusal:
        case InvalidEvents(row=row, reason=reason):
            return _json(400, content | {"row": row, "reason": reason})
        case UnknownStream():
            return _json(404, content)
        case BodyTooSlow():
            return _json(408, content, [(b"connection", b"close")])
        case SequenceForgotten():
            return _json(409, content | {"conflict": "forgotten"})
        case SequenceConflict():
            return _json(409, content | {"conflict": "payload"})
        case PayloadTooLarge():
            return _json(413, content)
        case UnsupportedFormat():
            return _json(415, content)
        case Backpressure(retry_after_seconds=seconds):
            after = str(math.ceil(seconds)).encode()
            headers = [(b"retry-after", after)]
            return _json(429, content | {"retry_after_seconds": seconds}, headers)
        case NotActive(active=active):
            return _json(503, content | {"active": active})
        case _:
            raise refusal


def _json(
    status: int, content: dict[str, Any], headers: Sequence[tuple[bytes, bytes]] = ()
) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(content).encode(), headers)


async def _send(send: Send, answer: HttpAnswer) -> None:
    headers = [*answer.headers]
    if answer.body:
        headers.append((b"content-type", b"application/json"))
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
