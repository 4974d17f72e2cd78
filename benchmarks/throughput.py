"""Rows a second, the engine against the plain job: from stored events to rows in PostgreSQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rich.console import Console

from benchmarks.database import Database
from benchmarks.engine_side import EngineSide
from benchmarks.feeder import CONNECTIONS
from benchmarks.plain_side import PlainPair, PlainSide
from benchmarks.processes import cpu_seconds, spent, standing_still
from benchmarks.report import Result
from benchmarks.workload import BATCH_EVENTS, REQUEST_ROWS, WINDOW_EVENTS, Workload, requests

RATIO_MIN = 0.8


class Throughput:
    """Rounds of ``rows`` events, the sides in turns; the first warms up and does not count."""

    def __init__(
        self,
        engine: EngineSide,
        plain: PlainSide | PlainPair,
        database: Database,
        rows: int,
        ratio_min: float = RATIO_MIN,
    ) -> None:
        self._engine, self._plain, self._database = engine, plain, database
        self._ratio_min = ratio_min
        self._rows = rows - rows % REQUEST_ROWS
        self._next_id = REQUEST_ROWS

    @property
    def next_id(self) -> int:
        """Behind the last one that was sent."""
        return self._next_id

    def measure(self, workload: Workload, rounds: int, result: Result, console: Console) -> None:
        rates: dict[str, list[float]] = defaultdict(list)
        for number in range(rounds + 1):
            found = self._round(workload, turned=number % 2 == 1)
            console.print(f"  {workload.title}, round {number}: " + _line(found))
            if number > 0:
                for name, rate in found.items():
                    rates[name].append(rate)
        self._report(workload, rates, result)

    def _round(self, workload: Workload, turned: bool) -> dict[str, float]:
        rates: dict[str, float] = {}
        sides = [self._run_engine, self._run_plain]
        for run in reversed(sides) if turned else sides:
            rates |= run(workload.name)
        self._check(workload)
        return rates

    def _run_engine(self, name: str) -> dict[str, float]:
        self._database.empty(f"engine_{name}")
        with standing_still(self._plain.processes()):
            return engine_rates(self._engine, name, self._next_id, self._rows)

    def _run_plain(self, name: str) -> dict[str, float]:
        """The same events; the second half is read too, so that both sides' tables are equal."""
        for tables in self._plain.tables:
            self._database.empty(f"{tables}_{name}")
        with standing_still(self._engine.spark_processes()):
            before = cpu_seconds(self._plain.processes())
            self._plain.stage(name, requests(self._next_id, self._rows))
            first = self._rows / self._plain.run(name)
            used = spent(before, cpu_seconds(self._plain.processes()))
            self._plain.stage(name, requests(self._next_id + self._rows, self._rows))
            second = self._rows / self._plain.run(name)
        return {"plain": (first + second) / 2, "plain_cpu": used / self._rows * 1e6}

    def _check(self, workload: Workload) -> None:
        """A side that lost or repeated rows has no rate.

        Which windows are closed at the end of a round depends on where its last batches were cut.
        """
        self._next_id += 2 * self._rows
        tables = [f"{side}_{workload.name}" for side in ("engine", *self._plain.tables)]
        if workload.name == "windowed":
            counts = [self._database.sum_of_events(table) for table in tables]
        else:
            counts = [self._database.count(table) for table in tables]
        allowed = 2 * (BATCH_EVENTS + WINDOW_EVENTS) if workload.name == "windowed" else 0
        if max(counts) - min(counts) > allowed:
            raise RuntimeError(f"{workload.name}: the sides differ, {counts}")

    def _report(self, workload: Workload, rates: dict[str, list[float]], result: Result) -> None:
        title = workload.title
        for name, words in (("journal", "from the journal"), ("http", "through HTTP")):
            ratios = [ours / plain for ours, plain in zip(rates[name], rates["plain"], strict=True)]
            if name == "journal":
                result.at_least(f"{title}, {words}, of plain", ratios, self._ratio_min, "ratio")
            else:
                result.add(f"{title}, {words}, of plain", "ratio", ratios)
        for name, words in _RATES.items():
            result.add(f"{title}, {words}", "rows/s", rates[name])
        for name, words in _CPU.items():
            result.add(f"{title}, {words}", "s per million rows", rates[name])


def engine_rates(
    engine: EngineSide,
    stream: str,
    first: int,
    rows: int,
    request_rows: int = REQUEST_ROWS,
    connections: int = CONNECTIONS,
) -> dict[str, float]:
    """Of ``rows`` events that wait in the journal, then of as many more through HTTP."""
    engine.stage(stream, requests(first, rows, request_rows), connections)
    feeding, working, used = engine.run_from_journal(stream)
    engine.stage(stream, requests(first + rows, rows, request_rows), connections)
    through = engine.run_through_http(stream)
    return {
        "journal": rows / working,
        "feed": rows / feeding,
        "http": rows / through,
        "journal_cpu": used / rows * 1e6,
    }


WAYS = {
    "journal": "acked events to PostgreSQL",
    "http": "HTTP to PostgreSQL",
    "feed": "HTTP to ack alone",
}
"""What ``engine_rates`` measures, in words."""
_RATES = {"plain": "plain job", **{way: f"engine, {words}" for way, words in WAYS.items()}}
_CPU = {"journal_cpu": "engine, CPU from the journal", "plain_cpu": "plain job, CPU"}


def _line(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {rate:,.1f}" for name, rate in sorted(found.items()))


def measure_all(
    workloads: Sequence[Workload],
    throughput: Throughput,
    rounds: int,
    result: Result,
    console: Console,
) -> None:
    for workload in workloads:
        throughput.measure(workload, rounds, result, console)
