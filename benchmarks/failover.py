"""Outages as a producer and a sink see them; the run itself is that of the fault tests."""

from __future__ import annotations

from pathlib import Path

from benchmarks.database import Database
from benchmarks.report import Result
from tests.faults.active import in_random_order
from tests.faults.failovers import run_failovers

SEED = 1
INGEST_OVER_TTL_SECONDS = 1.0
WAITS_OUT_THE_LEASE = ("supervisor", "tree", "frozen")


def measure(directory: Path, database: Database, count: int, ttl: str, result: Result) -> None:
    """``count`` faults; raises RuntimeError when the sink does not end as if none had happened."""
    report = run_failovers(directory, database.url, in_random_order(count, SEED), ttl)
    if report.wrong:
        raise RuntimeError("; ".join(report.wrong))
    for outcome in report.outcomes:
        name = f"{outcome.fault}, ttl {ttl}"
        result.extend(f"{name}: longest time without an ack", "s", outcome.ingest)
        result.extend(f"{name}: the same in calm, before", "s", outcome.ingest_calm)
        result.extend(f"{name}: longest gap in output", "s", outcome.output)
        result.extend(f"{name}: gap in output in calm, before", "s", outcome.output_calm)
        result.extend(f"{name}: whole again", "s", outcome.whole)
    for fault in WAITS_OUT_THE_LEASE:
        name = f"{fault}, ttl {ttl}: longest time without an ack"
        if result.has(name):
            result.aim(name, float(ttl.removesuffix("s")) + INGEST_OVER_TTL_SECONDS)
    result.notes.append("The sink ended as if no fault had happened, both journals are equal.")
