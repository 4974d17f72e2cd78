"""A producer that sends one event after the other, and notes how long each waited for its ack."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from ha_engine.client import Producer


class SteadyProducer:
    """Sends events with growing ids from a thread while a ``with`` block lasts. ``acked`` counts
    them, and ``longest`` is the longest wait for an ack so far, in seconds."""

    def __init__(self, urls: list[str], stream: str, name: str = "steady") -> None:
        self._urls, self._stream, self._name = urls, stream, name
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acked, self.longest = 0, 0.0

    def __enter__(self) -> SteadyProducer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(self._urls, producer_id=self._name) as producer:
            while not self._end.is_set():
                began = time.monotonic()
                producer.send(self._stream, [{"id": self.acked, "text": "x"}])
                producer.flush()
                self.longest = max(self.longest, time.monotonic() - began)
                self.acked += 1
