"""A pair whose queries get other numbers of state partitions (RULES.md#r35)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.e2e.databases import fresh_database
from tests.e2e.flights import Flights, flying
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.nightly(
        "both nodes repartition states; tests/core/test_rescale.py has the rules of it"
    ),
    pytest.mark.spark,
]


@pytest.fixture
def flights(tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Flights]:
    with (
        fresh_database(postgres, "rescaled") as url,
        flying(
            tmp_path,
            url,
            query={"state_store": "rocksdb", "shuffle_partitions": 4},
            snapshot={"interval": "5s"},
        ) as flights,
    ):
        flights.pair.wait_protected()
        yield flights


def partitions(node: NodeUnderTest) -> set[int]:
    status = node.status()
    assert status is not None
    found = (query["state_partitions"] for query in status["queries"].values())
    return {number for number in found if number}


def rescale(flights: Flights, number: int) -> None:
    active = flights.pair.active()
    assert active is not None
    status = active.status()
    assert status is not None
    for query in status["queries"]:
        path = f"/v1/queries/{query}/rescale"
        assert active.http.post(path, json={"partitions": number}).is_success


def test_rows_are_those_of_the_reference_after_kills_while_queries_are_rescaled(
    flights: Flights,
) -> None:
    pair = flights.pair
    flights.send(20_000)
    flights.require_equal()
    rescale(flights, 8)
    flights.send(5_000)
    first = pair.active()
    assert first is not None
    first.kill("query")
    flights.send(5_000)
    flights.require_equal()
    rescale(flights, 3)
    flights.send(5_000)  # an ack comes after the other node has the order too
    first.kill_everything()
    flights.require_equal()
    first.start()
    pair.wait_protected()
    flights.send(5_000)
    flights.require_equal()
    for node in (first, pair.other(first)):
        wait_until(lambda node=node: partitions(node) == {3}, within=SPARK_SECONDS)  # type: ignore[misc]
        status = node.status()
        assert status is not None
        assert all(query["differs"] is None for query in status["queries"].values())
