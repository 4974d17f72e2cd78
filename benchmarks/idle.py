"""CPU and wake-ups of a node that runs queries and gets no events, and what watchers cost it."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from pathlib import Path

from rich.console import Console

from benchmarks.engine_side import EngineSide
from benchmarks.processes import cpu_seconds, part_of, percent_by_part, spent
from benchmarks.report import Result

PERCENT_MAX = 1.0
WATCHERS = 10
STATUS_PATHS = "/v1/status", "/v1/cluster", "/metrics"
REQUESTS = 100


def measure_idle(
    engine: EngineSide, seconds: float, rounds: int, result: Result, console: Console
) -> None:
    """One sample a round; a first one is thrown away, since Spark is still compiling then."""
    samples: dict[str, list[float]] = defaultdict(list)
    wakes: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        woken = _switches(engine)
        found = percent_by_part(engine.processes(), seconds)
        console.print(f"  round {number}: {sum(found.values()):.2f} % of a core")
        for name, percent in found.items() if number else ():
            samples[name].append(percent)
        for name, times in _switches(engine).items() if number else ():
            wakes[name].append((times - woken.get(name, 0)) / seconds)
        if number:
            samples["all"].append(sum(found.values()))
    result.at_most("idle node, all processes", samples.pop("all"), PERCENT_MAX, "% of a core")
    for name, percents in sorted(samples.items()):
        result.add(f"idle node, {name}", "% of a core", percents)
    for name, times_a_second in sorted(wakes.items()):
        result.add(f"idle node, wake-ups of the {name}", "1/s", times_a_second)
    _measure_watchers(engine, seconds, rounds, result)


def _measure_watchers(engine: EngineSide, seconds: float, rounds: int, result: Result) -> None:
    """CPU of the node process for one answer, and while ten ask for its status once a second."""
    node, client = engine.node_process(), engine.node.http
    for path in STATUS_PATHS:
        before = cpu_seconds([node])
        for _ in range(REQUESTS):
            client.get(path).raise_for_status()
        used = spent(before, cpu_seconds([node])) / REQUESTS * 1e3
        result.add(f"idle node, CPU of GET {path}", "ms", [used])
    for _ in range(rounds):
        before, began = cpu_seconds([node]), time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            for _ in range(WATCHERS):
                client.get("/v1/status").raise_for_status()
            time.sleep(max(0.0, 1 - (time.monotonic() - began - passed)))
        used = spent(before, cpu_seconds([node])) / seconds * 100
        result.extend(f"idle node, node process with {WATCHERS} watchers", "% of a core", used)


def _switches(engine: EngineSide) -> dict[str, float]:
    """How often the threads of each part have waited for something, by now."""
    found: dict[str, float] = defaultdict(float)
    for process in engine.processes():
        for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
            with contextlib.suppress(OSError):
                words = status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()
                found[part_of(process)] += float(words[0])
    return found
