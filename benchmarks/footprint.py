"""CPU and memory of each process of a node: until its first batch, at rest, and at work."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict

import psutil
from rich.console import Console

from benchmarks.engine_side import EngineSide
from benchmarks.paced import Schedule, Sent, send
from benchmarks.processes import cpu_seconds, part_of, percent_by_part
from benchmarks.report import Result

REST_SECONDS = 30.0
"""After the first batches Java goes on compiling for a while."""
REQUESTS_A_SECOND = 20
FIRST_ID = 1 << 30
MIB = 1 << 20


def measure(
    engine: EngineSide, stream: str, rate: int, seconds: float, result: Result, console: Console
) -> None:
    """``engine`` has just started, and its queries have worked once."""
    begun = cpu_seconds(processes := engine.processes())
    _report(result, "start", "s of CPU", _by_part(processes, begun))
    _memory(engine, "after the start", result)
    console.print("  started; now at rest")
    percent_by_part(engine.processes(), REST_SECONDS)
    _report(result, "rest", "% of a core", percent_by_part(engine.processes(), seconds))
    _memory(engine, "rest", result)
    console.print(f"  now {rate:,} events/s")
    load = Sent(Schedule.of_rate(FIRST_ID, rate, seconds, REQUESTS_A_SECOND))
    working = threading.Thread(target=send, args=(engine.urls, stream, load))
    working.start()
    _report(result, "load", "% of a core", percent_by_part(engine.processes(), seconds))
    working.join()
    _memory(engine, "load", result)


def _memory(engine: EngineSide, when: str, result: Result) -> None:
    """Resident, and proportionally: what processes share counts once in all."""
    resident, proportional = dict[int, float](), dict[int, float]()
    processes = engine.processes()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info()
            resident[process.pid], proportional[process.pid] = memory.rss / MIB, memory.pss / MIB
    _report(result, when, "MiB (RSS)", _by_part(processes, resident))
    _report(result, when, "MiB (PSS)", _by_part(processes, proportional))


def _by_part(processes: list[psutil.Process], found: dict[int, float]) -> dict[str, float]:
    parts: dict[str, float] = defaultdict(float)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            parts[part_of(process)] += found.get(process.pid, 0.0)
    return parts


def _report(result: Result, when: str, unit: str, parts: dict[str, float]) -> None:
    for part, amount in sorted(parts.items()):
        result.extend(f"{when}, {part}, {unit}", unit, amount)
    result.extend(f"{when}, all, {unit}", unit, sum(parts.values()))
