"""Requests at even times, whatever the nodes do meanwhile: an open loop, as Arrow by the client.

What a request waits counts from the moment at which it was due, so one that stands behind a slow
one counts its wait too (coordinated omission).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.workload import events
from ha_engine.client.async_producer import IN_FLIGHT_MAX, Ack, AsyncProducer
from ha_engine.client.payload import of_batch

LEAD_SECONDS = 0.1

Times = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Schedule:
    """``count`` requests of ``rows`` events each, whose ids follow one another from ``first``."""

    first: int
    rows: int
    a_second: float
    count: int

    @classmethod
    def of_rate(cls, first: int, rate: float, seconds: float, a_second: float) -> Schedule:
        """``rate`` events a second in at most ``a_second`` requests."""
        a_second = min(rate, a_second)
        return cls(
            first, max(1, round(rate / a_second)), a_second, max(1, round(a_second * seconds))
        )

    @property
    def events(self) -> int:
        return self.count * self.rows

    @property
    def rate(self) -> float:
        return self.rows * self.a_second

    def requests(self) -> Iterator[tuple[int, int]]:
        """First id and number of events of each."""
        return ((self.first + number * self.rows, self.rows) for number in range(self.count))

    def last_ids(self) -> list[int]:
        return [first + rows - 1 for first, rows in self.requests()]


@dataclass
class Sent:
    """When each request was due and acknowledged, in seconds since 1970; grows while it is sent."""

    schedule: Schedule
    due: list[float] = field(default_factory=list)
    acked: list[float] = field(default_factory=list)

    @property
    def ack_seconds(self) -> Times:
        """From the moment at which it was due."""
        found: Times = np.array(self.acked) - np.array(self.due)
        return found


def send(urls: Sequence[str], stream: str, sent: Sent) -> Sent:
    """All of its schedule, to the group of nodes at ``urls``; returns when all is acknowledged."""
    asyncio.run(_send(urls, stream, sent))
    return sent


async def _send(urls: Sequence[str], stream: str, sent: Sent) -> None:
    def acknowledged(ack: Ack) -> None:
        sent.acked.append(time.time())

    schedule = sent.schedule
    producer = AsyncProducer(urls, in_flight=IN_FLIGHT_MAX, on_ack=acknowledged)
    async with producer:
        await producer.columns(stream)  # finds the active before the first one is due
        began = time.time() + LEAD_SECONDS
        for number, (first, rows) in enumerate(schedule.requests()):
            payload = of_batch(events(first, rows))
            due = began + number / schedule.a_second
            await asyncio.sleep(max(0.0, due - time.time()))
            sent.due.append(due)
            await producer.send_payload(stream, payload)
