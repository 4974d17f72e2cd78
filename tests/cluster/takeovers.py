"""Takeovers of a pair whose queries only the active runs, on the checkpoints that nodes share."""

from __future__ import annotations

from tests.e2e.flights import Flights
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.waiting import wait_until

CONTINUED = "query continues the checkpoint of an earlier active"


def fail_over(flights: Flights, count: int) -> tuple[NodeUnderTest, NodeUnderTest]:
    """Kill the active, and require that the other node continues with ``count`` more events.

    Return the killed node and the other one.
    """
    first = flights.pair.active()
    assert first is not None
    second = flights.pair.other(first)
    first.kill_everything()
    flights.send(count)
    flights.require_equal()
    assert CONTINUED in second.log_text()
    return first, second


def fail_back(flights: Flights, first: NodeUnderTest, second: NodeUnderTest, count: int) -> None:
    """Start the killed node, and require that it continues with ``count`` more events after a
    switchover."""
    first.start()
    flights.pair.wait_protected()
    assert second.http.post("/v1/switchover").is_success
    wait_until(lambda: flights.pair.active() is first, within=SPARK_SECONDS)
    flights.send(count)
    flights.require_equal()
    assert CONTINUED in first.log_text()
