"""Prometheus metrics of an observer: its own view. docs/METRICS.md has their table."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ha_engine import __version__
from ha_engine.observer.following import Following

_PREFIX = "ha_engine_observer_"


class ObserverMetrics:
    """The metrics of what ``following`` knows, read at each scrape."""

    def __init__(self, following: Following) -> None:
        self._following, self._registry = following, CollectorRegistry()
        Info(f"{_PREFIX}build", "Version of the observer.", registry=self._registry).info(
            {"version": __version__}
        )
        self._registry.register(self)

    def exposition(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._nodes()
        yield from self._queries()

    def _nodes(self) -> Iterator[Metric]:
        answers = GaugeMetricFamily(
            f"{_PREFIX}node_answers", "1 while the node answers the observer.", labels=["node"]
        )
        age = GaugeMetricFamily(
            f"{_PREFIX}node_answer_age_seconds",
            "Age of the node's last answer; absent before the first one.",
            labels=["node"],
        )
        for node in self._following.nodes:
            answers.add_metric([node.name], float(node.is_fresh))
            if node.age is not None:
                age.add_metric([node.name], node.age)
        yield from (answers, age)

    def _queries(self) -> Iterator[Metric]:
        received = CounterMetricFamily(
            f"{_PREFIX}batches", "Published batches that the observer got.", labels=["query"]
        )
        missed = CounterMetricFamily(
            f"{_PREFIX}missed_batches",
            "Published batches that no node had any more when the observer asked.",
            labels=["query"],
        )
        last = GaugeMetricFamily(
            f"{_PREFIX}last_batch", "Number of the newest batch.", labels=["query"]
        )
        rows = GaugeMetricFamily(
            f"{_PREFIX}rows", "Rows that the observer keeps.", labels=["query"]
        )
        size = GaugeMetricFamily(
            f"{_PREFIX}bytes", "Bytes of the batches that the observer keeps.", labels=["query"]
        )
        for query, progress in list(self._following.store.progress.items()):
            kept = self._following.store.batches(query)
            received.add_metric([query], progress.received)
            missed.add_metric([query], progress.missed)
            last.add_metric([query], progress.last or 0)
            rows.add_metric([query], sum(one.rows for one in kept))
            size.add_metric([query], sum(one.bytes for one in kept))
        yield from (received, missed, last, rows, size)
