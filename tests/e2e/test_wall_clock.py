"""A host's clock is an hour off, and jumps: no lease, takeover or ack changes (RULES.md#i2,
RULES.md#r4).

Two real nodes, without Spark. The wall clock of one is ten minutes late at its start, and an hour
early two seconds later.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.e2e.without_spark import APPLICATION, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly("no clock is read in the core, which test_tidy holds"),
]

PATIENCE = 60
JUMPING = """
import sys, time
own, own_ns, began = time.time, time.time_ns, time.monotonic()
offset = lambda: 3600 if time.monotonic() > began + 2 else -600
time.time = lambda: own() + offset()
time.time_ns = lambda: own_ns() + offset() * 1_000_000_000
from ha_engine.node import __main__ as node
sys.exit(node.main())
"""


@pytest.fixture
def pair(node_database: str, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, APPLICATION, node_database, NodeWithoutSpark)
    assert isinstance(pair.b, NodeWithoutSpark)
    pair.b.program = ("-c", JUMPING)
    with running_pair(pair):
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        yield pair


def test_wall_clock_an_hour_off_changes_no_lease_takeover_or_ack(pair: Pair) -> None:
    successors: set[str] = set()
    for number in range(2):
        active = pair.active()
        assert active is not None
        successor = pair.other(active)
        assert _send(active, number)
        active.kill_everything()
        wait_until(successor.is_active, within=PATIENCE, every=0.05)
        assert _send(successor, 10 + number)
        successors.add(successor.name)
        active.start()
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        assert pair.active() is successor
    assert successors == {"node-a", "node-b"}
    assert same_journal(pair)


def _send(node: NodeUnderTest, number: int) -> bool:
    answer = node.send("events", [{"id": number, "text": "x"}], ("producer", number))
    return answer.status_code == 200
