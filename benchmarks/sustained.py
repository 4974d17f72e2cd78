"""A pair at an offered rate for some minutes: does it keep up, and what do its processes use?

The lag counts events that are acknowledged and not yet in the sink. It is computed afterwards,
from the acks, the commits of the sink's ledger, and what the active's journal says of each batch,
so that nothing but a trigger on the ledger watches the run.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import psutil
from rich.console import Console

from benchmarks.database import Database
from benchmarks.engine_side import EngineSide, processes_of
from benchmarks.paced import Schedule, Sent, Times, send
from benchmarks.processes import cpu_seconds, part_of, spent
from benchmarks.reference import closing_events, require_equal
from benchmarks.report import Result
from benchmarks.workload import WINDOW_EVENTS, WINDOWED
from ha_engine.journal import Journal
from ha_engine.types import Events, Mark
from tests.e2e.node_under_test import NodeUnderTest
from tests.faults.kills import audit

REQUESTS_A_SECOND = 20
SHOW_EVERY_SECONDS = 10.0
SETTLED_AFTER = 0.2
"""Of the run; before it Spark still compiles."""
ACHIEVED_MIN, SLOPE_MAX, LAG_SECONDS_MAX = 0.99, 0.01, 10.0
CLOSING_EVENTS = 2
STREAM, TABLE = WINDOWED.name, f"engine_{WINDOWED.name}"


@dataclass
class Sustained:
    """``run`` while the pair runs, then ``report`` once it has ended and its journal is free."""

    engine: EngineSide
    database: Database
    console: Console
    cores: dict[str, float] = field(default_factory=dict)
    windows: int = 0

    def run(self, rate: float, seconds: float, after_id: int) -> None:
        """Events whose ids lie behind ``after_id``. Raises SinkDiffers."""
        audit(self.database.url)
        first = (after_id // WINDOW_EVENTS + 3) * WINDOW_EVENTS
        self.sent = Sent(Schedule.of_rate(first, rate, seconds, REQUESTS_A_SECOND))
        with self._watched(), self._cpu():
            send(self.engine.urls, STREAM, self.sent)
        self.engine.wait_published(STREAM)
        self.engine.feed_singly(STREAM, closing_events(self.sent.schedule))
        self.moves = self.database.ledger_moves(STREAM)
        self.windows = require_equal(self.database, TABLE, self.sent.schedule)
        self.console.print(f"  equal to the reference: {self.windows} windows")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        over, rows, began = threading.Event(), self.sent.schedule.rows, time.monotonic()

        def watch() -> None:
            while not over.wait(SHOW_EVERY_SECONDS):
                acked, after = len(self.sent.acked) * rows, time.monotonic() - began
                status = self.engine.node.status() or {"receive": {"backlog_events": -1}}
                backlog = status["receive"]["backlog_events"]
                self.console.print(
                    f"  {after:.0f} s: {acked:,} acked, {backlog:,} wait for a batch",
                    highlight=False,
                )

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    @contextmanager
    def _cpu(self) -> Iterator[None]:
        """Cores by part of the system, and what the machine did besides."""
        before, machine, began = self._seconds(), _busy_seconds(), time.monotonic()
        yield
        took, after = time.monotonic() - began, self._seconds()
        for part, seconds in after.items():
            self.cores[part] = spent(before.get(part, {}), seconds) / took
        whole = (_busy_seconds() - machine) / took
        self.cores["everything else on the machine"] = max(0.0, whole - sum(self.cores.values()))

    def _seconds(self) -> dict[str, dict[int, float]]:
        """CPU seconds by part and pid."""
        parts: dict[str, list[psutil.Process]] = {
            "PostgreSQL": self.database.processes(),
            "producer": [psutil.Process()],
        }
        for role, node in zip(("active", "passive"), self.engine.nodes, strict=False):
            for process in processes_of(node):
                with contextlib.suppress(psutil.Error):
                    parts.setdefault(f"{role}, {part_of(process)}", []).append(process)
        return {part: cpu_seconds(processes) for part, processes in parts.items()}

    # -- afterwards --------------------------------------------------------------------------------

    def report(self, result: Result) -> None:
        schedule, acked = self.sent.schedule, np.array(self.sent.acked)
        rate, name = schedule.rate, f"{schedule.rate:,.0f} events/s offered"
        took = acked[-1] - self.sent.due[0]
        result.at_least(f"{name}: acked", [schedule.events / took / rate], ACHIEVED_MIN, "ratio")
        at, lag = self._lag()
        settled = at > at[0] + SETTLED_AFTER * (at[-1] - at[0])
        slope = float(np.polyfit(at[settled], lag[settled], 1)[0])
        result.at_most(
            f"{name}: growth of the lag, of the rate", [slope / rate], SLOPE_MAX, "ratio"
        )
        most = float(lag.max()) / rate
        result.at_most(f"{name}: lag, most", [most], LAG_SECONDS_MAX, "s of events")
        result.add(f"{name}: lag, p50", "s of events", [float(np.median(lag)) / rate])
        waits = np.percentile(self.sent.ack_seconds * 1e3, (50, 99, 100))
        for quantile, wait in zip(("p50", "p99", "max"), waits, strict=True):
            result.add(f"{name}: ack, {quantile}", "ms", [float(wait)])
        for part, cores in sorted(self.cores.items(), key=lambda item: -item[1]):
            result.add(f"{name}: {part}", "cores", [cores])
        result.series[f"{name}: lag in events by second"] = [
            [round(t - at[0], 1), int(rows)] for t, rows in zip(at, lag, strict=True)
        ]
        result.notes.append(
            f"The sink equals the reference: {self.windows} windows, each event once."
        )

    def _lag(self) -> tuple[Times, Times]:
        """Times, one a second while events were sent, and the events that were behind then."""
        schedule = self.sent.schedule
        through, total = events_through(self.engine.node, STREAM)
        before = total - schedule.events - CLOSING_EVENTS
        commits = np.array([move for move, _ in self.moves])
        published = np.maximum(0, np.array([through[batch] for _, batch in self.moves]) - before)
        times = np.arange(self.sent.due[0], self.sent.acked[-1], 1.0)
        acked = np.searchsorted(np.array(self.sent.acked), times, "right") * schedule.rows
        done = np.searchsorted(commits, times, "right")
        lag = acked - np.concatenate(([0], published))[done]
        return times, lag.astype(np.float64)


def events_through(node: NodeUnderTest, query: str) -> tuple[dict[int, int], int]:
    """Events of the query's stream up to each of its marks, and all; the node has ended.

    Nothing that those marks cover may have been trimmed since the events that matter came.
    """
    journal = Journal.open(node.data_dir / "journal", group="test")
    by_sequence, marks, total = dict[int, int](), dict[int, int](), 0
    for record in journal.read(journal.first, payloads=False):
        match record.body:
            case Events(stream=stream, rows=rows) if stream == query:
                total += rows
            case Mark(query=of, number=number, through=through) if of == query:
                marks[number] = by_sequence.get(through, 0)
        by_sequence[record.position.sequence] = total
    journal.close()
    return marks, total


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
