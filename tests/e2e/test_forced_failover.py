"""``ha-engine failover --force`` on two real nodes, one of which is gone. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from ha_engine.journal import Journal
from ha_engine.postgres.engine import open_engine
from ha_engine.types import Events, Mark
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.e2e.stand_in import NodeWithStandIn
from tests.e2e.without_spark import APPLICATION, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 60


@pytest.fixture
def pair(node_database: str, tmp_path: Path) -> Iterator[Pair]:
    with running_pair(Pair(tmp_path, APPLICATION, node_database, NodeWithoutSpark)) as pair:
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        yield pair


def _send(node: NodeUnderTest, number: int) -> bool:
    events = [{"id": number, "text": "x"}]
    return bool(node.send("events", events).status_code == 200)


def _lose_the_active(pair: Pair) -> tuple[NodeUnderTest, NodeUnderTest]:
    """Return the lost active, which acked more than the other has, and the other, restarted."""
    lost = pair.active()
    assert lost is not None
    left = pair.other(lost)
    left.kill_everything()
    wait_until(lambda: _send(lost, 1), within=PATIENCE, every=0.1)
    lost.kill_everything()
    left.start()
    wait_until(lambda: (left.status() or {}).get("role") == "joining", within=PATIENCE)
    return lost, left


def test_forced_failover_gives_up_records_and_the_lost_node_keeps_them(pair: Pair) -> None:
    lost, left = _lose_the_active(pair)
    words = ("failover", "--force", "--yes", "--url", left.url)
    refused = left.command(*words)
    assert refused.code == 1
    assert f"all records committed in epoch 1 are on {lost.name}" in refused.err
    confirmed = (*words, "--confirm-fenced", lost.name)
    wait_until(lambda: left.command(*confirmed).code == 0, within=PATIENCE, every=0.5)
    assert left.is_active()
    assert _send(left, 2)
    # The lost node returns: it sets aside its surplus records, and follows.
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


@pytest.mark.nightly("schedules of the simulator have it")
def test_batch_numbers_continue_above_those_that_the_lost_node_published(
    node_database: str, tmp_path: Path
) -> None:
    """RULES.md#r26: a sink would never take a batch of the new history under a number that it has
    had."""

    def published(node: NodeUnderTest) -> int:
        return int((node.status() or {})["queries"]["copies"]["published"]["table"])

    with running_pair(Pair(tmp_path, APPLICATION, node_database, NodeWithStandIn)) as pair:
        lost = pair.wait_protected()
        left = pair.other(lost)
        left.kill_everything()
        before = published(lost)

        def three_more() -> bool:
            _send(lost, 1)
            return published(lost) > before + 3

        wait_until(three_more, within=PATIENCE, every=0.1)
        lost.kill_everything()
        at_the_end, _ = _ledger(node_database)
        left.start()
        forced = ("failover", "--force", "--yes", "--url", left.url, "--confirm-fenced", lost.name)
        wait_until(lambda: left.command(*forced).code == 0, within=PATIENCE, every=0.5)

        def goes_on() -> bool:
            _send(left, 2)
            return published(left) > at_the_end + 3

        wait_until(goes_on, within=PATIENCE, every=0.1)
        assert left.stop() == 0
    _require_new_events_in_new_numbers(left, at_the_end)
    # Each batch of the stand-in is one row: one for each number of the old and of the new history.
    batch, epoch = _ledger(node_database)
    assert batch > at_the_end + 3
    assert epoch > 1
    with open_engine(node_database).connect() as connection:
        rows = connection.execute(text("SELECT count(*) FROM copies")).scalar_one()
    assert rows == batch


def _require_new_events_in_new_numbers(node: NodeUnderTest, given_up_through: int) -> None:
    journal = Journal.open(node.data_dir / "journal", group="test")
    records = list(journal.read(journal.first, payloads=False))
    journal.close()
    events = [r.position for r in records if isinstance(r.body, Events)]
    first_new = min(position.sequence for position in events if position.epoch > 1)
    marks = [r.body for r in records if isinstance(r.body, Mark)]
    old = [mark for mark in marks if mark.number <= given_up_through]
    assert len(old) == given_up_through < len(marks)
    assert all(mark.through < first_new for mark in old)


def _ledger(url: str) -> tuple[int, int]:
    """Return the sink's last batch, and the epoch that claimed it last."""
    with open_engine(url).connect() as connection:
        row = connection.execute(text("SELECT batch, epoch FROM ha_engine_ledger")).one()
    return int(row.batch), int(row.epoch)


def test_forced_failover_is_refused_while_the_active_lives(pair: Pair) -> None:
    active = pair.active()
    assert active is not None
    passive = pair.other(active)
    for node, reason in ((active, "is the active"), (passive, "takes over by itself")):
        words = ("failover", "--force", "--yes", "--confirm-fenced", active.name, "--url", node.url)
        refused = node.command(*words)
        assert (refused.code, reason in refused.err) == (1, True)
    assert active.is_active()
