"""The room between the first record that Kafka has and the first one that a node may need."""

from __future__ import annotations

import pytest

from ha_engine.connectors.kafka.retention import headroom
from ha_engine.types import LogHeadroom


@pytest.mark.parametrize(
    ("needed", "first", "last", "found"),
    [
        ([70], [50], [100], LogHeadroom(0, 20, 50)),
        ([70, 5], [50, 4], [100, 9], LogHeadroom(1, 1, 5)),  # least of what Kafka has
        ([70, 9], [50, 9], [100, 9], LogHeadroom(0, 20, 50)),  # nothing in the second can be lost
        ([70], [80], [100], LogHeadroom(0, -10, 20)),
        ([0], [0], [100], LogHeadroom(0, 0, 100)),
        ([100], [50], [100], None),
        ([70], [100], [100], LogHeadroom(0, -30, 0)),
        ([], [], [], None),
    ],
)
def test_headroom_is_that_of_the_partition_with_the_least(
    needed: list[int], first: list[int], last: list[int], found: LogHeadroom | None
) -> None:
    assert headroom(needed, dict(enumerate(first)), dict(enumerate(last))) == found
