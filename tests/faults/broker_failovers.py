"""Failovers of a real pair that moves messages from one place of a broker to another.

    python -m tests.faults.broker_failovers --count 30 [--seed N] [--kind nats --kind redis]
    python -m tests.faults.broker_failovers --count 1 --fault outage --outage-seconds 600

Two real nodes with real Spark and PostgreSQL have, for each kind of connector, a source and a sink
at a real broker, to which a program writes all the time. One after the other, the active loses a
process, is frozen for longer than the ttl, or hands over; the brokers are killed and started again
at once or later; the links between the nodes and the brokers are cut for longer than the ttl. Each
time every query must get on before the next fault. The run compares the output of each broker with
its input. Beside them a producer sends over HTTP, which no fault of a broker may delay.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from ha_engine.client import Producer
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.faults.active import FAULTS as FAULTS_OF_THE_ACTIVE
from tests.faults.active import has_changed, heal, in_random_order, inflict
from tests.faults.exchanges import KINDS, Exchange, all_read, running_exchange
from tests.faults.failovers import LEASES
from tests.waiting import wait_until

FAULTS = (*FAULTS_OF_THE_ACTIVE, "broker", "outage", "link")
"""Besides the faults of the active: kill -9 of all brokers, and their start at once or after an
outage; links to all brokers that forward nothing for CUT_SECONDS."""
OUTAGE_SECONDS = 10.0
CUT_SECONDS = 8.0
"""Longer than the timeout of a connector: it gives up its connection, whose bytes arrive later."""
BATCHES_BETWEEN = 2
"""How many batches each query publishes between two faults."""
MOVE_SECONDS = 240.0
LOOK_SECONDS = 1.0
BYSTANDER = "bystander"
PUT_ROWS, PUT_EVERY_SECONDS = 50, 0.25


class Writer(threading.Thread):
    """Writes numbers to the input of ``exchange``, and starts anew with others after an error.
    ``acked`` are those that the broker has confirmed."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(name="writer", daemon=True)
        self._exchange, self._ended = exchange, threading.Event()
        self.acked: list[int] = []
        self.tried = 0

    def run(self) -> None:
        while not self._ended.wait(PUT_EVERY_SECONDS):
            numbers = range(self.tried, self.tried + PUT_ROWS)
            self.tried += PUT_ROWS
            # Each library has its own errors, and the broker is killed.
            with contextlib.suppress(Exception):
                self._exchange.put(numbers)
                self.acked += numbers

    def stop(self) -> None:
        self._ended.set()
        self.join()


