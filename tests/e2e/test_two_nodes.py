"""Two nodes run the same query; either may go, and the sink holds what one would have written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from ha_engine.client import Producer
from ha_engine.demo.comparison import compare
from ha_engine.demo.flights import departures
from ha_engine.demo.nodes import sample_application
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Flights:
    """Sends flights to whoever is active, and says what the sink must then hold."""

    def __init__(self, pair: Pair, database_url: str) -> None:
        self.pair, self.database_url = pair, database_url
        self._year, self._sent = departures(), 0

    def send(self, count: int) -> None:
        taken: pa.Table = self._year.slice(self._sent, count)
        with Producer(self.pair.urls) as producer:
            for batch in taken.to_batches(max_chunksize=500):
                producer.send("departures", batch)
        self._sent += count

    def require_equal(self) -> None:
        active = self.pair.active()
        assert active is not None
        active.wait_settled()
        outcomes = compare(self.database_url, self._year.slice(0, self._sent))
        assert [outcome for outcome in outcomes if not outcome.equal] == []
        assert all(outcome.expected > 0 for outcome in outcomes)


def test_a_pair_survives_switchover_and_loss_of_the_active(
    node_database: str, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, sample_application("flights.yaml"), node_database)
    with running_pair(pair):
        flights = Flights(pair, node_database)
        first = pair.wait_protected()
        flights.send(4_000)
        second = pair.other(first)
        refused = second.send("departures", [{}])
        assert (refused.status_code, refused.json()["active"]) == (503, first.url)

        ended = second.command("switchover", "--to", second.name)
        assert (ended.code, ended.err) == (0, "")
        assert pair.wait_protected() is second
        flights.send(4_000)
        flights.require_equal()

        second.kill_everything()
        wait_until(first.is_active, within=60, every=0.05)
        flights.send(4_000)
        flights.require_equal()

        second.start()
        assert pair.wait_protected() is first
        flights.send(4_000)
        flights.require_equal()
        assert same_journal(pair)
