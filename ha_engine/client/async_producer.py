"""Send events to a group of nodes: find the active, send batches, and retry without duplicates.

    async with AsyncProducer(["http://a:8080", "http://b:8080"]) as producer:
        await producer.send("flights", [{"origin": "EWR", "at": "2013-01-01T05:15:00Z"}])

Every request has the producer's id and the next sequence, so the nodes recognise a retry even after
a failover (RULES.md#i11). By default rows are stored in the order in which they were sent. A
request is repeated unchanged until a node answers it. The module ``producer`` wraps
``AsyncProducer`` for threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa

from ha_engine.client.endpoints import Endpoints, Outcome, Stored
from ha_engine.client.payload import Payload, as_line, of_batch, of_lines
from ha_engine.client.transport import RemoteColumn
from ha_engine.errors import EngineError, InvalidEvents
from ha_engine.types import Position

IN_FLIGHT_MAX = 32
"""Half of the sequences that a node remembers by default (``receive.dedup_window``). With more
requests in flight, a node could forget the sequence of a slow request while later requests overtake
it (RULES.md#r27)."""
BATCH_ROWS = 1_000
BATCH_BYTES = 1 << 20
"""A quarter of the largest body that a node accepts over gRPC by default (``ingest.max_body``)."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The confirmation that the ``rows`` rows of one request are committed.

    ``first_row`` is the number of the request's first row among all rows that the producer sent to
    ``stream``. ``position`` is None if the nodes only know that the sequence was used long ago.
    """

    stream: str
    sequence: int
    first_row: int
    rows: int
    position: Position | None


@dataclass(frozen=True, slots=True)
class _Request:
    stream: str
    sequence: int
    first_row: int
    rows: int


@dataclass(slots=True)
class _Gathered:
    lines: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.size += len(line) + 1


class AsyncProducer:
    """Sends a sequence of requests under one producer id; for one event loop.

    ``endpoints`` are URLs of nodes, such as ``http://host:8080`` or ``grpc://host:9894``. Over
    gRPC, all requests to a node share one stream. The producer sends a batch at ``flush``, or when
    the batch has ``batch_rows`` rows or ``batch_bytes`` bytes. The producer also sends a batch when
    its first row has waited for ``linger`` seconds, unless ``linger`` is None.

    With ``producer_id`` and ``first_sequence`` a later process can continue or repeat an earlier
    run. The nodes store equal requests with equal sequences once. A run that may be repeated must
    not use ``linger``, which splits rows into requests by time. With ``repeats``, a sequence that
    the nodes no longer remember counts as stored. Without ``repeats``, a forgotten sequence raises
    SequenceForgotten.

    ``deadline`` is the time limit for all retries of one request, in seconds. While one request is
    in flight, the producer gathers the rows of the next request. With ``in_flight`` above 1, a
    retry may be stored after later requests, and its rows may be older than a watermark. ``on_ack``
    is called in the order of the sequences, and must not raise.

    ``send``, ``flush`` and ``close`` raise DeliveryFailed when no node accepted a request before
    the deadline. ``send``, ``flush`` and ``close`` raise InvalidEvents when a row does not fit the
    stream, and the other ``Rejected`` errors of a node. The ``row`` of InvalidEvents is the number
    of the bad row among all rows sent to the stream. Only rows reported by ``on_ack`` are surely
    stored.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        producer_id: str | None = None,
        first_sequence: int = 0,
        repeats: bool = False,
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
        linger: float | None = None,
        in_flight: int = 1,
        deadline: float = 60.0,
        on_ack: Callable[[Ack], None] | None = None,
    ) -> None:
        _require_sane(batch_rows, batch_bytes, in_flight)
        self.producer_id = producer_id or uuid4().hex
        self.batch_rows, self._batch_bytes, self._linger = batch_rows, batch_bytes, linger
        self.rows_acked = 0
        self._endpoints = Endpoints(
            endpoints, self.producer_id, deadline, repeats=repeats, width=in_flight
        )
        self._sequence, self._in_flight_max, self._on_ack = first_sequence, in_flight, on_ack
        self._in_flight: deque[tuple[_Request, asyncio.Task[Outcome]]] = deque()
        self._gathered: dict[str, _Gathered] = {}
        self._rows_sent: dict[str, int] = {}
        # Calls of the linger timer and of the producer's owner must not overtake each other.
        self._turn = asyncio.Lock()
        self._timer: asyncio.Task[None] | None = None
        self._failed: EngineError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abandon()

    # -- sending -----------------------------------------------------------------------------------

    async def send(self, stream: str, rows: Iterable[dict[str, Any]] | pa.RecordBatch) -> None:
        """Gather ``rows`` and send every full batch; return before all rows are acked.

        The values of a row are JSON values. A date or timestamp may also be a datetime object, a
        decimal may be a Decimal, and a binary value may be bytes.
        """
        for lines in lines_of(rows, self.batch_rows):
            await self.gather(stream, lines)

    async def gather(self, stream: str, lines: Iterable[bytes]) -> None:
        """Like ``send``, for rows that are already encoded as lines of JSON."""
        async with self._turn:
            self._require_usable()
            for line in lines:
                gathered = self._gathered.setdefault(stream, _Gathered())
                gathered.add(line)
                if len(gathered.lines) >= self.batch_rows or gathered.size >= self._batch_bytes:
                    await self._send_gathered(stream)
            self._set_timer()

    async def send_batch(self, stream: str, batch: pa.RecordBatch) -> None:
        """Send the rows of ``batch`` as Arrow, after the gathered rows of ``stream``. Arrow costs a
        fraction of the work of JSON.

        A column of ``batch`` belongs to the stream's column of the same name. The node accepts a
        column whose type converts to the stream's type without loss, and names any other column.
        """
        rows = max(
            1, min(self.batch_rows, batch.num_rows * self._batch_bytes // (batch.nbytes + 1))
        )
        for first in range(0, batch.num_rows, rows):
            await self.send_payload(stream, of_batch(batch.slice(first, rows)))

    async def send_payload(self, stream: str, payload: Payload) -> None:
        """Send rows that are already encoded as one request, after the gathered rows of
        ``stream``."""
        async with self._turn:
            self._require_usable()
            await self._send_gathered(stream)
            await self._wait_for_space()
            self._dispatch(stream, payload)

    async def flush(self) -> None:
        """Send all gathered rows, and return when every row is acked."""
        async with self._turn:
            self._require_usable()
            await self._send_all_gathered()
            while self._in_flight:
                await self._settle_oldest()

    async def close(self) -> None:
        """Flush, then close the connections."""
        try:
            await self.flush()
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Drop gathered rows, wait for requests in flight without retries, and close the
        connections."""
        self._endpoints.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._in_flight:
            await asyncio.wait([answer for _, answer in self._in_flight])
        while self._in_flight:
            self._settle_stored()
            if self._in_flight:
                self._in_flight.popleft()
        await self._endpoints.close()

    async def columns(self, stream: str) -> list[RemoteColumn]:
        """The columns of ``stream``. Raises UnknownStream, DeliveryFailed."""
        return await self._endpoints.columns(stream)

    # -- internals ---------------------------------------------------------------------------------

    async def _send_all_gathered(self) -> None:
        for stream in list(self._gathered):
            await self._send_gathered(stream)

    async def _send_gathered(self, stream: str) -> None:
        await self._wait_for_space()
        gathered = self._gathered.pop(stream, None)
        if gathered is not None:
            self._dispatch(stream, of_lines(gathered.lines))

    async def _wait_for_space(self) -> None:
        while len(self._in_flight) >= self._in_flight_max:
            await self._settle_oldest()

    def _dispatch(self, stream: str, payload: Payload) -> None:
        first_row = self._rows_sent.get(stream, 0)
        request = _Request(stream, self._sequence, first_row, payload.rows)
        self._sequence += 1
        self._rows_sent[stream] = first_row + payload.rows
        posting = self._endpoints.post(stream, request.sequence, payload)
        answer = asyncio.create_task(posting, name=f"request {request.sequence}")
        answer.add_done_callback(lambda _: self._settle_stored())
        self._in_flight.append((request, answer))

    async def _settle_oldest(self) -> None:
        _, answer = self._in_flight[0]
        await asyncio.wait([answer])  # if cancelled here, the request keeps its place
        self._settle_stored()
        if self._in_flight and self._in_flight[0][1] is answer:
            request, _ = self._in_flight.popleft()
            raise _failure(request, answer.result())

    def _settle_stored(self) -> None:
        """Report stored requests to ``on_ack`` in the order of their sequences.

        A failed request stays in the queue until a caller of the producer waits and gets its error.
        """
        while self._in_flight:
            request, answer = self._in_flight[0]
            if not answer.done() or answer.cancelled():
                return
            match answer.result():
                case Stored(position):
                    self._in_flight.popleft()
                    self.rows_acked += request.rows
                    if self._on_ack is not None:
                        self._on_ack(_ack(request, position))
                case _:
                    return

    # -- linger ------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._linger is not None and self._gathered and self._timer is None:
            self._timer = asyncio.create_task(self._send_later(self._linger), name="linger")

    async def _send_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with self._turn:
            self._timer = None
            try:
                await self._send_all_gathered()
            except EngineError as error:
                self._failed = error

    def _require_usable(self) -> None:
        """Raise the error of a request that the linger timer sent while no caller waited."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed


def lines_of(
    rows: Iterable[dict[str, Any]] | pa.RecordBatch, rows_max: int
) -> Iterator[list[bytes]]:
    """Yield ``rows`` as lists of at most ``rows_max`` lines of JSON.

    Raises InvalidEvents at a bad row, after all rows before the bad one were yielded.
    """
    lines: list[bytes] = []
    try:
        for row in rows.to_pylist() if isinstance(rows, pa.RecordBatch) else rows:
            lines.append(as_line(row))
            if len(lines) >= rows_max:
                yield lines
                lines = []
    except InvalidEvents:
        yield lines
        raise
    yield lines


def _require_sane(batch_rows: int, batch_bytes: int, in_flight: int) -> None:
    if not 1 <= in_flight <= IN_FLIGHT_MAX:
        raise ValueError(f"in_flight must be from 1 to {IN_FLIGHT_MAX}, not {in_flight}")
    if batch_rows < 1 or batch_bytes < 1:
        raise ValueError(
            f"a batch must be at least 1 row and 1 byte, not {batch_rows}, {batch_bytes}"
        )


def _ack(request: _Request, position: Position | None) -> Ack:
    return Ack(request.stream, request.sequence, request.first_row, request.rows, position)


def _failure(request: _Request, outcome: Outcome) -> EngineError:
    match outcome:
        case InvalidEvents(reason=reason, row=int(row)):
            return InvalidEvents(reason, request.first_row + row)
        case EngineError() as error:
            return error
        case Stored():
            raise AssertionError("a stored request has not failed")
