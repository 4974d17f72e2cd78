"""The sink's PostgreSQL stops under load: bounded outbox, 429, then catch-up without repeats.

    python -m tests.faults.sink_outage --minutes 10 [--shared]

One real node takes flights as fast as it admits them, while the server of its sink is stopped for
the given time. With ``--shared`` the lease is in the same server, so the node must continue without
it: it is the only in-sync member (RULES.md#r15).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import yaml

from ha_engine.demo.comparison import Outcome, compare
from ha_engine.demo.flights import departures
from ha_engine.demo.nodes import sample_application
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.faults.kills import audit, ledger_faults
from tests.waiting import SLOW_HOST, wait_until

OUTBOX_BATCHES_MAX = 6
BATCH_EVENTS_MAX, BACKLOG_EVENTS_MAX = 2_000, 20_000
RECORD_ROWS_MAX = 1_000
ROWS_PER_SEND = 250
LOOK_EVERY_SECONDS = 0.5
STALL_SECONDS_MAX = 3.0
"""The longest time for an answer, positive or negative, while a database is stopped."""


@dataclass
class Report:
    """The result of a run; ``wrong`` is empty when all promises held. Times are in seconds."""

    outage: float = 0.0
    until_pushed_back: float | None = None
    refusals: int = 0
    retry_after: set[str] = field(default_factory=set)
    acked: int = 0
    acked_when_back: int = 0
    slowest_answer: float = 0.0
    batches_max: int = 0
    bytes_max: int = 0
    backlog_max: int = 0
    memory_mib_max: float = 0.0
    catch_up: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Load(threading.Thread):
    """Flights in order, one request after the other, each repeated unchanged until it is acked."""

    def __init__(self, url: str, flights: pa.Table, report: Report) -> None:
        super().__init__(name="load", daemon=True)
        self._flights, self._report = flights, report
        self._client = httpx.Client(base_url=url, timeout=60.0)
        self._enough = threading.Event()
        self.pushed_back = threading.Event()
        self.error: BaseException | None = None

    def enough(self) -> None:
        """Send no further request; repeat the pending one until it is acked."""
        self._enough.set()

    def run(self) -> None:
        try:
            for number, batch in enumerate(self._flights.to_batches(max_chunksize=ROWS_PER_SEND)):
                if self._enough.is_set():
                    return
                self._send(number, "\n".join(map(_line, batch.to_pylist())).encode())
                self._report.acked += batch.num_rows
        except BaseException as error:
            self.error = error

    def _send(self, number: int, body: bytes) -> None:
        while (answer := self._post(number, body)).status_code == httpx.codes.TOO_MANY_REQUESTS:
            self._report.refusals += 1
            self._report.retry_after.add(answer.headers.get("Retry-After", "missing"))
            self.pushed_back.set()
            time.sleep(float(answer.headers["Retry-After"]))
        answer.raise_for_status()

    def _post(self, number: int, body: bytes) -> httpx.Response:
        headers = {"X-Producer-Id": "load", "X-Sequence": str(number)}
        headers["Content-Type"] = "application/x-ndjson"
        began = time.monotonic()
        answer = self._client.post("/v1/streams/departures/events", content=body, headers=headers)
        took = time.monotonic() - began
        self._report.slowest_answer = max(self._report.slowest_answer, took)
        return answer


@dataclass(frozen=True)
class Servers:
    """The server of the sink, which the run stops, and the URL of the lease."""

    sink: EmbeddedPostgres
    sink_url: str
    lease_url: str


@contextmanager
def servers(directory: Path, *, shared: bool) -> Iterator[Servers]:
    """Start the servers; with ``shared`` one has both, else the lease has a server that stays
    up."""
    with ExitStack() as stack:
        sink = stack.enter_context(EmbeddedPostgres(directory / "sink"))
        url, lease_url = sink.url, sink.url
        if not shared:
            lease_url = stack.enter_context(EmbeddedPostgres(directory / "lease")).url
        upgrade(open_engine(lease_url))
        yield Servers(sink, url, lease_url)


def run_outage(directory: Path, seconds: float, *, shared: bool) -> Report:
    """Run once in ``directory``, which the server's user must be able to reach."""
    report = Report()
    with servers(directory, shared=shared) as database:
        node = NodeUnderTest(
            directory,
            application(database.sink_url),
            database.lease_url,
            outbox={"max_batches": OUTBOX_BATCHES_MAX, "max_bytes": "64MiB"},
            query={"max_events_per_batch": BATCH_EVENTS_MAX},
            receive={
                "max_backlog_events": BACKLOG_EVENTS_MAX,
                "max_record_rows": RECORD_ROWS_MAX,
            },
        )
        with running(node):
            node.wait_running()
            _load_through_outage(node, database, seconds, report)
            report.wrong += ledger_faults(database.sink_url, node.status() or {})
        if node.left_over():
            report.wrong.append(f"processes left over: {node.left_over()}")
    return report


