"""A pair in which only the active runs the queries (RULES.md#r33)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.e2e.databases import fresh_database, rows
from tests.e2e.flights import Flights, flying
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.e2e.pair import same_journal
from tests.waiting import wait_until

pytestmark = [pytest.mark.nightly("both nodes start queries several times"), pytest.mark.spark]


@pytest.fixture
def flights(tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Flights]:
    with (
        fresh_database(postgres, "warm") as url,
        flying(tmp_path, url, standby="warm", snapshot={"interval": "5s"}) as flights,
    ):
        flights.pair.wait_protected()
        yield flights


def states(node: NodeUnderTest) -> set[str]:
    status = node.status()
    assert status is not None
    return {query["state"] for query in status["queries"].values()}


def test_rows_are_those_of_the_reference_after_each_node_was_the_active(flights: Flights) -> None:
    flights.send(20_000)
    flights.require_equal()
    pair = flights.pair
    first = pair.active()
    assert first is not None
    second = pair.other(first)
    assert (states(first), states(second)) == ({"running"}, {"standby"})
    first.kill_everything()
    flights.send(5_000)
    flights.require_equal()
    first.start()
    pair.wait_protected()
    assert (states(first), states(second)) == ({"standby"}, {"running"})
    flights.send(5_000)
    assert second.http.post("/v1/switchover").is_success
    wait_until(lambda: pair.active() is first, within=SPARK_SECONDS)
    flights.send(5_000)
    flights.require_equal()
    wait_until(lambda: states(second) == {"standby"}, within=SPARK_SECONDS)
    wait_until(lambda: same_journal(pair), within=SPARK_SECONDS)


def test_death_of_the_query_process_moves_the_lease_at_most_once(flights: Flights) -> None:
    """See RULES.md#r22."""
    pair = flights.pair
    flights.send(20_000)
    active = pair.active()
    assert active is not None
    before = active.require_status()["lease"]["epoch"]
    active.kill("query")
    flights.send(5_000)
    flights.require_equal()
    assert pair.wait_protected().require_status()["lease"]["epoch"] <= before + 1


def test_node_that_stopped_the_queries_runs_them_again_in_the_same_process(
    flights: Flights,
) -> None:
    flights.send(20_000)
    pair = flights.pair
    for _ in range(3):
        active = pair.active()
        assert active is not None
        assert active.http.post("/v1/switchover").is_success
        wait_until(lambda former=active: pair.active() is pair.other(former), within=SPARK_SECONDS)
        flights.send(5_000)
        flights.require_equal()
        pair.wait_protected()


@pytest.fixture
def bucketed(tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Flights]:
    """A pair whose tasks write the sinks."""
    with (
        fresh_database(postgres, "bucketed") as url,
        flying(tmp_path, url, standby="warm", buckets=4, snapshot={"interval": "5s"}) as flights,
    ):
        flights.pair.wait_protected()
        yield flights


def test_buckets_have_the_rows_of_the_reference_after_the_active_was_killed_in_its_batches(
    bucketed: Flights,
) -> None:
    pair = bucketed.pair
    bucketed.send(20_000)
    for kill in ["everything"] * 3 + ["query", "node", "query"]:
        wait_until(lambda: pair.active() is not None, within=SPARK_SECONDS)
        active = pair.active()
        assert active is not None
        newest = newest_batch(bucketed)
        bucketed.send(5_000)
        wait_until(lambda: newest_batch(bucketed) > newest, within=SPARK_SECONDS, every=0.01)  # noqa: B023
        if kill == "everything":
            active.kill_everything()
            bucketed.send(2_000)
            active.start()
            pair.wait_protected()
        else:
            active.kill(kill)
    wait_until(lambda: pair.active() is not None, within=SPARK_SECONDS)
    bucketed.require_equal()
    names = {f"table#{bucket}/4" for bucket in range(4)}
    for query in ("delays", "alerts"):
        assert {sink for sink, _ in ledger(bucketed, query)} == names
        assert len({batch for _, batch in ledger(bucketed, query)}) == 1


def ledger(flights: Flights, query: str) -> list[tuple[str, int]]:
    """Return the last batch of each bucket of the query."""
    found = f"SELECT sink, batch FROM ha_engine_ledger WHERE query = '{query}'"
    return rows(flights.database_url, found)


def newest_batch(flights: Flights) -> int:
    """Return the newest batch of which a bucket is written."""
    return max((batch for _, batch in ledger(flights, "delays")), default=0)
