"""Takeovers of a pair on a cluster: after the loss of the active, and by a switchover."""

from __future__ import annotations

from tests.e2e.flights import Flights
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.e2e.pair import same_journal
from tests.waiting import wait_until

CONTINUED = "query continues the checkpoint of an earlier active"


def lose_the_active(flights: Flights, count: int) -> NodeUnderTest:
    """Kill the active, require the rows of ``count`` more events, and return the killed node."""
    active = flights.pair.active()
    assert active is not None
    active.kill_everything()
    flights.send(count)
    flights.require_equal()
    return active


def bring_back(flights: Flights, node: NodeUnderTest, count: int) -> None:
    """Start the killed node, and require that it has the journal with ``count`` more events."""
    node.start()
    flights.pair.wait_protected()
    flights.send(count)
    flights.require_equal()
    wait_until(lambda: same_journal(flights.pair), within=SPARK_SECONDS)


# -- queries that only the active runs, on the checkpoints that nodes share ------------------------


def fail_over(flights: Flights, count: int) -> tuple[NodeUnderTest, NodeUnderTest]:
    """Kill the active, and require that the other node continues with ``count`` more events.

    Return the killed node and the other one.
    """
    first = lose_the_active(flights, count)
    second = flights.pair.other(first)
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