def application(sink_url: str) -> str:
    """Return the sample application with its sinks in the database at ``sink_url``."""
    tree = yaml.safe_load(sample_application("flights.yaml"))
    for query in tree["queries"].values():
        for sink in query["sinks"]:
            sink["url"] = sink_url
    return yaml.safe_dump(tree)


def _load_through_outage(
    node: NodeUnderTest, database: Servers, seconds: float, report: Report
) -> None:
    flights = departures()
    load = Load(node.url, flights, report)
    load.start()
    wait_until(lambda: _published(node) > 0, within=SPARK_SECONDS, every=0.1)
    audit(database.sink_url)
    epoch = (node.status() or {})["epoch"]
    _stop_for(seconds, node, database, load, report, epoch)
    began = time.monotonic()
    load.enough()
    wait_until(lambda: not load.is_alive(), within=SPARK_SECONDS)
    if load.is_alive() or load.error:
        report.wrong.append(f"the producer did not finish: {load.error}")
    node.wait_settled()
    report.catch_up = time.monotonic() - began
    report.outcomes = compare(database.sink_url, flights.slice(0, report.acked))
    report.wrong += [f"{o.query} differs: {o}" for o in report.outcomes if not o.equal]


def _stop_for(
    seconds: float,
    node: NodeUnderTest,
    database: Servers,
    load: Load,
    report: Report,
    epoch: int,
) -> None:
    process = psutil.Process(node.pid_of("node"))
    database.sink.stop()
    began = time.monotonic()
    load.pushed_back.clear()  # a slow machine causes back-pressure before the outage, too
    while time.monotonic() < began + seconds or not _full(load, report):
        if time.monotonic() > began + seconds + SLOW_HOST * SPARK_SECONDS:
            report.wrong.append(f"pushed back: {load.pushed_back.is_set()}, outbox never full")
            break
        if load.pushed_back.is_set() and report.until_pushed_back is None:
            report.until_pushed_back = time.monotonic() - began
        _look(node, process, report, epoch)
        time.sleep(LOOK_EVERY_SECONDS)
    report.acked_when_back, report.outage = report.acked, time.monotonic() - began
    _require_bounds(report)
    database.sink.start()


def _full(load: Load, report: Report) -> bool:
    """Return whether events and batches are at their limits; under a slow Spark events are
    first."""
    return load.pushed_back.is_set() and report.batches_max >= OUTBOX_BATCHES_MAX


def _look(node: NodeUnderTest, process: psutil.Process, report: Report, epoch: int) -> None:
    status = node.status()
    if status is None:
        report.wrong.append("the status page did not answer")
        return
    if (status["role"], status["epoch"], status["suspended"]) != ("active", epoch, False):
        report.wrong.append(f"{status['role']} in epoch {status['epoch']}: {status['reason']}")
    for query in status["queries"].values():
        report.batches_max = max(report.batches_max, query["outbox_batches"])
        report.bytes_max = max(report.bytes_max, query["outbox_bytes"])
    report.backlog_max = max(report.backlog_max, status["receive"]["backlog_events"])
    used = process.memory_info().rss / (1 << 20)
    report.memory_mib_max = max(report.memory_mib_max, used)


def _require_bounds(report: Report) -> None:
    """Require the bounds; a request admitted just below the limit may exceed it."""
    if report.batches_max > OUTBOX_BATCHES_MAX:
        report.wrong.append(f"{report.batches_max} batches in an outbox")
    if report.backlog_max > BACKLOG_EVENTS_MAX + ROWS_PER_SEND:
        report.wrong.append(f"a backlog of {report.backlog_max} events")
    if "missing" in report.retry_after:
        report.wrong.append("a 429 without Retry-After")
    if report.slowest_answer > STALL_SECONDS_MAX:
        report.wrong.append(f"an answer took {report.slowest_answer:.1f} s")


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, default=datetime.isoformat)


def _published(node: NodeUnderTest) -> int:
    queries: dict[str, Any] = (node.status() or {"queries": {}})["queries"]
    return min((min(query["published"].values()) for query in queries.values()), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--shared", action="store_true", help="the lease is in the same server")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-outage-"))
    r = run_outage(directory, given.minutes * 60, shared=given.shared)
    print(f"sink away for {r.outage:.0f} s; pushed back after {r.until_pushed_back:.1f} s")
    print(f"{r.refusals} requests refused with 429, Retry-After {', '.join(sorted(r.retry_after))}")
    print(
        f"outbox at most {r.batches_max} batches, {r.bytes_max / 1024:.0f} KiB; backlog at most "
        f"{r.backlog_max} events; node process at most {r.memory_mib_max:.0f} MiB"
    )
    print(
        f"slowest answer {r.slowest_answer:.2f} s; {r.acked} events acked, "
        f"all published {r.catch_up:.1f} s after the sink was back"
    )
    for outcome in r.outcomes:
        print(f"{outcome.query}: {outcome.found} rows, {outcome.differing} differ")
    print("\n".join(r.wrong) or "equal: nothing acked was lost, nothing twice, ledger contiguous")
    return 1 if r.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
