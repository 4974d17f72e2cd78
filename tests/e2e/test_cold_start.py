"""Both nodes are killed at once and start again in every order, with and without the disk of one.

No acked event is lost where the disk of one in-sync node survives. Without Spark: acked events are
in the journals, and only the journals and the lease decide which node may continue.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal, stored_events
from tests.e2e.without_spark import APPLICATION, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 60
REQUESTS, ROWS = 10, 5

CASES = {
    "both at once": (None, None),
    "the former active first": (None, "active"),
    "the former passive first": (None, "passive"),
    "the active's disk is lost, and both come at once": ("active", None),
    "the active's disk is lost, and it comes first": ("active", "active"),
    "the active's disk is lost, and it comes last": ("active", "passive"),
    "the passive's disk is lost, and both come at once": ("passive", None),
    "the passive's disk is lost, and it comes first": ("passive", "passive"),
    "the passive's disk is lost, and it comes last": ("passive", "active"),
}
"""The node whose disk is lost, and the node that starts first."""


IN_SHORT = ("both at once", "the active's disk is lost, and it comes first")
NIGHTLY = pytest.mark.nightly("two of the cases are the others in short")
MARKED = [
    pytest.param(*case, id=name, marks=() if name in IN_SHORT else NIGHTLY)
    for name, case in CASES.items()
]


@pytest.mark.parametrize(("lost", "first"), MARKED)
def test_no_acked_event_is_lost_in_a_cold_start(
    node_database: str, tmp_path: Path, lost: str | None, first: str | None
) -> None:
    pair = Pair(tmp_path, APPLICATION, node_database, NodeWithoutSpark)
    with running_pair(pair):
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        active = pair.active()
        assert active is not None
        nodes = {"active": active, "passive": pair.other(active)}
        for number in range(REQUESTS):
            _send(active, number)
        for node in nodes.values():
            node.kill_everything()
        if lost is not None:
            shutil.rmtree(nodes[lost].data_dir)
        _start(nodes, first, lost)
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        successor = pair.active()
        assert successor is not None
        assert lost is None or successor is not nodes[lost]
        _send(successor, REQUESTS)
        assert same_journal(pair)
        for node in nodes.values():
            node.stop()
    for node in nodes.values():
        assert sum(events.rows for events in stored_events(node)) == (REQUESTS + 1) * ROWS


def _send(node: NodeUnderTest, number: int) -> None:
    rows = [{"id": ROWS * number + n, "text": "x"} for n in range(ROWS)]
    assert node.send("events", rows, identity=("p", number)).status_code == 200


def _start(nodes: dict[str, NodeUnderTest], first: str | None, lost: str | None) -> None:
    """Start the first node, and the second once the first has the role that it can have alone."""
    order = [*nodes] if first is None else [first, *(name for name in nodes if name != first)]
    for name in order:
        nodes[name].start()
        if name == first:
            wait_until(
                lambda: _has_its_role(nodes[first], has_its_disk=first != lost),
                within=PATIENCE,
                every=0.1,
            )


def _has_its_role(node: NodeUnderTest, *, has_its_disk: bool) -> bool:
    """Return whether the node is active, or waits with a reason if it lost its disk."""
    if has_its_disk:
        return node.is_active()
    status = node.status()
    return status is not None and "bring back the data directory that it lists" in status["reason"]
