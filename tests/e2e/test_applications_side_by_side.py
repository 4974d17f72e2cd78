"""Two applications of a pair with Spark: one of them fails on a row, is corrected, removed and
rolled back, while the other runs under load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.databases import rows
from tests.e2e.flights import Flights, flying
from tests.e2e.node_under_test import SPARK_SECONDS
from tests.e2e.test_deploy import ACCESS, app, origins
from tests.e2e.test_restore import ON_DEMAND
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly("test_deploy adds an application, and the core's scenarios fail queries"),
]

ORDERS = """
name: orders
streams:
  orders:
    schema: {id: int not null, text: string}
queries:
  amounts:
    function: amounts:amounts
    sinks:
      - {name: table, type: postgres, table: amounts, auto_create: true}
"""
AMOUNTS = """
from pyspark.sql.functions import col

def amounts(streams):
    return streams["orders"].select("id", col("text").{cast}("int").alias("amount"))
"""

PAUSE_SECONDS = 0.5


@contextmanager
def in_the_air(flights: Flights) -> Iterator[None]:
    """Send flights while the block lasts."""
    ended = threading.Event()

    def send() -> None:
        while not ended.wait(PAUSE_SECONDS):
            flights.send(100)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            yield
        finally:
            ended.set()
        sending.result()


def query(flights: Flights, name: str) -> dict[str, Any]:
    active = flights.pair.active()
    status = active.status() if active else None
    found: dict[str, Any] = (status or {"queries": {}})["queries"].get(
        name, {"state": "unknown", "settled": False}
    )
    return found


def order(flights: Flights, number: int, text: str) -> None:
    active = flights.pair.active()
    assert active is not None
    assert active.send("orders", [{"id": number, "text": text}]).status_code == 200


def wait_amounts(flights: Flights, *expected: tuple[int, int | None]) -> None:
    """Wait until the table has these rows, each once."""

    def found() -> bool:
        there = rows(flights.database_url, "SELECT id, amount FROM amounts ORDER BY id")
        return [tuple(one) for one in there] == list(expected)

    wait_until(found, within=SPARK_SECONDS, every=0.5)


def test_flights_continue_beside_an_application_that_fails_changes_and_goes(
    node_database: str, tmp_path: Path
) -> None:
    directory = tmp_path / "orders"
    directory.mkdir()
    (directory / "application.yaml").write_text(ORDERS)
    (directory / "amounts.py").write_text(AMOUNTS.format(cast="cast"))
    with flying(tmp_path, node_database, **ON_DEMAND, **ACCESS) as flights:

        def changed(*words: str) -> None:
            with in_the_air(flights):
                done = app(flights.pair.a, *words)
            assert (done.code, done.err) == (0, "")
            wait_until(lambda: flights.pair.active() is not None, within=SPARK_SECONDS)

        flights.pair.wait_protected()
        flights.send(10_000)
        changed("deploy", str(directory))
        flights.pair.wait_protected()
        order(flights, 1, "10")
        wait_amounts(flights, (1, 10))

        order(flights, 2, "many")
        wait_until(lambda: query(flights, "amounts")["state"] == "failed", within=SPARK_SECONDS)
        assert "CAST_INVALID_INPUT" in query(flights, "amounts")["reason"]
        order(flights, 3, "30")
        flights.send(2_000)
        wait_until(
            lambda: query(flights, "delays")["settled"] and query(flights, "alerts")["settled"],
            within=SPARK_SECONDS,
        )
        flights.require_rows()
        assert query(flights, "amounts")["state"] == "failed"
        active = flights.pair.active()
        assert active is not None
        assert active.http.get("/active").status_code == 200

        (directory / "amounts.py").write_text(AMOUNTS.format(cast="try_cast"))
        assert "give it 'on_change: keep'" in app(flights.pair.a, "deploy", str(directory)).err
        changed("deploy", str(directory), "--on-change", "reset")
        wait_amounts(flights, (1, 10), (2, None), (3, 30))
        flights.pair.wait_protected()

        flights.pair.wait_settled()
        changed("remove", "orders")
        assert list(origins(flights.pair.a)) == ["flights"]
        flights.require_equal()
        flights.pair.wait_protected()

        changed("rollback")
        flights.pair.wait_protected()
        order(flights, 4, "40")
        wait_amounts(flights, (1, 10), (2, None), (3, 30), (4, 40))
        flights.require_equal()
        for node in flights.pair.nodes.values():
            assert "a batch differs" not in node.log_text()
