"""Failovers of a real pair while producers send: the sink must end as if nothing had happened.

    python -m tests.faults.failovers --count 100 [--seed N] [--ttl 2s]

Two real nodes with real Spark and PostgreSQL take the flights. One after the other, the active
loses a process, is frozen for longer than the ttl, or hands over; each time the pair must be whole
again before the next. Prints the outage of ingest as a producer sees it, and the gap in output.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from ha_engine.client import Producer
from ha_engine.demo.comparison import compare
from ha_engine.demo.flights import departures
from ha_engine.demo.show import sample_application
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.faults.kills import audit, ledger_faults
from tests.waiting import wait_until

FAULTS = ("switchover", "node", "query", "tree", "frozen")
"""Of the active: a planned handover; kill -9 of its node process, of its query process, of all its
processes; SIGSTOP of all of them for longer than the ttl."""
ROWS_PER_SEND = 20
SEND_EVERY_SECONDS = 0.02
RUNS_BEFORE_SECONDS = 2.0
TTL_SECONDS = 2.0
ACK_SECONDS_MAX = 240.0


@dataclass
class Report:
    """What a run found; ``wrong`` is empty when all promises held. Outages in seconds."""

    faults: list[str] = field(default_factory=list)
    ingest: list[float] = field(default_factory=list)
    output: list[float] = field(default_factory=list)
    rejoin: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Sender(threading.Thread):
    """Sends small requests without a break and keeps when each was acked."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__(name="sender", daemon=True)
        self.flights = departures()
        self._urls, self._ended = urls, threading.Event()
        self.acks: list[float] = []
        self.sent = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Producer(endpoints=self._urls, deadline=ACK_SECONDS_MAX) as producer:
                while not self._ended.wait(SEND_EVERY_SECONDS):
                    rows = self.flights.slice(self.sent, ROWS_PER_SEND)
                    if not rows.num_rows:
                        return
                    producer.send("departures", rows.combine_chunks().to_batches()[0])
                    producer.flush()
                    self.sent += rows.num_rows
                    self.acks.append(time.time())
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._ended.set()
        self.join(ACK_SECONDS_MAX)

    def outage_since(self, at: float) -> float:
        """The longest time without an ack that touches or follows ``at``."""
        return longest_gap(self.acks, at)


def longest_gap(moments: list[float], since: float) -> float:
    pairs = pairwise(moments)
    return max((after - before for before, after in pairs if after >= since), default=0.0)


def run_failovers(directory: Path, url: str, faults: list[str]) -> Report:
    """One run against the database at ``url``, which must be empty."""
    report = Report()
    upgrade(open_engine(url))
    ttl = f"{TTL_SECONDS:g}s"
    lease = {"ttl": ttl, "renew_every": "300ms", "db_timeout": "500ms"}
    pair = Pair(directory, sample_application("flights.yaml"), url, lease=lease)
    with running_pair(pair):
        active = pair.wait_protected()
        audit(url)
        sender = Sender(pair.urls)
        sender.start()
        for fault in faults:
            active = _one_fault(pair, active, fault, sender, url, report)
        sender.end()
        active.wait_settled()
        _judge(pair, active, sender, url, report)
    report.wrong += [
        f"left over: {node.left_over()}" for node in (pair.a, pair.b) if node.left_over()
    ]
    return report


