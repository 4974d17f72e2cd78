"""Prometheus metrics of a receiver. docs/METRICS.md has their table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ha_engine import __version__
from ha_engine.api.prometheus import refusals
from ha_engine.receive.byte_budget import ByteBudget
from ha_engine.web.closed import Closed

_ACK_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Waiting(Protocol):
    """The part of the store that a scrape reads."""

    budget: ByteBudget

    @property
    def waiting(self) -> dict[str, int]:
        """By stream, the events that wait for the brokers."""

    @property
    def problems(self) -> dict[str, str | None]:
        """By stream, the reason why it takes no events now, or None."""

    @property
    def under_replicated(self) -> dict[str, int]:
        """By stream, the partitions with a replica that is not in sync."""


class ReceiverMetrics:
    """Counts the requests of a receiver; implements ``store.ReceiverCounters``."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        Info("ha_engine_receiver_build", "Version of the receiver.", registry=registry).info(
            {"version": __version__}
        )
        self._rows = Counter(
            "ha_engine_receiver_rows",
            "Events that the brokers have.",
            ["stream"],
            registry=registry,
        )
        self._bytes = Counter(
            "ha_engine_receiver_bytes",
            "Bytes of the keys and values of these events.",
            ["stream"],
            registry=registry,
        )
        self._repeated = Counter(
            "ha_engine_receiver_repeated_rows",
            "Events of requests that repeated a request that still waited for the brokers.",
            ["stream"],
            registry=registry,
        )
        self._failed = Counter(
            "ha_engine_receiver_failed_requests",
            "Requests of which the brokers did not take all events.",
            ["stream"],
            registry=registry,
        )
        self._rejected = Counter(
            "ha_engine_receiver_requests_rejected",
            "Refused requests.",
            ["reason"],
            registry=registry,
        )
        for reason in refusals():  # Prometheus sees no increase in the first value of a series
            self._rejected.labels(reason)
        self._ack = Histogram(
            "ha_engine_receiver_ack_seconds",
            "Time from a request's validated events to the answer of the brokers.",
            ["stream"],
            buckets=_ACK_BUCKETS,
            registry=registry,
        )

    def attach(self, store: Waiting, closed: Mapping[str, int]) -> None:
        """Show at each scrape what waits in ``store``, and the connections in ``closed``, by the
        reason why they were closed."""
        for stream in store.problems:
            for counter in (self._rows, self._bytes, self._repeated, self._failed, self._ack):
                counter.labels(stream)
        self.registry.register(_AtScrape(store, closed))

    def accepted(self, stream: str, rows: int, seconds: float) -> None:
        self._rows.labels(stream).inc(rows)
        self._ack.labels(stream).observe(seconds)

    def written(self, stream: str, size: int) -> None:
        self._bytes.labels(stream).inc(size)

    def failed(self, stream: str) -> None:
        self._failed.labels(stream).inc()

    def duplicate(self, stream: str, rows: int) -> None:
        self._repeated.labels(stream).inc(rows)

    def rejected(self, stream: str, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def exposition(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class _AtScrape:
    def __init__(self, store: Waiting, closed: Mapping[str, int]) -> None:
        self._store, self._closed = store, closed

    def collect(self) -> Iterator[Metric]:
        problems = self._store.problems
        yield _gauge(
            "brokers_available",
            "1 while the brokers of the stream's topic take events.",
            {stream: float(problem is None) for stream, problem in problems.items()},
        )
        yield _gauge(
            "under_replicated_partitions",
            "Partitions of the topic with a replica that is not in sync.",
            {stream: float(count) for stream, count in self._store.under_replicated.items()},
        )
        yield _gauge(
            "waiting_rows",
            "Events that wait for the brokers.",
            {stream: float(self._store.waiting[stream]) for stream in problems},
        )
        yield GaugeMetricFamily(
            "ha_engine_receiver_waiting_bytes",
            "Bytes of bodies that are being read, and of events that wait for the brokers.",
            value=self._store.budget.taken,
        )
        connections = CounterMetricFamily(
            "ha_engine_receiver_connections_closed",
            "Connections and gRPC streams that the receiver closed because of their clients.",
            labels=["reason"],
        )
        for reason in Closed:
            connections.add_metric([reason], self._closed.get(reason, 0))
        yield connections


def _gauge(name: str, text: str, values: dict[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(f"ha_engine_receiver_{name}", text, labels=["stream"])
    for stream, value in values.items():
        gauge.add_metric([stream], value)
    return gauge
