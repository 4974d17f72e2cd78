"""CPU of a node that runs queries and gets no events: all its processes, of one core."""

from __future__ import annotations

import time
from collections import defaultdict

from rich.console import Console

from benchmarks.engine_side import EngineSide
from benchmarks.processes import cpu_seconds, part_of
from benchmarks.report import Result

PERCENT_MAX = 10.0


def measure_idle(
    engine: EngineSide, seconds: float, rounds: int, result: Result, console: Console
) -> None:
    """One sample a round; a first one is thrown away, since Spark is still compiling then."""
    samples: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        found = _round(engine, seconds)
        console.print(f"  round {number}: {sum(found.values()):.2f} % of a core")
        for name, percent in found.items() if number else ():
            samples[name].append(percent)
        if number:
            samples["all"].append(sum(found.values()))
    result.at_most("idle node, all processes", samples.pop("all"), PERCENT_MAX, "% of a core")
    for name, percents in sorted(samples.items()):
        result.add(f"idle node, {name}", "% of a core", percents)


def _round(engine: EngineSide, seconds: float) -> dict[str, float]:
    """Percent of a core by part; a worker that ends meanwhile counts as far as it was seen."""
    processes = engine.processes()
    parts = {process.pid: part_of(process) for process in processes}
    before = cpu_seconds(processes)
    began = time.monotonic()
    time.sleep(seconds)
    after, took = cpu_seconds(processes), time.monotonic() - began
    found: dict[str, float] = defaultdict(float)
    for pid, used in after.items():
        found[parts[pid]] += (used - before[pid]) / took * 100
    return found
