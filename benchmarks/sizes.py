"""Rows a second of one node by rows per request, and by ``query.max_events_per_batch``.

The windowed aggregation, since the price of a batch is highest there (each writes a version of the
state) and few rows leave it, so that the sink does not hide the rest.

Requests: from the first one to the last row. A producer with one under way would measure the round
trip, so there are up to 16 connections, and fewer where more rows under way would come too late for
the watermark. The producer shares the cores, so its own work for each request counts too.

Batches: only events that wait in the journal fill them, so "acked events to PostgreSQL" is their
figure. A batch ends between two records, somewhat below its limit. Requests have 5,000 rows there,
since a request must fit a record, and a record the smallest batch.

There is a node for each limit, all of them warm; one works at a time, and the others idle at a few
percent of a core each. What comes out is compared with the reference: each event once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from rich.console import Console

from benchmarks.database import Database
from benchmarks.engine_side import EngineSide
from benchmarks.feeder import CONNECTIONS
from benchmarks.paced import Schedule
from benchmarks.reference import closing_events, require_equal
from benchmarks.report import Result
from benchmarks.throughput import WAYS, engine_rates
from benchmarks.workload import BATCH_EVENTS, REQUEST_ROWS, WINDOW_EVENTS, WINDOWED

CONNECTIONS_MAX = 16
UNDER_WAY_ROWS = CONNECTIONS * REQUEST_ROWS
"""Four seconds of event time; the watermark's delay is ten."""
STREAM, TABLE = WINDOWED.name, f"engine_{WINDOWED.name}"


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of each request, and the most events of a batch."""

    request_rows: int
    batch_events: int

    @property
    def title(self) -> str:
        return f"{self.request_rows:,} rows a request, {self.batch_events:,} events a batch"

    @property
    def connections(self) -> int:
        return min(CONNECTIONS_MAX, UNDER_WAY_ROWS // self.request_rows)


LIMITS = (10_000, 50_000, BATCH_EVENTS)
BY_REQUEST = {rows: Case(rows, BATCH_EVENTS) for rows in (100, 1_000, 5_000, REQUEST_ROWS)}
BY_LIMIT = {limit: Case(5_000, limit) for limit in LIMITS}
"""The last of each is what the others are compared with."""
CASES = list(dict.fromkeys([*BY_REQUEST.values(), *BY_LIMIT.values()]))


@dataclass
class Sizes:
    """``nodes``, with the database of each, by the limit of their batches."""

    nodes: Mapping[int, tuple[EngineSide, Database]]
    rows: int
    result: Result
    console: Console
    next_window: int = 3

    def __post_init__(self) -> None:
        self.rows -= self.rows % REQUEST_ROWS

    def measure(self, rounds: int) -> None:
        """Each round has one sample of each case; before them each node warms up."""
        for case in BY_LIMIT.values():
            self._run(case)
        for number in range(rounds):
            for case in CASES[::-1] if number % 2 else CASES:
                self._keep(case, self._run(case))
        self._compare("rows a request", BY_REQUEST)
        self._compare("events a batch", BY_LIMIT)

    def _run(self, case: Case) -> dict[str, float]:
        """Raises SinkDiffers: who lost or repeated an event has no rate."""
        engine, database = self.nodes[case.batch_events]
        database.empty(TABLE)
        first, rows = self.next_window * WINDOW_EVENTS, case.request_rows
        rates = engine_rates(engine, STREAM, first, self.rows, rows, case.connections)
        sent = Schedule(first, rows, a_second=1, count=2 * self.rows // rows)
        closing = closing_events(sent)
        engine.feed_singly(STREAM, closing)
        require_equal(database, TABLE, sent)
        self.next_window = closing[-1] // WINDOW_EVENTS + 3
        return rates

    def _keep(self, case: Case, rates: dict[str, float]) -> None:
        told = ", ".join(f"{words} {rates[way]:,.0f} rows/s" for way, words in WAYS.items())
        self.console.print(f"  {case.title}: {told}", highlight=False)
        for way, words in WAYS.items():
            self.result.extend(f"{case.title}, {words}", "rows/s", rates[way])

    def _compare(self, words: str, cases: Mapping[int, Case]) -> None:
        *others, base = cases
        for size, way in product(others, ("http", "journal")):
            ours, theirs = (self._rates(cases[one], way) for one in (size, base))
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            self.result.add(f"{size:,} {words}, {WAYS[way]}, of {base:,}", "ratio", ratios)

    def _rates(self, case: Case, way: str) -> list[float]:
        return self.result.samples(f"{case.title}, {WAYS[way]}")
