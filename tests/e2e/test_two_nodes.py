"""Two nodes run the same query; either may go, and the sink holds what one would have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from ha_engine.demo.nodes import sample_application
from tests.e2e.flights import Flights
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


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
