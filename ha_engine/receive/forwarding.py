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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from ha_engine.client.over_grpc import refusal_of
from ha_engine.errors import NotActive, Rejected
from ha_engine.receive.answers import refused, stored
from ha_engine.receive.byte_budget import ByteBudget
from ha_engine.receive.decode import Decoder
from ha_engine.receive.gate import Counters, Gate, Receipt
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


class ForwardingStore:
    """A store that is the ``gate`` while this node is the active, and else forwards to ``active``.

    ``producer`` begins the ids of the producers of this node process. ``on_forwarded`` gets a
    stream and the number of its events that the active has stored for this node.
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
        self._stopping: NotActive | None = None

    @property
    def streams(self) -> list[str]:
        return self._gate.streams

    def decoder(self, stream: str) -> Decoder:
        return self._gate.decoder(stream)

    def stop(self) -> None:
        """Refuse the requests that wait for an active, because this node stops."""
        self._stopping = NotActive("this node is stopping; send the events again to the other node")

    def require_open(self) -> None:
        """Raise Backpressure while this node is the active and must refuse events, or NotActive if
        the node stops."""
        if self._gate.opened.is_set():
            self._gate.require_open()
        elif self._stopping is not None:
            raise self._stopping

    async def submit(
        self,
        stream: str,
        batch: pa.RecordBatch,
        submission: Submission | None = None,
        pull: Pull | None = None,
    ) -> Receipt:
        """Like ``Gate.submit``. Raises NotActive only if no node was the active for
        WAIT_SECONDS_MAX, or if this node stops. The events may be stored then."""
        if pull is not None or (submission is None and self._gate.opened.is_set()):
            return await self._gate.submit(stream, batch, submission, pull)
        if submission is not None:
            return await self._until_stored(stream, batch, submission)
        lane = await self._lanes.get()
        try:
            lane.sequence += 1
            digest = digest_of(stream, batch.serialize())
            own = Submission(lane.producer, lane.sequence, digest, batch.num_rows)
            return await self._until_stored(stream, batch, own)
        finally:
            self._lanes.put_nowait(lane)

    async def _until_stored(
        self, stream: str, batch: pa.RecordBatch, submission: Submission
    ) -> Receipt:
        until = asyncio.get_running_loop().time() + WAIT_SECONDS_MAX
        receipt = None
        while receipt is None:
            if self._gate.opened.is_set():
                with suppress(NotActive):
                    return await self._gate.submit(stream, batch, submission)
            self.budget.take(batch.nbytes)
            try:
                receipt = await self._from_active(_message(stream, batch, submission), until)
            finally:
                self.budget.give(batch.nbytes)
        return receipt

    async def _from_active(self, request: sync_pb2.ForwardRequest, until: float) -> Receipt | None:
        """Forward a request until the active has stored it, or return None once the gate is open.

        Raises what the active answers, and NotActive after the time ``until``.
        """
        while (answer := await self._answer(request)) is None:
            if self._gate.opened.is_set():
                return None
            if self._stopping is not None:
                raise self._stopping
            if asyncio.get_running_loop().time() >= until:
                self._gate.require_open()
            with suppress(TimeoutError):
                async with asyncio.timeout(ATTEMPT_EVERY_SECONDS):
                    await self._gate.opened.wait()
        if answer.HasField("refused"):
            raise refusal_of(answer.refused)
        self._on_forwarded(request.stream, answer.stored.accepted)
        position = Position(answer.stored.epoch, answer.stored.sequence)
        return Receipt(answer.stored.accepted, position)

    async def _answer(self, request: sync_pb2.ForwardRequest) -> pb.PublishAnswer | None:
        """The active's answer, or None if there is none before the gate opens. A frozen active
        would let the request wait for longer."""
        asked = asyncio.ensure_future(self._active.forward(request))
        opened = asyncio.ensure_future(self._gate.opened.wait())
        try:
            await asyncio.wait((asked, opened), return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        finally:
            asked.cancel()
            opened.cancel()


async def store_forwarded(gate: Gate, request: sync_pb2.ForwardRequest) -> pb.PublishAnswer:
    """Store a request that another node forwards, and return the answer to it."""
    try:
        schema = gate.decoder(request.stream).schema
        batch = pa.ipc.read_record_batch(pa.py_buffer(request.batch), schema)
        who = request.producer, request.sequence, request.digest
        receipt = await gate.submit(request.stream, batch, Submission(*who, batch.num_rows))
    except Rejected as refusal:
        return refused(request.id, refusal)
    return stored(request.id, receipt)


def _message(stream: str, batch: pa.RecordBatch, submission: Submission) -> sync_pb2.ForwardRequest:
    return sync_pb2.ForwardRequest(
        stream=stream,
        producer=submission.producer,
        sequence=submission.sequence,
        digest=submission.digest,
        batch=batch.serialize().to_pybytes(),
    )
