"""Takeovers of a pair on a cluster: after the loss of the active, and by a switchover."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e.flights import Flights
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.e2e.pair import same_journal
from tests.waiting import wait_until

CONTINUED = "query continues the checkpoint of an earlier active"
RESTORED = "restored snapshot replaced journal, outbox and checkpoints"


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


def kill_the_driver(flights: Flights) -> None:
    """Kill the JVM of the active."""
    active = flights.pair.active()
    assert active is not None
    active.kill("jvm")


def require_recovery(
    flights: Flights, kill: Callable[[], None], is_whole: Callable[[], bool]
) -> None:
    """Kill a part under load, and wait until the rows are equal and all parts run again."""
    flights.send(3_000)
    kill()
    flights.send(3_000)
    flights.require_equal()
    flights.pair.wait_protected()
    wait_until(is_whole, within=SPARK_SECONDS, every=0.5)


def require_return(
    flights: Flights, executors: Callable[[], int], is_whole: Callable[[], bool]
) -> None:
    """Kill the active under load, and wait until its two executors ended. Start it again, and wait
    until all parts run again."""
    flights.send(3_000)
    killed = lose_the_active(flights, 3_000)
    wait_until(lambda: executors() == 2, within=SPARK_SECONDS, every=0.5)
    bring_back(flights, killed, 3_000)
    wait_until(is_whole, within=SPARK_SECONDS, every=0.5)


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
    # If the other node trimmed its journal meanwhile, the snapshot has the checkpoint as well.
    assert any(one in first.log_text() for one in (CONTINUED, RESTORED))
