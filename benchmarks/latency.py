"""From the ack of an event to its row in PostgreSQL, and the same for the plain job.

The plain job's event counts from the moment in which its file can be read. Both ends are times of
one machine's clock; the commit's is PostgreSQL's own.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass

from rich.console import Console

from benchmarks.database import Database
from benchmarks.engine_side import EngineSide
from benchmarks.plain_side import PlainSide
from benchmarks.report import Result
from benchmarks.waiting import wait_until
from benchmarks.workload import as_ndjson, events

STREAM = "filter_100"


@dataclass(frozen=True, slots=True)
class Pace:
    """``rows`` events in each of ``a_second`` requests, for ``seconds``."""

    title: str
    a_second: float
    rows: int
    seconds: float


class Latency:
    """Blocks of one pace, the sides in turns."""

    def __init__(self, engine: EngineSide, plain: PlainSide | None, database: Database) -> None:
        self._engine, self._maybe_plain, self._database = engine, plain, database
        self._next_id = 1 << 40

    @property
    def _plain(self) -> PlainSide:
        assert self._maybe_plain is not None
        return self._maybe_plain

    def measure(
        self, pace: Pace, rounds: int, result: Result, console: Console, most: dict[str, float]
    ) -> None:
        """``most``: the largest ratio to the plain job's ``micro-batch`` or ``event to sink``."""
        p50s: dict[str, list[float]] = {"engine": [], "plain": [], "batch": []}
        p99s: dict[str, list[float]] = {"engine": [], "plain": []}
        self._block("engine", Pace("warm-up", pace.a_second, pace.rows, 5))
        self._block("plain", Pace("warm-up", pace.a_second, pace.rows, 5))
        for number in range(rounds):
            lines = self._plain.lines()
            for side in ("engine", "plain") if number % 2 else ("plain", "engine"):
                found = self._block(side, pace)
                p50s[side].append(statistics.median(found))
                p99s[side].append(statistics.quantiles(found, n=100)[98])
            batches = [_busy_ms(line) for line in self._plain.progress_since(STREAM, lines)]
            p50s["batch"].append(statistics.median(batches))
            console.print(f"  {pace.title}, round {number}: p50 " + _line(p50s, -1))
        self._report(pace, p50s, p99s, result, most)

    def _report(
        self,
        pace: Pace,
        p50s: dict[str, list[float]],
        p99s: dict[str, list[float]],
        result: Result,
        most: dict[str, float],
    ) -> None:
        for against, words in (("batch", "micro-batch"), ("plain", "event to sink")):
            ratios = [a / b for a, b in zip(p50s["engine"], p50s[against], strict=True)]
            name = f"{pace.title}, p50 of plain's {words}"
            if words in most:
                result.at_most(name, ratios, most[words], "ratio")
            else:
                result.add(name, "ratio", ratios)
        result.add(f"{pace.title}, engine ack to row, p50", "ms", p50s["engine"])
        result.add(f"{pace.title}, engine ack to row, p99", "ms", p99s["engine"])
        result.add(f"{pace.title}, plain event to row, p50", "ms", p50s["plain"])
        result.add(f"{pace.title}, plain event to row, p99", "ms", p99s["plain"])
        result.add(f"{pace.title}, plain micro-batch", "ms", p50s["batch"])

    def _block(self, side: str, pace: Pace) -> list[float]:
        """Milliseconds of each request of one block."""
        sent = self._send_engine(pace) if side == "engine" else self._send_plain(pace)
        return [(commit - ack) * 1e3 for ack, commit in self._committed(side, sent)]

    def trace(self, seconds: float) -> list[tuple[float, float]]:
        """Ack and commit of one event a second through the engine."""
        return self._committed("engine", self._send_engine(Pace("", 1, 1, seconds)))

    def _committed(self, side: str, sent: dict[int, float]) -> list[tuple[float, float]]:
        table, committed = f"{side}_{STREAM}", dict[int, float]()

        def all_there() -> bool:
            committed.update(self._database.committed_at(table, list(sent)))
            return len(committed) == len(sent)

        wait_until(all_there, within=60, every=0.3)
        return [(sent[row], committed[row]) for row in sent]

    def _send_engine(self, pace: Pace) -> dict[int, float]:
        """The time of each request's ack, by the id of its last row."""
        sent, connection = {}, self._engine.feeder(STREAM).connect()
        for last, batch in self._paced(pace):
            sent[last] = self._engine.put(connection, STREAM, as_ndjson(batch))
        connection.close()
        return sent

    def _send_plain(self, pace: Pace) -> dict[int, float]:
        return {last: self._plain.put(STREAM, batch) for last, batch in self._paced(pace)}

    def _paced(self, pace: Pace):  # type: ignore[no-untyped-def]
        """Batches at their times, which jitter, so that no period of one side is favoured."""
        jitter = random.Random(7)
        prepared = []
        for _ in range(max(1, round(pace.a_second * pace.seconds))):
            prepared.append(events(self._next_id, pace.rows))
            self._next_id += pace.rows
        due = time.monotonic()
        for batch in prepared:
            due += jitter.uniform(0.8, 1.2) / pace.a_second
            time.sleep(max(0.0, due - time.monotonic()))
            yield batch.column(0)[-1].as_py(), batch


def _busy_ms(progress: dict[str, object]) -> float:
    """A micro-batch without the wait for its first event, which lies inside latestOffset."""
    phases = progress["duration_ms"]
    assert isinstance(phases, dict)
    return float(phases["triggerExecution"] - phases.get("latestOffset", 0))


def _line(p50s: dict[str, list[float]], at: int) -> str:
    return ", ".join(f"{name} {values[at]:.0f} ms" for name, values in p50s.items())
