"""The demo's flights through receivers, Kafka, a standalone cluster and PostgreSQL.

    make demo-cluster

All parts run on this machine: three brokers, two masters and the ZooKeeper in which they choose
their leader, four workers of one core, two receivers, and a pair. On the way a worker, a broker and
the driver of the active are killed. At the end the rows are compared with the reference.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from ha_engine.client import Producer
from ha_engine.demo.comparison import compare
from ha_engine.demo.flights import departures
from ha_engine.demo.nodes import sample_application
from tests.cluster.deployment import Services, start_receivers, start_services
from tests.connectors.kafka_broker import create
from tests.connectors.receivers import Receiver
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair
from tests.waiting import wait_until

TOPIC, PARTITIONS = "departures", 3
REQUEST_ROWS = 60
"""At most two hours of flights, which is how late an event may be: the rows of a request are in
several partitions, and a batch may end between them."""
PATIENCE = 600.0
console = Console(highlight=False)


def main(
    flights: Annotated[int, typer.Option(help="How many flights of the year to send.")] = 60_000,
) -> None:
    """Run the demo, and say whether the rows are equal."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # all parts end with it
    with tempfile.TemporaryDirectory(prefix="demo-") as home, ExitStack() as stack:
        parts = _started(stack, Path(home))
        outcomes = parts.run(flights)
    for outcome in outcomes:
        wrong = f"[bold red]{outcome.differing} differ from {outcome.expected} expected[/]"
        verdict = "equal" if outcome.equal else wrong
        console.print(f"{outcome.query}: {outcome.found} rows, {verdict}")
    raise typer.Exit(0 if all(outcome.equal for outcome in outcomes) else 1)


class Parts:
    """All that runs."""

    def __init__(self, services: Services, receivers: list[Receiver], pair: Pair) -> None:
        self._services, self._receivers, self._pair = services, receivers, pair
        self._year, self._sent = departures(), 0

    def run(self, flights: int) -> Any:
        faults: list[tuple[str, Callable[[], None]]] = [
            ("a worker", self._services.cluster.restart_a_worker),
            ("a broker", lambda: self._services.brokers.kill(1)),
            ("the driver of the active", lambda: self._active().kill("query")),
            ("the active", lambda: self._active().kill_everything()),
        ]
        portion = flights // (len(faults) + 1)
        self._send(portion)
        for what, kill in faults:
            console.print(f"kill {what}")
            kill()
            self._send(portion)
        self._send(flights - self._sent)
        with _step("wait until the last flight is in PostgreSQL"):
            wait_until(self._is_settled, within=PATIENCE, every=0.2)
        return compare(self._services.url, self._year.slice(0, self._sent))

    def _send(self, count: int) -> None:
        taken = self._year.slice(self._sent, count)
        with _step(f"send {count:,} flights"), self._producer() as to:
            for batch in taken.to_batches(max_chunksize=REQUEST_ROWS):
                to.send(TOPIC, batch)
        self._sent += count

    def _producer(self) -> Producer:
        return Producer([one.url for one in self._receivers], batch_rows=REQUEST_ROWS)

    def _active(self) -> NodeUnderTest:
        wait_until(lambda: self._pair.active() is not None, within=PATIENCE, every=0.2)
        active = self._pair.active()
        assert active is not None
        return active

    def _is_settled(self) -> bool:
        active = self._pair.active()
        status = active.status() if active else None
        if status is None or status["sources"][TOPIC]["log"]["rows"] < self._sent:
            return False
        return all(query["settled"] for query in status["queries"].values())


def _started(stack: ExitStack, home: Path) -> Parts:
    services = start_services(stack, home, _step)
    brokers = services.brokers
    create(brokers.brokers, TOPIC, PARTITIONS, replicas=3, min_insync_replicas=2)
    application = _application(brokers.brokers)
    with _step("start two receivers"):
        receivers = start_receivers(stack, home, application)
    with _step("start the pair"):
        pair = stack.enter_context(running_pair(services.pair(home, application)))
        pair.wait_protected()
    return Parts(services, receivers, pair)


def _application(brokers: list[str]) -> str:
    """The demo's application, but for the log of its stream."""
    tree = yaml.safe_load(sample_application("flights.yaml"))
    log = {"type": "kafka", "brokers": brokers, "topic": TOPIC, "partition_by": ["flight"]}
    log |= {"deduplicate": True}  # a client repeats what a receiver does not answer in time
    tree["streams"][TOPIC]["log"] = log
    return yaml.safe_dump(tree, sort_keys=False)


@contextmanager
def _step(what: str) -> Iterator[None]:
    console.print(f"{what} ...", end="")
    began = time.monotonic()
    yield
    console.print(f" {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    typer.run(main)
