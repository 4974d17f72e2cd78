"""Take events on a node that is not the active, and let the active store them.

A client may then send to any node, or to both at once, and no failover refuses a request of it. A
forwarded request has the identity of its producer and the digest of its payload. So the active
stores a request once, whichever way it comes and however often. A node that becomes the active
meanwhile knows from its journal which of the requests that it forwarded are stored.

A request without an identity gets one of this node, because an attempt without an answer must be
repeatable.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import pyarrow as pa

from ha_engine.client.over_grpc import refusal_of
from ha_engine.errors import InvalidEvents, NotActive, Rejected
from ha_engine.receive.answers import refused, stored
from ha_engine.receive.byte_budget import ByteBudget
from ha_engine.receive.decode import Decoder
from ha_engine.receive.gate import Counters, Gate, Receipt
from ha_engine.receive.intake import identity_of
from ha_engine.receive.offsets import Pull
from ha_engine.receive.producers import digest_of
from ha_engine.types import Position, Submission
from ha_engine.v1 import ingest_pb2 as pb
from ha_engine.v1 import sync_pb2

WAIT_SECONDS_MAX = 30.0
"""A request waits so long for an active, as for the rest of its body."""
ATTEMPT_EVERY_SECONDS = 0.1
LANES = 32
"""Requests without an identity that are forwarded at one time."""


class Active(Protocol):
    """The node that is the active, if it is another one."""

    async def forward(self, request: sync_pb2.ForwardRequest) -> pb.PublishAnswer | None:
        """The active's answer, or None if no node that answers is the active. Raises
        PayloadTooLarge."""


@dataclass(slots=True)
class _Lane:
    """A producer of this node, which sends one request after the other. So its sequence is always
    among those that the nodes remember."""

    producer: str
    sequence: int = 0


@dataclass(slots=True)
class _Bytes:
    """The part of the budget that a waiting request has, until ``give``."""

    budget: ByteBudget
    size: int

    def give(self) -> None:
        self.budget.give(self.size)
        self.size = 0


@dataclass(slots=True, order=True)
class _Request:
    """A request that is not stored yet. ``number`` says in which order the requests came."""

    number: int
    stream: str = field(compare=False)
    batch: pa.RecordBatch = field(compare=False)
    submission: Submission = field(compare=False)
    bytes: _Bytes = field(compare=False)
    stored: asyncio.Future[Receipt] = field(compare=False)

    def message(self) -> sync_pb2.ForwardRequest:
        return sync_pb2.ForwardRequest(
            stream=self.stream,
            producer=self.submission.producer,
            sequence=self.submission.sequence,
            digest=self.submission.digest,
            batch=self.batch.serialize().to_pybytes(),
        )

    def settle(self, receipt: Receipt) -> None:
        if not self.stored.done():
            self.stored.set_result(receipt)

    def fail(self, error: Exception) -> None:
        if not self.stored.done():
            self.stored.set_exception(error)


_Send = Callable[[_Request], Awaitable[Receipt | None]]
"""Sends a request, and returns None if the request must wait."""


class ForwardingStore:
    """A store that is the ``gate`` while this node is the active, and else forwards to ``active``.

    Requests that wait for an active stay in their order. One of them looks for the active, so that
    many do not keep the event loop busy. ``producer`` begins the ids of the producers of this node
    process. ``on_forwarded`` gets a stream and the number of the events of a forwarded request that
    the active has.
    """

    def __init__(
        self, gate: Gate, active: Active, producer: str, on_forwarded: Callable[[str, int], None]
    ) -> None:
        self._gate, self._active, self._on_forwarded = gate, active, on_forwarded
        self.rows_max = gate.rows_max
        self.budget: ByteBudget = gate.budget
        self.counters: Counters = gate.counters
        self._lanes: asyncio.LifoQueue[_Lane] = asyncio.LifoQueue()
        for number in reversed(range(LANES)):
            self._lanes.put_nowait(_Lane(f"{producer}-{number}"))
        self._numbers = count()
        self._waiting: list[_Request] = []  # a heap
        self._pump: asyncio.Task[None] | None = None
        self._reached = False
        """Whether the active has answered the last request."""
        self._attempts = set[asyncio.Task[bool]]()
        self._stopping = False

    @property
    def streams(self) -> list[str]:
        return self._gate.streams

    def decoder(self, stream: str) -> Decoder:
        return self._gate.decoder(stream)

    async def stop(self, seconds: float) -> None:
        """Refuse the requests that wait for an active, because this node stops. Return once those
        that the active has are answered, or after ``seconds``."""
        self._stopping = True
        for request in self._waiting:
            request.fail(_stopping())
        if self._attempts:
            await asyncio.wait(self._attempts, timeout=seconds)

    def require_open(self, stream: str) -> None:
        """Raise Backpressure while this node is the active and must refuse events of ``stream``, or
        NotActive if the node stops."""
        if self._gate.opened.is_set():
            self._gate.require_open(stream)
        elif self._stopping:
            raise _stopping()

    async def submit(
        self,
        stream: str,
        batch: pa.RecordBatch,
        submission: Submission | None = None,
        pull: Pull | None = None,
    ) -> Receipt:
        """Like ``Gate.submit``. Raises NotActive if no node has stored the events within
        WAIT_SECONDS_MAX, or if this node stops. The events may be stored then. So they may if this
        node has them in its journal and is the active no more, and they have no identity."""
        if pull is not None or (self._gate.opened.is_set() and not self._waiting):
            try:
                return await self._gate.submit(stream, batch, submission, pull)
            except NotActive as refusal:
                repeatable = refusal.stored_nothing or submission is not None
                if pull is not None or not repeatable:
                    raise
        held = _Bytes(self.budget, self._gate.size_of(batch))
        self.budget.take(held.size)
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                return await self._wait(stream, batch, submission, held)
        except TimeoutError:
            self._gate.require_active()
            raise NotActive("no node has stored the events in time; send them again") from None
        finally:
            held.give()

    async def _wait(
        self, stream: str, batch: pa.RecordBatch, submission: Submission | None, held: _Bytes
    ) -> Receipt:
        if submission is not None:
            return await self._stored(stream, batch, submission, held)
        lane = await self._lanes.get()
        try:
            lane.sequence += 1
            digest = digest_of(stream, batch.serialize())
            own = Submission(lane.producer, lane.sequence, digest, batch.num_rows)
            return await self._stored(stream, batch, own, held)
        finally:
            self._lanes.put_nowait(lane)

    async def _stored(
        self, stream: str, batch: pa.RecordBatch, submission: Submission, held: _Bytes
    ) -> Receipt:
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._enqueue(_Request(next(self._numbers), stream, batch, submission, held, answer))
        return await answer

    def _enqueue(self, request: _Request) -> None:
        if self._stopping:
            request.fail(_stopping())
            return
        heapq.heappush(self._waiting, request)
        if self._pump is None:
            self._pump = asyncio.create_task(self._send_waiting(), name="forward events")

    async def _send_waiting(self) -> None:
        """Send the waiting requests in their order, until none waits."""
        try:
            while self._waiting:
                if self._gate.opened.is_set():
                    self._start_all(self._submit)
                    await asyncio.sleep(ATTEMPT_EVERY_SECONDS)  # some may wait again
                elif self._reached:
                    self._start_all(self._forward)
                elif not (request := heapq.heappop(self._waiting)).stored.done():
                    self._reached = await self._start(self._forward, request)
                    if not self._reached:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(ATTEMPT_EVERY_SECONDS):
                                await self._gate.opened.wait()
        finally:
            self._pump = None

    def _start_all(self, send: _Send) -> None:
        while self._waiting:
            self._start(send, heapq.heappop(self._waiting))

    def _start(self, send: _Send, request: _Request) -> asyncio.Task[bool]:
        attempt = asyncio.create_task(self._attempt(send, request))
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)
        return attempt

    async def _attempt(self, send: _Send, request: _Request) -> bool:
        """Send a request that still waits. Return whether there is an answer; without one, the
        request waits again."""
        if request.stored.done():
            return True
        try:
            receipt = await send(request)
        except Exception as error:  # after any error the caller must not wait for ever
            request.fail(error)
            return True
        if receipt is None:
            self._reached = False
            self._enqueue(request)
            return False
        request.settle(receipt)
        return True

    async def _submit(self, request: _Request) -> Receipt | None:
        """Store a request in this node's journal. Return None if this node is not the active."""
        request.bytes.give()  # the gate takes them, before any other request does
        try:
            return await self._gate.submit(request.stream, request.batch, request.submission)
        except NotActive:
            return None

    async def _forward(self, request: _Request) -> Receipt | None:
        """Let the active store a request. Return None if there is no answer before the gate opens,
        since a frozen active would let the request wait for longer."""
        asked = asyncio.ensure_future(self._active.forward(request.message()))
        opened = asyncio.ensure_future(self._gate.opened.wait())
        try:
            await asyncio.wait((asked, opened), return_when=asyncio.FIRST_COMPLETED)
            answer = asked.result() if asked.done() else None
        finally:
            asked.cancel()
            opened.cancel()
        if answer is None:
            return None
        if answer.HasField("refused"):
            raise refusal_of(answer.refused)
        self._on_forwarded(request.stream, answer.stored.accepted)
        position = Position(answer.stored.epoch, answer.stored.sequence)
        return Receipt(answer.stored.accepted, position)


def _stopping() -> NotActive:
    return NotActive("this node is stopping; send the events again to the other node")


async def store_forwarded(gate: Gate, request: sync_pb2.ForwardRequest) -> pb.PublishAnswer:
    """Store a request that another node forwards, and return the answer to it."""
    try:
        batch = _batch(request, gate.decoder(request.stream))
        identity_of(request.producer, request.sequence, ("producer", "sequence"))
        who = request.producer, request.sequence, request.digest
        receipt = await gate.submit(request.stream, batch, Submission(*who, batch.num_rows))
    except Rejected as refusal:
        return refused(request.id, refusal)
    return stored(request.id, receipt)


def _batch(request: sync_pb2.ForwardRequest, decoder: Decoder) -> pa.RecordBatch:
    """The events of a forwarded request. Raises InvalidEvents."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(request.batch), decoder.schema)
        batch.validate(full=True)
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise InvalidEvents(f"the forwarded events cannot be read: {error}") from error
    return batch
