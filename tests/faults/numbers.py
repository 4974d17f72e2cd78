"""A producer of numbered rows, and the outputs that must have each number once."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Protocol

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import text

from ha_engine.client import Producer
from ha_engine.postgres.engine import open_engine

ROWS, EVERY_SECONDS = 20, 0.25
"""The producer sends so many rows, one such request after the other."""
REQUEST_ROWS_MAX = 5_000
BATCH_ROWS_MAX = 20_000
LATE_ROWS = 5 * BATCH_ROWS_MAX // 2
"""A row is lost if an output lacks it, but has one that was sent so many rows later. While a batch
is written to buckets, or to a topic without transactions, an output has later rows without earlier
ones: of two batches at most."""


class Numbers:
    """Sends the numbers 0, 1, 2, ... with their times to ``stream``; ``sent`` are acknowledged."""

    def __init__(self, urls: Sequence[str], stream: str) -> None:
        self._stream = stream
        self._producer = Producer(urls, deadline=math.inf)
        self._error: BaseException | None = None
        self.sent = 0

    def send(self, count: int) -> None:
        end = self.sent + count
        for first in range(self.sent, end, REQUEST_ROWS_MAX):
            numbers = range(first, min(first + REQUEST_ROWS_MAX, end))
            now = pa.array([datetime.now(UTC)] * len(numbers), pa.timestamp("us", "UTC"))
            rows = pa.record_batch({"n": pa.array(numbers, pa.int64()), "at": now})
            self._producer.send(self._stream, rows)
            self._producer.flush()
        self.sent = end

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Send ROWS again and again in a thread."""
        ended = threading.Event()
        thread = threading.Thread(target=self._flow, args=(ended,), name="numbers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _flow(self, ended: threading.Event) -> None:
        try:
            while not ended.wait(EVERY_SECONDS):
                self.send(ROWS)
        except BaseException as error:
            self._error = error

    def require_well(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._error is not None:
            raise self._error


@dataclass(frozen=True)
class Verdict:
    """The count of wrong rows in an output. ``strange`` are numbers that nobody has sent."""

    output: str
    lost: int
    twice: int
    strange: int

    @property
    def is_wrong(self) -> bool:
        return bool(self.lost or self.twice or self.strange)


class Output(Protocol):
    """A destination of numbers."""

    name: str

    def numbers(self, first: int = 0) -> Counter[int]:
        """Return the numbers from ``first`` on that are there, and how often."""
        ...

    def doubled(self) -> int:
        """Return how many rows have a number that another row has."""
        ...

    def moments(self, since: float) -> list[float]:
        """Return the times after ``since`` at which rows arrived, in seconds since 1970."""
        ...


class Table:
    """A table of a ``postgres`` sink, which notes the time of each row, until ``close``."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._engine = open_engine(url).execution_options(isolation_level="AUTOCOMMIT")
        with self._engine.connect() as connection:
            time_of_row = "at timestamptz DEFAULT clock_timestamp()"
            connection.execute(text(f"CREATE TABLE {name} (n bigint NOT NULL, {time_of_row})"))
            for column in ("n", "at"):
                connection.execute(text(f"CREATE INDEX ON {name} ({column})"))

    def numbers(self, first: int = 0) -> Counter[int]:
        select = text(f"SELECT n FROM {self.name} WHERE n >= :first")
        with self._engine.connect() as connection:
            return Counter(connection.execute(select, {"first": first}).scalars())

    def doubled(self) -> int:
        select = text(f"SELECT count(*) - count(DISTINCT n) FROM {self.name}")
        with self._engine.connect() as connection:
            return int(connection.execute(select).scalar_one())

    def moments(self, since: float) -> list[float]:
        seconds = "extract(epoch FROM at)::float8"
        select = text(
            f"SELECT DISTINCT {seconds} FROM {self.name} WHERE at > to_timestamp(:since) ORDER BY 1"
        )
        with self._engine.connect() as connection:
            return list(connection.execute(select, {"since": since}).scalars())

    def close(self) -> None:
        self._engine.dispose()


class Topic(threading.Thread):
    """Reads the committed records of ``topic``, which has one partition, and notes when they
    arrive."""

    def __init__(self, brokers: Sequence[str], topic: str) -> None:
        super().__init__(name=topic, daemon=True)
        self.name = topic
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._numbers = Counter[int]()
        self._moments = list[float]()
        address = {"bootstrap.servers": ",".join(brokers), "log_level": 0, "group.id": topic}
        terms = {"isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer(address | terms | {"reconnect.backoff.max.ms": 500})
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def run(self) -> None:
        while not self._ended.is_set():
            found = self._consumer.consume(10_000, timeout=0.05)
            values = [one.value() for one in found if one.error() is None]
            with self._lock:
                self._numbers.update(json.loads(value)["n"] for value in values)
                self._moments += [time.time()] if values else []
        self._consumer.close()

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def numbers(self, first: int = 0) -> Counter[int]:
        with self._lock:
            return Counter({n: count for n, count in self._numbers.items() if n >= first})

    def doubled(self) -> int:
        with self._lock:
            return self._numbers.total() - len(self._numbers)

    def moments(self, since: float) -> list[float]:
        with self._lock:
            return [moment for moment in self._moments if moment > since]


@contextmanager
def reading(brokers: Sequence[str], name: str) -> Iterator[Topic]:
    topic = Topic(brokers, name)
    topic.start()
    try:
        yield topic
    finally:
        topic.stop()


def verdict_of(output: str, found: Counter[int], wanted: range) -> Verdict:
    """Judge the numbers that an output has against those that it must have."""
    lost = sum(number not in found for number in wanted)
    twice = sum(found[number] - 1 for number in wanted if number in found)
    strange = sum(number not in wanted for number in found)
    return Verdict(output, lost, twice, strange)


def has_settled(found: Counter[int], wanted: range) -> bool:
    """Return whether all numbers are there, or one that is missing is lost."""
    missing = next((number for number in wanted if number not in found), None)
    return missing is None or max(found, default=0) >= missing + LATE_ROWS


def longest_gap(moments: Sequence[float], since: float) -> float:
    """Return the longest time without a row, from ``since`` to the last row."""
    return max((after - before for before, after in pairwise([since, *moments])), default=0.0)
