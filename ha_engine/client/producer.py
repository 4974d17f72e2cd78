"""Send events to a group of nodes: find the active, send batches, and retry without duplicates.

    with Producer(["http://a:8080", "http://b:8080"]) as producer:
        producer.send("flights", [{"origin": "EWR", "at": "2013-01-01T05:15:00Z"}])

``Producer`` wraps an ``AsyncProducer`` for code that is not asynchronous. The ``AsyncProducer``
runs on an event loop in a thread of its own. Every call of ``Producer`` waits for a call of
``AsyncProducer``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Self, TypeVar

import pyarrow as pa

from ha_engine.client.async_producer import (
    BATCH_BYTES,
    BATCH_ROWS,
    IN_FLIGHT_MAX,
    Ack,
    AsyncProducer,
    lines_of,
)
from ha_engine.client.payload import Payload
from ha_engine.client.transport import RemoteColumn

__all__ = ["IN_FLIGHT_MAX", "Ack", "Producer"]

Result = TypeVar("Result")


class Producer:
    """Sends a sequence of requests under one producer id; for one thread.

    Settings, errors and methods are those of ``AsyncProducer``, with one difference: ``on_ack`` is
    called on the caller's thread, during a call.
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
        self._acks: deque[Ack] = deque()
        self._core = AsyncProducer(
            endpoints,
            producer_id=producer_id,
            first_sequence=first_sequence,
            repeats=repeats,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            linger=linger,
            in_flight=in_flight,
            deadline=deadline,
            on_ack=None if on_ack is None else self._acks.append,
        )
        self._on_ack = on_ack
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="producer", daemon=True)
        self._thread.start()

    @property
    def producer_id(self) -> str:
        return self._core.producer_id

    @property
    def rows_acked(self) -> int:
        return self._core.rows_acked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    # -- sending -----------------------------------------------------------------------------------

    def send(self, stream: str, rows: Iterable[dict[str, Any]] | pa.RecordBatch) -> None:
        """See AsyncProducer. The caller's thread encodes rows as JSON while earlier rows are in
        flight."""
        for lines in lines_of(rows, self._core.batch_rows):
            self._run(self._core.gather(stream, lines))

    def send_batch(self, stream: str, batch: pa.RecordBatch) -> None:
        """See AsyncProducer."""
        self._run(self._core.send_batch(stream, batch))

    def send_payload(self, stream: str, payload: Payload) -> None:
        """See AsyncProducer."""
        self._run(self._core.send_payload(stream, payload))

    def flush(self) -> None:
        """Send all gathered rows, and return when every row is acked."""
        self._run(self._core.flush())

    def close(self) -> None:
        """Flush, then close the connections."""
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Drop gathered rows, wait for requests in flight without retries, and close the
        connections."""
        if self._loop.is_closed():
            return
        try:
            self._run(self._core.abandon())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def columns(self, stream: str) -> list[RemoteColumn]:
        """The columns of ``stream``. Raises UnknownStream, DeliveryFailed."""
        return self._run(self._core.columns(stream))

    # -- internals ---------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run ``work`` on the producer's event loop to its end, unless the caller's thread is
        interrupted."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        finally:
            running.cancel()
            self._notify()

    def _notify(self) -> None:
        while self._acks and self._on_ack is not None:
            self._on_ack(self._acks.popleft())