def _one_fault(
    pair: Pair, active: NodeUnderTest, fault: str, sender: Sender, url: str, report: Report
) -> NodeUnderTest:
    """Returns who is active when the pair is whole again."""
    acked = len(sender.acks)
    wait_until(lambda: len(sender.acks) > acked + 20 or sender.error, within=60)
    before = active.status() or {}
    at = time.time()
    _inflict(fault, active)
    wait_until(lambda: _has_changed(pair, before), within=60, every=0.02)
    wait_until(lambda: sender.error or _acked_since(sender, at + 0.5), within=ACK_SECONDS_MAX)
    if fault == "frozen":
        wait_until(lambda: pair.other(active).is_active(), within=60)
        _signal_all(active, signal.SIGCONT)
    if fault == "tree":
        active.start()
    now = pair.wait_protected()
    report.faults.append(fault)
    report.rejoin.append(time.time() - at)
    report.ingest.append(sender.outage_since(at))
    report.output.append(longest_gap(_moves(url), at))
    print(
        f"{len(report.faults)}: {fault} of {active.name}, ingest {report.ingest[-1]:.2f} s, "
        f"output {report.output[-1]:.2f} s, whole again after {report.rejoin[-1]:.1f} s",
        flush=True,
    )
    return now


def _has_changed(pair: Pair, before: dict[str, Any]) -> bool:
    """There is a new epoch, or the same active has another query process."""
    seen = [status for node in (pair.a, pair.b) if (status := node.status()) is not None]
    return any(
        status["epoch"] > before["epoch"]
        or (
            status["node"] == before["node"]
            and status["query_process"]["incarnation"] != before["query_process"]["incarnation"]
        )
        for status in seen
    )


def _acked_since(sender: Sender, at: float) -> bool:
    return bool(sender.acks) and sender.acks[-1] > at


def _inflict(fault: str, active: NodeUnderTest) -> None:
    match fault:
        case "switchover":
            ended = active.command("switchover")
            assert ended.code == 0, ended.err
        case "tree":
            active.kill_everything()
        case "frozen":
            _signal_all(active, signal.SIGSTOP)
        case part:
            active.kill(part)


def _signal_all(node: NodeUnderTest, number: signal.Signals) -> None:
    assert node.process is not None
    supervisor = psutil.Process(node.process.pid)
    for process in [supervisor, *supervisor.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _moves(url: str) -> list[float]:
    """When the ledger of any query moved, in seconds since 1970."""
    with open_engine(url).connect() as connection:
        rows = connection.execute(
            text("SELECT extract(epoch FROM at) FROM ledger_audit ORDER BY at")
        )
        return [float(row[0]) for row in rows]


def _judge(pair: Pair, active: NodeUnderTest, sender: Sender, url: str, report: Report) -> None:
    if sender.error:
        report.wrong.append(f"the producer gave up: {sender.error!r}")
    outcomes = compare(url, sender.flights.slice(0, sender.sent))
    report.wrong += [f"{o.query} differs: {o}" for o in outcomes if not o.equal]
    report.wrong += ledger_faults(url, active.status() or {})
    if not same_journal(pair):
        report.wrong.append("the journals differ")
    for node in (pair.a, pair.b):
        if "a batch differs" in node.log_text():
            report.wrong.append(f"{node.name} tells of a batch that differs")


def _table(report: Report) -> Table:
    table = Table(title="seconds: median / most")
    for name in ("fault", "runs", "ingest outage", "gap in output", "whole again"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for fault in FAULTS:
        runs = [n for n, one in enumerate(report.faults) if one == fault]
        if runs:
            series = (report.ingest, report.output, report.rejoin)
            cells = (
                f"{median(s[n] for n in runs):.2f} / {max(s[n] for n in runs):.2f}" for s in series
            )
            table.add_row(fault, str(len(runs)), *cells)
    return table


def in_random_order(count: int, seed: int) -> list[str]:
    """Each fault as often as the others."""
    chance = random.Random(seed)
    rounds = [chance.sample(FAULTS, len(FAULTS)) for _ in range(-(-count // len(FAULTS)))]
    return [fault for one in rounds for fault in one][:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-failovers-"))
    with EmbeddedPostgres(directory / "postgres") as server:
        report = run_failovers(directory, server.url, in_random_order(given.count, given.seed))
    Console().print(_table(report))
    print("\n".join(report.wrong) or "equal: nothing lost, nothing twice, ledger contiguous")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
