"""Memory of the node process while a producer offers three times what the query can take."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from rich.console import Console

from benchmarks.database import Database
from benchmarks.engine_side import EngineSide
from benchmarks.feeder import Fed
from benchmarks.report import Result
from benchmarks.waiting import wait_until
from benchmarks.workload import as_ndjson, requests

MIB_MAX = 300.0
OFFERED = 3.0
REQUEST_ROWS = 5_000
STREAM = "filter_100"
PROBE_ROWS = 1_000_000


class Overload:
    """``offered`` counts what the producer tried to send, taken or not."""

    def __init__(self, engine: EngineSide, database: Database) -> None:
        self._engine, self._database = engine, database
        self._next_id = 0

    def measure(self, seconds: float, result: Result, console: Console) -> None:
        taken = self._taken_a_second()
        console.print(f"  the query takes {taken:,.0f} rows/s; offering {OFFERED:g} times that")
        peak: list[float] = []
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(peak, done), daemon=True)
        watch.start()
        began = time.monotonic()
        fed, offered = self._offer(taken * OFFERED, seconds)
        took = time.monotonic() - began
        acked = len(fed.acked) * REQUEST_ROWS
        console.print(f"  offered {offered:,} rows, acked {acked:,}; 429 {fed.refused:,} times")
        wait_until(lambda: self._engine.published(STREAM), within=600, every=0.5)
        done.set()
        watch.join()
        result.at_least("offered, of what the query takes", [offered / took / taken], 2.5, "ratio")
        self._report(result, peak, acked, offered, took, fed)

    def _taken_a_second(self) -> float:
        """What the pipeline takes of a backlog, warm."""
        for _ in range(2):
            self._engine.stage(STREAM, requests(self._next_id, PROBE_ROWS))
            self._next_id += PROBE_ROWS
            _, working, _ = self._engine.run_from_journal(STREAM)
        self._database.empty(f"engine_{STREAM}")
        return PROBE_ROWS / working

    def _offer(self, rows_a_second: float, seconds: float) -> tuple[Fed, int]:
        """Requests at their times, whatever the node answers."""
        made = [as_ndjson(batch) for batch in requests(0, 40 * REQUEST_ROWS, REQUEST_ROWS)]
        began, every = time.monotonic(), REQUEST_ROWS / rows_a_second

        def bodies() -> Iterator[bytes]:
            for number in range(int(seconds / every)):
                time.sleep(max(0.0, began + number * every - time.monotonic()))
                yield made[number % len(made)]

        fed = self._engine.feeder(STREAM).offer(bodies())
        return fed, (len(fed.acked) + fed.refused) * REQUEST_ROWS

    def _watch(self, peak: list[float], done: threading.Event) -> None:
        process = self._engine.node_process()
        while not done.wait(0.5):
            peak.append(process.memory_info().rss / (1 << 20))

    def _report(
        self,
        result: Result,
        peak: list[float],
        acked: int,
        offered: int,
        seconds: float,
        fed: Fed,
    ) -> None:
        stored = self._database.count(f"engine_{STREAM}")
        result.at_most("node process, peak RSS", [max(peak)], MIB_MAX, "MiB")
        result.at_most(
            "acked rows that are not in the sink", [float(abs(acked - stored))], 0, "rows"
        )
        result.at_least("refusals (429)", [float(fed.refused)], 1, "requests")
        result.add("offered", "rows/s", [offered / seconds])
        result.add("acked", "rows/s", [acked / seconds])
        result.add("node process, RSS", "MiB", peak)