class Bystander(threading.Thread):
    """Sends numbers over HTTP to the stream that has no broker. ``acks`` are the times of the
    acks."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(name="bystander", daemon=True)
        self._urls, self._ended = urls, threading.Event()
        self.acks: list[float] = []
        self.sent = 0

    def run(self) -> None:
        with Producer(self._urls, deadline=math.inf) as producer:
            while not self._ended.wait(PUT_EVERY_SECONDS):
                numbers = list(range(self.sent, self.sent + PUT_ROWS))
                producer.send(BYSTANDER, pa.record_batch({"n": pa.array(numbers, pa.int64())}))
                producer.flush()
                self.sent += PUT_ROWS
                self.acks.append(time.time())

    def stop(self) -> None:
        self._ended.set()
        self.join()


@dataclass
class Traffic:
    """The messages that went through one broker. ``written`` counts the messages of the input,
    ``lost`` those that the output lacks, ``repeated`` those that it has too often, and ``strange``
    those that were never written."""

    kind: str
    exactly_once: bool
    written: int = 0
    lost: int = 0
    repeated: int = 0
    strange: int = 0

    @property
    def is_wrong(self) -> bool:
        return bool(
            not self.written or self.lost or self.strange or (self.exactly_once and self.repeated)
        )


@dataclass
class Report:
    """The result of a run; ``wrong`` is empty when all promises held."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """By fault, the times until each query got on again."""
    traffic: list[Traffic] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)
    """What the active tells of sources and sinks in an outage."""
    ack_gaps: list[float] = field(default_factory=list)
    """The longest time without an ack over HTTP, in each outage of the brokers."""
    wrong: list[str] = field(default_factory=list)


def application(exchanges: dict[str, Exchange]) -> str:
    """Return an application whose query of each kind copies the numbers of its source."""
    streams: dict[str, Any] = {}
    queries: dict[str, Any] = {}
    for kind, exchange in exchanges.items():
        source = {"name": "input", **exchange.source}
        streams[kind] = {"schema": {"n": "long not null"}, "sources": [source]}
        sink = {"name": "output", **exchange.sink}
        queries[f"copy_{kind}"] = {"sql": f"SELECT n FROM {kind}", "sinks": [sink]}
    streams[BYSTANDER] = {"schema": {"n": "long not null"}}
    table = {"name": "table", "type": "postgres", "table": "bystander", "auto_create": True}
    queries["copy_bystander"] = {"sql": f"SELECT n FROM {BYSTANDER}", "sinks": [table]}
    return yaml.safe_dump({"name": "exchange", "streams": streams, "queries": queries})


def run_broker_failovers(
    directory: Path,
    url: str,
    kinds: Sequence[str],
    faults: Sequence[str],
    seed: int = 0,
    ttl: str = "2s",
    outage_seconds: float = OUTAGE_SECONDS,
) -> Report:
    """Run once against the database at ``url``, which must be empty."""
    report, chance = Report(), random.Random(seed)
    upgrade(open_engine(url))
    with ExitStack() as stack:
        exchanges = {kind: stack.enter_context(running_exchange(kind)) for kind in kinds}
        pair = Pair(directory, application(exchanges), url, lease=LEASES[ttl])
        stack.enter_context(running_pair(pair))
        active = pair.wait_protected()
        wait_until(lambda: all_read(active.status()), within=60, every=0.1)
        writers = {kind: Writer(exchange) for kind, exchange in exchanges.items()}
        bystander = Bystander(pair.urls)
        threads = [bystander, *writers.values()]
        for thread in threads:
            thread.start()
        run = _Run(pair, list(exchanges.values()), bystander, outage_seconds, report)
        try:
            for number, fault in enumerate(faults, 1):
                _wait_moved(pair)
                time.sleep(chance.random())  # a fault at any moment of a batch
                began = time.monotonic()
                run.inflict(fault)
                _wait_moved(pair, batches=1)
                active = pair.wait_protected()
                took = time.monotonic() - began
                report.seconds.setdefault(fault, []).append(took)
                print(f"{number}: {fault} {took:.1f} s", flush=True)
        finally:
            for thread in threads:
                thread.stop()
        for kind, exchange in exchanges.items():
            report.traffic.append(_compared(kind, exchange, writers[kind]))
        report.wrong += [f"{found}" for found in report.traffic if found.is_wrong]
        active.wait_settled()
        report.wrong += _faults_at_rest(pair, url, bystander.sent)
    return report


def _faults_at_rest(pair: Pair, url: str, sent: int) -> list[str]:
    found = []
    with open_engine(url).connect() as connection:
        select = text("SELECT count(*), count(DISTINCT n) FROM bystander")
        if (counts := connection.execute(select).one()) != (sent, sent):
            found.append(f"of {sent} rows over HTTP, the table has {counts}")
    if not same_journal(pair):
        found.append("the journals differ")
    for node in (pair.a, pair.b):
        if "a batch differs" in node.log_text():
            found.append(f"{node.name} tells of a batch that differs")
    return found


@dataclass(frozen=True)
class _Run:
    pair: Pair
    exchanges: list[Exchange]
    bystander: Bystander
    outage_seconds: float
    report: Report

    def inflict(self, fault: str) -> None:
        active = self.pair.wait_protected()
        match fault:
            case "broker":
                for exchange in self.exchanges:
                    exchange.end()
                    exchange.start()
            case "outage":
                self._take_away()
            case "link":
                for exchange in self.exchanges:
                    exchange.link.freeze()
                time.sleep(CUT_SECONDS)
                for exchange in self.exchanges:
                    exchange.link.thaw()
            case _:
                before = active.require_status()
                inflict(fault, active)
                wait_until(lambda: has_changed(self.pair, before), within=60, every=0.02)
                heal(fault, self.pair, active)

    def _take_away(self) -> None:
        """Kill all brokers, and start them after ``outage_seconds``. Meanwhile, note what the
        active tells, and how long HTTP waits for an ack."""
        for exchange in self.exchanges:
            exchange.end()
        began = time.time()
        while time.time() < began + self.outage_seconds:
            active = self.pair.active()
            self.report.shown |= _errors(active.status() if active else None)
            time.sleep(LOOK_SECONDS)
        acks = [began, *(at for at in self.bystander.acks if at > began), time.time()]
        self.report.ack_gaps.append(max(later - at for at, later in pairwise(acks)))
        for exchange in self.exchanges:
            exchange.start()


def _errors(status: dict[str, Any] | None) -> set[str]:
    """Return the state and the error of each source and sink that has one."""
    if status is None:
        return set()
    named = [
        (f"source of {stream}", source)
        for stream, sources in status["sources"].items()
        for source in sources.values()
    ]
    named += [
        (f"sink of {name}", sink)
        for name, query in status["queries"].items()
        for sink in query["sinks"].values()
    ]
    return {f"{who}: {one['state']}: {one['error']}" for who, one in named if one["error"]}


def _wait_moved(pair: Pair, batches: int = BATCHES_BETWEEN) -> None:
    """Wait until each query has published so many batches more."""

    def published() -> dict[str, int]:
        active = pair.active()
        queries = ((active.status() if active else None) or {"queries": {}})["queries"]
        return {name: min(query["published"].values()) for name, query in queries.items()}

    first: dict[str, int] = {}

    def moved() -> bool:
        now = published()
        if not first:
            first.update(now)
        return bool(first) and all(now.get(q, 0) >= n + batches for q, n in first.items())

    wait_until(moved, within=MOVE_SECONDS, every=0.1)


def _compared(kind: str, exchange: Exchange, writer: Writer) -> Traffic:
    """Compare output and input, once the output has the numbers that it must have."""
    inputs = exchange.inputs()
    wanted = Counter(writer.acked if inputs is None else inputs)
    missing = set(wanted)

    def complete() -> bool:
        missing.difference_update(exchange.outputs())
        return not missing

    with contextlib.suppress(AssertionError):  # the comparison says what is lost
        wait_until(complete, within=MOVE_SECONDS, every=1.0)
    found = Counter(exchange.outputs())
    repeated = sum(count - 1 for count in found.values())
    unknown = range(writer.tried) if inputs is None else wanted
    strange = [number for number in found if number not in unknown]
    lost = (wanted.keys() | set(writer.acked)) - found.keys()
    return Traffic(kind, exchange.exactly_once, wanted.total(), len(lost), repeated, len(strange))


def _tables(report: Report) -> list[Table]:
    times = Table("fault", "runs", "median s", "most s", title="until each query got on again")
    for fault, seconds in sorted(report.seconds.items()):
        ordered = sorted(seconds)
        median = ordered[len(ordered) // 2]
        times.add_row(fault, str(len(ordered)), f"{median:.1f}", f"{ordered[-1]:.1f}")
    kinds = Table("kind", "promise", "written", "lost", "twice", title="output against input")
    for found in report.traffic:
        promise = "exactly once" if found.exactly_once else "at least once"
        counts: list[Any] = [found.written, found.lost, found.repeated]
        kinds.add_row(found.kind, promise, *map(str, counts))
    return [times, kinds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30, help="the number of faults")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--ttl", choices=LEASES, default="2s", help="of the lease")
    parser.add_argument("--kind", choices=KINDS, action="append", help="repeat for more")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="repeat for more")
    parser.add_argument("--outage-seconds", type=float, default=OUTAGE_SECONDS)
    given = parser.parse_args()
    print(f"seed {given.seed}, ttl {given.ttl}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # the nodes end with it
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-failovers-"))
    with EmbeddedPostgres(directory / "postgres") as server:
        faults = in_random_order(given.count, given.seed, given.fault or FAULTS)
        kinds = given.kind or list(KINDS)
        report = run_broker_failovers(
            directory, server.url, kinds, faults, given.seed, given.ttl, given.outage_seconds
        )
    for table in _tables(report):
        Console().print(table)
    print("\n".join(sorted(report.shown)))
    if report.ack_gaps:
        print(f"longest time without an ack in an outage: {max(report.ack_gaps):.2f} s")
    print("\n".join(report.wrong) or "each promise held")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
