"""Measure how far the retention of a topic is from the records that a node may still need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ha_engine.connectors.kafka.cluster import Cluster
from ha_engine.connectors.kafka.errors import SOURCE
from ha_engine.connectors.kafka.offsets import Positions
from ha_engine.connectors.kafka.options import ClusterOptions
from ha_engine.types import LogHeadroom


def headroom(
    needed: Sequence[int], first: Mapping[int, int], last: Mapping[int, int]
) -> LogHeadroom | None:
    """The headroom if a node needs the records from ``needed`` on, or None if it needs none.

    ``first`` and ``last`` are where each partition begins and ends.
    """
    found = (
        LogHeadroom(number, at - first[number], last[number] - first[number])
        for number, at in enumerate(needed)
        if at < last[number]
    )
    return min(found, key=lambda one: one.share, default=None)


class TopicRetention:
    """Asks the brokers for the headroom of a topic."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None

    def headroom(self, needed: str) -> LogHeadroom | None:
        """The headroom if a node needs the records from the journal's offset ``needed`` on.

        The call blocks. Raises SourceRefused, SourceUnavailable.
        """
        if self._cluster is None:
            self._cluster = Cluster(self._options, SOURCE)
        topic, positions = self._options.topic, Positions.parse(needed)
        numbers = range(len(positions.next))
        first, last = self._cluster.first(topic, numbers), self._cluster.last(topic, numbers)
        return headroom(positions.next, first, last)
