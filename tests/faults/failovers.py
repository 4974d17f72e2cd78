"""Failovers of a real pair while producers send: the sink must end as without faults.

    python -m tests.faults.failovers --count 100 [--seed N] [--ttl 2s] [--minutes M] [--fault F]

Two real nodes with real Spark and PostgreSQL take the flights. One after the other, the active
loses a process, is frozen for longer than the ttl, or hands over; each time the pair must be whole
again before the next. The run prints the outage of ingest for a producer, and the gap in output.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from ha_engine.demo.comparison import compare
from ha_engine.demo.flights import departures
from ha_engine.demo.nodes import sample_application
from ha_engine.demo.traffic import Moment, Traffic, gap_across, longest_gap
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.faults.active import (
    FAULTS,
    LEAVES_A_DEAD_NODE,
    has_changed,
    heal,
    in_random_order,
    inflict,
)
from tests.faults.kills import audit, ledger_faults
from tests.waiting import wait_until

RUNS_BEFORE = 3
"""The number of batches of each query that are published between two faults."""
ACK_SECONDS_MAX = 240.0
FAULTS_A_YEAR = 40
FADE_SECONDS, FADE_SECONDS_A_FAULT = 900.0, 30.0
"""Long enough that flights are sent until the last fault."""
LEASES = {
    "2s": {"ttl": "2s", "renew_interval": "300ms", "db_timeout": "500ms"},
    "5s": {"ttl": "5s", "renew_interval": "1s", "db_timeout": "1s"},
}
"""The settings by ttl; the second one is the default of the engine."""


@dataclass(frozen=True)
class Outcome:
    """The cost of one fault, in seconds: the longest time without an ack and without a row, and in
    ``..._calm`` the same just before the fault. ``stall`` is the longest time without an ack until
    the pair was whole again, ``whole`` later."""

    fault: str
    ingest: float
    ingest_calm: float
    output: float
    output_calm: float
    stall: float
    whole: float


@dataclass
class Report:
    """The result of a run; ``wrong`` is empty when all promises held. ``versions`` are those of the
    engines that worked together before each fault."""

    outcomes: list[Outcome] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    versions: list[set[str]] = field(default_factory=list)


@dataclass(frozen=True)
class Load:
    """The flights of so many years; each second the producer sends the remaining ones divided by
    ``fade_seconds``."""

    years: int
    fade_seconds: float


def load_for(faults: Sequence[str]) -> Load:
    fade = max(FADE_SECONDS, FADE_SECONDS_A_FAULT * len(faults))
    return Load(1 + len(faults) // FAULTS_A_YEAR, fade)


def run_failovers(
    directory: Path,
    url: str,
    faults: list[str],
    ttl: str = "2s",
    minutes: float = math.inf,
    later: Path | None = None,
    load: Load | None = None,
    every_seconds: float = 0.0,
    beside: Callable[[Pair], contextlib.AbstractContextManager[None]] | None = None,
    traffic: Callable[[Sequence[str], str, pa.Table, float], Traffic] = Traffic,
    **sections: dict[str, Any],
) -> Report:
    """Run once against the database at ``url``, which must be empty; end after ``minutes``.

    A restarted node runs the engine in ``later``, if one is given. A fault begins at least
    ``every_seconds`` after the one before. The context ``beside`` is open while faults happen.
    ``traffic`` makes the thread that sends the flights. ``sections`` change the config of both
    nodes.
    """
    report, until = Report(), time.monotonic() + 60 * minutes
    load = load or load_for(faults)
    upgrade(open_engine(url))
    pair = Pair(directory, sample_application("flights.yaml"), url, lease=LEASES[ttl], **sections)
    with running_pair(pair), contextlib.ExitStack() as stack:
        active = pair.wait_protected()
        audit(url)
        if beside is not None:
            stack.enter_context(beside(pair))
        flights = years_of_flights(load.years)
        sending = traffic(pair.urls, "departures", flights, load.fade_seconds)
        sending.start()
        next_at = time.monotonic() + every_seconds
        try:
            for number, fault in enumerate(faults, 1):
                time.sleep(max(0.0, next_at - time.monotonic()))
                next_at = time.monotonic() + every_seconds
                if time.monotonic() > until:
                    break
                report.versions.append(pair.versions())
                outcome, active = _one_fault(pair, active, fault, sending, url, later)
                report.outcomes.append(outcome)
                print(f"{number}: {outcome}", flush=True)
        finally:
            sending.stop()
        active.wait_settled()
        _judge(pair, active, sending, url, report)
    report.wrong += [
        f"left over: {node.left_over()}" for node in (pair.a, pair.b) if node.left_over()
    ]
    return report


def years_of_flights(years: int) -> pa.Table:
    """Return the same year repeatedly, each time a year later."""
    year = departures()
    column = year.schema.get_field_index("event_time")
    later = [
        year.set_column(
            column,
            year.field("event_time"),
            pc.add(year["event_time"], pa.scalar(timedelta(days=365 * n), pa.duration("us"))),
        )
        for n in range(years)
    ]
    return pa.concat_tables(later)


def _one_fault(
    pair: Pair,
    active: NodeUnderTest,
    fault: str,
    traffic: Traffic,
    url: str,
    later: Path | None,
) -> tuple[Outcome, NodeUnderTest]:
    """Inject one fault; return also the active once the pair is whole again."""
    calm_since = time.time()
    _wait_published(active, traffic)
    pair.wait_protected()
    before = active.require_status()
    at = time.time()
    inflict(fault, active)
    wait_until(lambda: has_changed(pair, before), within=60, every=0.02)
    now = time.time()
    wait_until(lambda: traffic.acked_since(now), within=ACK_SECONDS_MAX)
    _wait_for_output(url, now)
    if fault in LEAVES_A_DEAD_NODE:
        active.code = later
    heal(fault, pair, active)
    successor = pair.wait_protected()
    acks, moves, epoch = traffic.acks, _ledger_moves(url), before["epoch"]
    outcome = Outcome(
        fault,
        ingest=gap_across(acks, at, epoch),
        ingest_calm=_longest_before(at, acks, calm_since),
        output=gap_across(moves, at, epoch),
        output_calm=_longest_before(at, moves, calm_since),
        stall=longest_gap(acks, at),
        whole=time.time() - at,
    )
    return outcome, successor


def _wait_for_output(url: str, since: float) -> None:
    newest = text("SELECT extract(epoch FROM max(at)) FROM ledger_audit")
    with open_engine(url).execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        wait_until(
            lambda: float(connection.execute(newest).scalar_one()) > since,
            within=ACK_SECONDS_MAX,
            every=0.1,
        )


def _longest_before(at: float, moments: list[Moment], since: float) -> float:
    return longest_gap([moment for moment in moments if moment[0] < at], since)


def _wait_published(active: NodeUnderTest, traffic: Traffic) -> None:
    """Wait until queries and producers run as without faults."""

    def published() -> dict[str, int]:
        queries = (active.status() or {"queries": {}})["queries"]
        return {name: min(query["published"].values()) for name, query in queries.items()}

    first = published()

    def moved() -> bool:
        traffic.require_well()
        now = published()
        return bool(first) and all(now.get(q, 0) >= n + RUNS_BEFORE for q, n in first.items())

    wait_until(moved, within=ACK_SECONDS_MAX, every=0.05)


def _ledger_moves(url: str) -> list[Moment]:
    """Return the moments at which the ledger of any query moved; see ``kills.audit``."""
    with open_engine(url).execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        rows = connection.execute(
            text("SELECT extract(epoch FROM at), epoch FROM ledger_audit ORDER BY at")
        )
        return [(float(at), int(epoch)) for at, epoch in rows]


def _judge(pair: Pair, active: NodeUnderTest, traffic: Traffic, url: str, report: Report) -> None:
    """Judge a pair at rest: sink, ledger, journals and digests."""
    traffic.require_well()
    outcomes = compare(url, traffic.rows.slice(0, traffic.sent))
    report.wrong += [f"{o.query} differs: {o}" for o in outcomes if not o.equal]
    report.wrong += ledger_faults(url, active.status() or {})
    if not same_journal(pair):
        report.wrong.append("the journals differ")
    for node in (pair.a, pair.b):
        if "a batch differs" in node.log_text():
            report.wrong.append(f"{node.name} tells of a batch that differs")


def table_of(report: Report) -> Table:
    table = Table(title="seconds: median / p99 / most")
    for name in (
        "fault",
        "runs",
        "ingest outage",
        "in calm",
        "gap in output",
        "in calm",
        "stall",
        "whole again",
    ):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for fault in FAULTS:
        runs = [outcome for outcome in report.outcomes if outcome.fault == fault]
        if runs:
            series = ("ingest", "ingest_calm", "output", "output_calm", "stall", "whole")
            cells = (_spread([getattr(run, name) for run in runs]) for name in series)
            table.add_row(fault, str(len(runs)), *cells)
    return table


def _spread(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return f"{median(ordered):.2f} / {p99:.2f} / {ordered[-1]:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--ttl", choices=LEASES, default="2s", help="of the lease")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no new fault later")
    parser.add_argument(
        "--fault", choices=FAULTS, action="append", help="only this; repeat for more"
    )
    given = parser.parse_args()
    print(f"seed {given.seed}, ttl {given.ttl}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # the nodes end with it
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-failovers-"))
    with EmbeddedPostgres(directory / "postgres") as server:
        faults = in_random_order(given.count, given.seed, given.fault or FAULTS)
        report = run_failovers(directory, server.url, faults, given.ttl, given.minutes)
    Console().print(table_of(report))
    print("\n".join(report.wrong) or "equal: nothing lost, nothing twice, ledger contiguous")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
