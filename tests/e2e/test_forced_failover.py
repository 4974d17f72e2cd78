"""``ha-engine failover --force`` on two real nodes, one of which is gone. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.e2e.without_spark import APPLICATION, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE = 60


@pytest.fixture
def pair(node_database: str, tmp_path: Path) -> Iterator[Pair]:
    with running_pair(Pair(tmp_path, APPLICATION, node_database, NodeWithoutSpark)) as pair:
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        yield pair


def _send(node: NodeUnderTest, number: int) -> bool:
    events = [{"id": number, "text": "x"}]
    return bool(node.send("events", events).status_code == 200)


def _goes_on_alone(pair: Pair) -> tuple[NodeUnderTest, NodeUnderTest]:
    """Who was active and acked more than the other has, and is gone now; and the other, back."""
    lost = pair.active()
    assert lost is not None
    left = pair.other(lost)
    left.kill_everything()
    wait_until(lambda: _send(lost, 1), within=PATIENCE, every=0.1)
    lost.kill_everything()
    left.start()
    wait_until(lambda: (left.status() or {}).get("role") == "joining", within=PATIENCE)
    return lost, left


def test_an_operator_gives_up_what_the_lost_node_had_and_it_is_kept(pair: Pair) -> None:
    lost, left = _goes_on_alone(pair)
    words = ("failover", "--force", "--yes", "--url", left.url)
    refused = left.command(*words)
    assert refused.code == 1
    assert f"all that was committed in epoch 1 is on {lost.name}" in refused.err
    confirmed = (*words, "--confirm-off", lost.name)
    wait_until(lambda: left.command(*confirmed).code == 0, within=PATIENCE, every=0.5)
    assert left.is_active()
    assert _send(left, 2)
    # The lost node is back after all: it sets aside what it had more, and follows.
    lost.start()
    assert lost.process is not None
    lost.process.wait(PATIENCE)
    (kept,) = (lost.data_dir / "journal").glob("given-up.*.frames")
    assert kept.stat().st_size > 0
    assert str(kept) in lost.log_text()
    lost.start()
    wait_until(pair.is_protected, within=PATIENCE, every=0.1)
    assert pair.active() is left
    assert same_journal(pair)


def test_an_active_that_lives_is_never_forced_out(pair: Pair) -> None:
    active = pair.active()
    assert active is not None
    passive = pair.other(active)
    for node, reason in ((active, "is the active"), (passive, "takes over by itself")):
        words = ("failover", "--force", "--yes", "--confirm-off", active.name, "--url", node.url)
        refused = node.command(*words)
        assert (refused.code, reason in refused.err) == (1, True)
    assert active.is_active()
