"""PostgreSQL fails over to an asynchronous standby that missed the last writes (RULES.md#r5).

The lost write removed the passive from in-sync: by the row of the standby the passive might take
over, and it lacks the events acked since. Two real nodes, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text

from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.node_under_test import Ended, NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.e2e.standby import Standby
from tests.e2e.without_spark import APPLICATION, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.rotates("files")]

PATIENCE = 60
EVENTS = 5


@dataclass
class Lost:
    """``active`` continued alone, and acked, after the standby fell behind; ``left`` is dead, and
    in sync by the standby's row. The primary is gone, and the standby not yet promoted."""

    pair: Pair
    active: NodeUnderTest
    left: NodeUnderTest
    standby: Standby


@pytest.fixture
def lost(own_postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Lost]:
    upgrade(open_engine(own_postgres.url))
    standby = Standby(own_postgres, own_postgres.directory / "standby")
    standby.start()
    pair = Pair(tmp_path, APPLICATION, standby.url, NodeWithoutSpark)
    with running_pair(pair):
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        active = pair.active()
        assert active is not None
        left = pair.other(active)
        standby.lag_behind()
        left.kill_everything()
        wait_until(lambda: _send(active, 0), within=PATIENCE, every=0.1)
        assert all(_send(active, number) for number in range(1, EVENTS))
        own_postgres.stop()
        yield Lost(pair, active, left, standby)
    standby.stop()


def _send(node: NodeUnderTest, number: int) -> bool:
    """Send as one producer, so that the node stores a repeated event once."""
    answer = node.send("events", [{"id": number, "text": "x"}], ("producer", number))
    return answer.status_code == 200


def test_active_writes_the_lost_lease_row_again_under_the_next_epoch(lost: Lost) -> None:
    before = (lost.active.status() or {})["epoch"]
    lost.standby.promote()

    def writes_it_again() -> bool:
        status = lost.active.status() or {"epoch": 0}
        return status["epoch"] > before and status["role"] == "active"

    wait_until(writes_it_again, within=PATIENCE)
    assert _send(lost.active, EVENTS)
    lost.left.start()
    wait_until(lost.pair.is_protected, within=PATIENCE, every=0.1)
    assert lost.pair.active() is lost.active
    assert same_journal(lost.pair)


@pytest.mark.nightly("schedules of the simulator have it")
def test_node_that_lacks_acked_events_waits_for_an_operator(
    lost: Lost,
) -> None:
    lost.active.kill_everything()
    lost.standby.promote()
    lost.left.start()
    reason = "the database lost writes"
    wait_until(
        lambda: reason in (lost.left.status() or {}).get("reason", ""), within=PATIENCE, every=0.1
    )
    assert not lost.left.is_active()
    # The node that acked them returns. It does not take over by itself: it cannot know whether
    # another epoch is lost too. The operator sees which of the two has more records.
    lost.active.start()
    wait_until(lambda: _refuses_a_forced_failover(lost.active), within=PATIENCE, every=0.5)
    ends = [(node.status() or {})["journal"]["last_sequence"] for node in (lost.active, lost.left)]
    assert ends[0] > ends[1]
    lost.left.stop()
    confirmed = _force(lost.active, "--confirm-fenced", lost.left.name)
    assert (confirmed.code, lost.active.is_active()) == (0, True), confirmed.err
    lost.left.start()
    wait_until(lost.pair.is_protected, within=PATIENCE, every=0.1)
    assert same_journal(lost.pair)


@pytest.mark.nightly("schedules of the simulator have it")
def test_operator_chooses_the_active_when_the_database_lost_the_lease_row(
    node_database: str, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, APPLICATION, node_database, NodeWithoutSpark)
    with running_pair(pair):
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        active = pair.active()
        assert active is not None
        other = pair.other(active)
        assert all(_send(active, number) for number in range(EVENTS))
        for node in (active, other):
            node.kill_everything()
        with open_engine(node_database).begin() as connection:
            connection.execute(text("DELETE FROM ha_engine.lease"))
        for node in (active, other):
            node.start()
        wait_until(lambda: _refuses_a_forced_failover(active), within=PATIENCE, every=0.5)
        assert "the database lost the row" in (active.status() or {})["reason"]
        other.stop()
        assert "make sure that it is off" in _force(active).err
        confirmed = _force(active, "--confirm-fenced", other.name)
        assert (confirmed.code, active.is_active()) == (0, True), confirmed.err
        other.start()
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        assert same_journal(pair)
        newest = active.http.get("/v1/history").json()["history"][0]
        assert newest["reason"].startswith("failover forced by")


def _refuses_a_forced_failover(node: NodeUnderTest) -> bool:
    """Return whether a forced failover is refused since the other node answers and may have
    more."""
    ended = _force(node)
    assert ended.code == 1
    return "no node knows which journal" in ended.err


def _force(node: NodeUnderTest, *words: str) -> Ended:
    return node.command("failover", "--force", "--yes", *words)
