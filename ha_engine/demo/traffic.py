"""Send traffic as a producer for as long as needed, and measure the gaps between acks."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa

from ha_engine.client import Ack, Producer

Moment = tuple[float, int]
"""The time of an ack in seconds since 1970, and the epoch of the ack."""
EVERY_SECONDS, PAUSE_SECONDS_MAX = 0.02, 0.5
REST = 4
"""After each request the thread pauses for this multiple of the request's duration, so that Spark
gets CPU on a slow host."""
ROWS_PER_SEND = 2_000
STOP_SECONDS_MAX = 10.0


class Traffic(threading.Thread):
    """Sends ``rows`` to ``stream`` in small requests, one after the other, and notes each ack.

    Each second the thread sends the fraction 1/``fade`` of the remaining rows, so that rows remain
    until ``finish`` sends them. ``sent`` counts the acked rows. No request has a deadline, because
    the watch detects when the demo makes no progress.
    """

    def __init__(self, urls: Sequence[str], stream: str, rows: pa.Table, fade: float) -> None:
        super().__init__(name="traffic", daemon=True)
        self._urls, self._stream = list(urls), stream
        self.rows = rows.combine_chunks()
        self._fade = fade
        self._finish, self._ended = threading.Event(), threading.Event()
        self.acks: list[Moment] = []
        self.sent = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Producer(self._urls, deadline=math.inf, on_ack=self._acked) as producer:
                self._send_all(producer)
        except BaseException as error:
            self.error = error

    def _send_all(self, producer: Producer) -> None:
        before = time.monotonic() - EVERY_SECONDS
        while self.sent < self.rows.num_rows and not self._ended.is_set():
            began = time.monotonic()
            self._send(producer, began - before)
            before, took = began, time.monotonic() - began
            self._finish.wait(min(max(EVERY_SECONDS, REST * took), PAUSE_SECONDS_MAX))

    def _send(self, producer: Producer, elapsed: float) -> None:
        batch = self._next(elapsed)
        producer.send(self._stream, batch)
        producer.flush()
        self.sent += batch.num_rows

    def _next(self, elapsed: float) -> pa.RecordBatch:
        """The rows that follow the sent ones, as many as belong to ``elapsed`` seconds."""
        left = self.rows.num_rows - self.sent
        share = ROWS_PER_SEND if self._finish.is_set() else int(left * elapsed / self._fade)
        return self.rows.slice(self.sent, min(max(1, share), ROWS_PER_SEND)).to_batches()[0]

    def _acked(self, ack: Ack) -> None:
        # An ack of a retry has no position if the nodes have forgotten the request's position.
        epoch = ack.position.epoch if ack.position else self.acks[-1][1]
        self.acks.append((time.time(), epoch))

    def acked_since(self, at: float) -> bool:
        """Whether an ack arrived after ``at``. Raises the error that ended the traffic, if any."""
        self.require_well()
        return bool(self.acks) and self.acks[-1][0] > at

    def require_well(self) -> None:
        """Raise the error that ended the traffic, if any."""
        if self.error is not None:
            raise self.error

    @property
    def is_done(self) -> bool:
        return bool(self.sent == self.rows.num_rows)

    def finish(self) -> None:
        """Send the remaining rows as fast as possible from now on."""
        self._finish.set()

    def stop(self) -> None:
        """Send no more requests, and wait at most STOP_SECONDS_MAX for a request in flight.

        The wait has a limit, because perhaps no node is left that can answer the request.
        """
        self._ended.set()
        self._finish.set()
        if self.ident is not None:
            self.join(STOP_SECONDS_MAX)


def gap_across(moments: Sequence[Moment], since: float, epoch: int) -> float:
    """The longest gap in seconds between acks that ends after ``since``, up to the first ack of an
    epoch later than ``epoch``.

    The outage is not always the last gap before the later epoch. The first ack of a new active may
    answer a retry of a request that the old active stored under its epoch.
    """
    later = next((n for n, (_, found) in enumerate(moments) if found > epoch), len(moments))
    return longest_gap(moments[: later + 1], since)


def longest_gap(moments: Sequence[Moment], since: float) -> float:
    """The longest gap in seconds between two acks, among the gaps that end after ``since``."""
    pairs = pairwise(list(moments))
    return max((after - before for (before, _), (after, _) in pairs if after >= since), default=0.0)
