"""Send events to a group of nodes: find the active, batch, retry, never store an event twice.

    with Producer(["http://a:8080", "http://b:8080"]) as producer:
        producer.send("flights", [{"origin": "EWR", "at": "2013-01-01T05:15:00Z"}])

Every request carries the producer's id and the next sequence, so the nodes recognise a retry, also
after a failover (I11), and by default rows are stored in the order in which they were sent. A
request is repeated unchanged until it is answered. Threads, not asyncio.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa

from ha_engine.client.endpoints import Endpoints, Outcome, RemoteColumn, Stored
from ha_engine.client.payload import Payload, as_line, of_batch, of_lines
from ha_engine.errors import InvalidEvents
from ha_engine.types import Position

IN_FLIGHT_MAX = 32
"""Half of the sequences that a node keeps by default (``receive.sequences_kept``): with more, a
slow request could fall out of what the node remembers while later ones pass it (R27)."""


@dataclass(frozen=True, slots=True)
class Ack:
    """``rows`` rows, from ``first_row`` of what this producer sent to ``stream``, are committed.

    ``position`` is None when the nodes only remember that the sequence was used long ago.
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


class Producer:
    """One sequence of requests under one producer id; for one thread.

    ``producer_id`` and ``first_sequence`` let a later process go on, or repeat an earlier run: the
    same requests under the same sequences are stored once. With ``repeats`` a sequence that the
    nodes no longer remember counts as stored then, else it raises SequenceForgotten. ``deadline``
    seconds bound the retries of one request. While one is in flight, the next is gathered. With
    ``in_flight`` above 1, requests that are repeated after a failure may change places, and a row
    that comes late may lie behind a watermark by then. ``on_ack`` is called on the caller's
    thread, in the order of the sequences.

    ``send``, ``flush`` and ``close`` raise DeliveryFailed when no node took a request before the
    deadline, InvalidEvents when rows do not fit the stream (``row`` counts all rows sent to it),
    and the other Rejected errors as the node says them. Only what ``on_ack`` has told is surely
    stored.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        producer_id: str | None = None,
        first_sequence: int = 0,
        repeats: bool = False,
        batch_rows: int = 1_000,
        in_flight: int = 1,
        deadline: float = 60.0,
        on_ack: Callable[[Ack], None] | None = None,
    ) -> None:
        if not 1 <= in_flight <= IN_FLIGHT_MAX:
            raise ValueError(f"in_flight must be from 1 to {IN_FLIGHT_MAX}, not {in_flight}")
        if batch_rows < 1:
            raise ValueError(f"batch_rows must be at least 1, not {batch_rows}")
        self.producer_id = producer_id or uuid4().hex
        self.rows_acked = 0
        self._endpoints = Endpoints(
            endpoints, self.producer_id, deadline, repeats=repeats, width=in_flight
        )
        self._sequence, self._batch_rows = first_sequence, batch_rows
        self._in_flight_max = in_flight
        self._on_ack = on_ack
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="producer")
        self._in_flight: deque[tuple[_Request, Future[Outcome]]] = deque()
        self._gathered: dict[str, list[bytes]] = {}
        self._rows_sent: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    # -- sending -----------------------------------------------------------------------------------

    def send(self, stream: str, rows: Iterable[dict[str, Any]] | pa.RecordBatch) -> None:
        """Gather ``rows`` and send every full batch; returns before they are acknowledged.

        Values are those of JSON; dates and timestamps may also be datetime objects, decimals
        Decimal, binary bytes.
        """
        if isinstance(rows, pa.RecordBatch):
            rows = rows.to_pylist()
        for row in rows:
            gathered = self._gathered.setdefault(stream, [])
            gathered.append(as_line(row))
            if len(gathered) >= self._batch_rows:
                self._send_gathered(stream)

    def send_lines(self, stream: str, lines: Sequence[bytes]) -> None:
        """Send rows that are NDJSON already as one request, after what was gathered before."""
        self.send_payload(stream, of_lines(lines))

    def send_batch(self, stream: str, batch: pa.RecordBatch) -> None:
        """Send rows as Arrow, after what was gathered before: a fraction of the work of JSON.

        Columns go by name; the node takes a type that can stand for the stream's without loss, and
        says which one cannot.
        """
        for first in range(0, batch.num_rows, self._batch_rows):
            self.send_payload(stream, of_batch(batch.slice(first, self._batch_rows)))

    def send_payload(self, stream: str, payload: Payload) -> None:
        """Send rows that are bytes already as one request, after what was gathered before."""
        self._send_gathered(stream)
        self._make_room()
        self._dispatch(stream, payload)

    def flush(self) -> None:
        """Send what was gathered, and return when all of it is acknowledged."""
        for stream in list(self._gathered):
            self._send_gathered(stream)
        while self._in_flight:
            self._settle_oldest()

    def close(self) -> None:
        """Flush, then let go of the connections."""
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go: what is gathered is dropped, what is in flight gets one last chance."""
        self._endpoints.stop()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._collect_answers()
        self._endpoints.close()

    def columns(self, stream: str) -> list[RemoteColumn]:
        """The columns of ``stream``. Raises UnknownStream, DeliveryFailed."""
        return self._endpoints.columns(stream)

    # -- how ---------------------------------------------------------------------------------------

    def _send_gathered(self, stream: str) -> None:
        self._make_room()
        lines = self._gathered.pop(stream, None)
        if lines:
            self._dispatch(stream, of_lines(lines))

    def _make_room(self) -> None:
        while len(self._in_flight) >= self._in_flight_max:
            self._settle_oldest()

    def _dispatch(self, stream: str, payload: Payload) -> None:
        first_row = self._rows_sent.get(stream, 0)
        request = _Request(stream, self._sequence, first_row, payload.rows)
        self._sequence += 1
        self._rows_sent[stream] = first_row + payload.rows
        answer = self._threads.submit(self._endpoints.post, stream, request.sequence, payload)
        self._in_flight.append((request, answer))

    def _settle_oldest(self) -> None:
        request, answer = self._in_flight[0]
        answer.exception()  # waits; an interruption here leaves the request in its place
        self._in_flight.popleft()
        self._settle(request, answer.result())

    def _settle(self, request: _Request, outcome: Outcome) -> None:
        match outcome:
            case Stored(position):
                self.rows_acked += request.rows
                if self._on_ack is not None:
                    self._on_ack(_ack(request, position))
            case InvalidEvents(reason=reason, row=row) if row is not None:
                raise InvalidEvents(reason, request.first_row + row)
            case error:
                raise error

    def _collect_answers(self) -> None:
        """Acks that came in before the end still count."""
        while self._in_flight:
            request, answer = self._in_flight.popleft()
            if answer.done() and not answer.cancelled() and isinstance(answer.result(), Stored):
                self._settle(request, answer.result())


def _ack(request: _Request, position: Position | None) -> Ack:
    return Ack(request.stream, request.sequence, request.first_row, request.rows, position)
