"""Latency under offered load: from due to acknowledged, and from acknowledged to the row.

Every request is a sample, whenever its answer came: nothing is left out while the node is slow
(coordinated omission; see ``paced``). The last event of a request stands for it. A row is visible
from the commit of its batch, whose time is PostgreSQL's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console

from benchmarks.database import Database
from benchmarks.engine_side import EngineSide
from benchmarks.paced import Schedule, Sent, Times, send
from benchmarks.report import Result

STREAM, TABLE = "filter_100", "engine_filter_100"
REQUESTS_A_SECOND = 100
WARM_UP_SECONDS = 5.0
QUANTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0)
WAYS = ("due to ack", "ack to row", "due to row")


@dataclass
class OfferedLoad:
    """``side`` names the engine's side in the result."""

    side: str
    engine: EngineSide
    database: Database
    console: Console
    next_id: int = 1 << 40
    found: dict[str, list[Times]] = field(default_factory=dict)

    def measure(self, rates: Sequence[int], seconds: float, rounds: int, result: Result) -> None:
        for rate in rates:
            self._block(rate, WARM_UP_SECONDS)
            blocks = [self._shown(rate, self._block(rate, seconds)) for _ in range(rounds)]
            for way in WAYS:
                name = f"{self.side}, {rate:,} events/s, {way}"
                _report(name, [block[way] for block in blocks], result)

    def _block(self, rate: int, seconds: float) -> dict[str, Times]:
        """Milliseconds of each request, by way."""
        self.database.empty(TABLE)
        schedule = Schedule.of_rate(self.next_id, rate, seconds, REQUESTS_A_SECOND)
        self.next_id += schedule.events
        sent = send(self.engine.urls, STREAM, Sent(schedule))
        self.engine.wait_published(STREAM)
        ids = schedule.last_ids()
        rows = self.database.committed_at(TABLE, ids)
        due, acked = np.array(sent.due), np.array(sent.acked)
        visible = np.array([rows[one] for one in ids])
        ways = (acked - due, visible - acked, visible - due)
        return {way: times * 1e3 for way, times in zip(WAYS, ways, strict=True)}

    def _shown(self, rate: int, block: dict[str, Times]) -> dict[str, Times]:
        medians = ", ".join(f"{way} p50 {np.median(ms):.0f} ms" for way, ms in block.items())
        self.console.print(f"  {self.side}, {rate:,} events/s: {medians}", highlight=False)
        return block


def _report(name: str, blocks: Sequence[Times], result: Result) -> None:
    result.add(f"{name}, p50", "ms", [float(np.median(block)) for block in blocks])
    together = np.concatenate(blocks)
    for quantile, words in ((99, "p99"), (100, "max")):
        result.add(f"{name}, {words}", "ms", [float(np.percentile(together, quantile))])
    result.series[f"{name}, ms by percentile of {len(together)}"] = [
        [quantile, round(float(np.percentile(together, quantile)), 2)] for quantile in QUANTILES
    ]
