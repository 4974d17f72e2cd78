"""All benchmarks one after the other: ``make bench``.

Each writes its JSON when it ends, so an interrupted run keeps what it has. The summary shows what
has a target first, and is drawn as a picture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console

from benchmarks.picture import draw
from benchmarks.report import RESULTS, Result
from benchmarks.runs import Runs

RATES, QUICK_RATES = (1, 1_000, 10_000, 50_000), (1, 1_000, 10_000)


@dataclass(frozen=True, slots=True)
class Step:
    """One benchmark; ``minutes`` are those of a machine with two cores."""

    name: str
    minutes: int
    run: Callable[[], Result]


def whole(runs: Runs) -> list[Step]:
    """Every figure of the documents that the machine decides."""
    return [
        Step("throughput", 10, lambda: runs.throughput(rounds=5, rows=2_000_000)),
        Step("sizes", 6, lambda: runs.sizes(rounds=2, rows=1_000_000)),
        Step("latency", 5, lambda: runs.latency(rounds=3)),
        Step("load", 12, lambda: runs.load(RATES, seconds=20, rounds=3)),
        Step("pair", 14, lambda: runs.pair(rate=100_000, seconds=300, rounds=5, rows=2_000_000)),
        Step("receive", 1, lambda: runs.receive(seconds=5, rounds=3)),
        Step("price", 6, lambda: runs.price(rounds=5)),
        Step("nice", 8, lambda: runs.nice(rate=50_000, seconds=12, rounds=3)),
        Step("restart", 8, lambda: runs.restart(rounds=5)),
        Step("failover", 14, lambda: runs.failover(count=12, ttl="5s")),
        Step("snapshots", 10, lambda: runs.snapshots(1_000_000, 0, "hdfs", rounds=3)),
        Step("memory", 5, lambda: runs.memory(seconds=180)),
        Step("idle", 4, lambda: runs.idle(rounds=2, seconds=60)),
    ]


def quick(runs: Runs) -> list[Step]:
    """The same in small: what it says is rough, and that everything works is the point."""
    return [
        Step("throughput", 2, lambda: runs.throughput(rounds=1, rows=400_000)),
        Step("sizes", 2, lambda: runs.sizes(rounds=1, rows=200_000)),
        Step("load", 3, lambda: runs.load(QUICK_RATES, seconds=5, rounds=1)),
        Step("pair", 2, lambda: runs.pair(rate=20_000, seconds=20, rounds=1, rows=400_000)),
        Step("receive", 1, lambda: runs.receive(seconds=2, rounds=1)),
        Step("price", 1, lambda: runs.price(rounds=1)),
        Step("failover", 2, lambda: runs.failover(count=1, ttl="2s")),
        Step("snapshots", 2, lambda: runs.snapshots(50_000, 0, "hdfs", rounds=0)),
        Step("memory", 1, lambda: runs.memory(seconds=20)),
    ]


def run_all(steps: list[Step], name: str, console: Console) -> Result:
    """The result of all, saved together with its picture. A step that fails is told and skipped."""
    together, left = Result(name), sum(step.minutes for step in steps)
    console.print(f"{len(steps)} benchmarks, about {left} minutes", highlight=False)
    for number, step in enumerate(steps, 1):
        console.rule(f"{number}/{len(steps)} {step.name}: {step.minutes} of {left} minutes left")
        left -= step.minutes
        for result in _results(step, together, console):
            console.print(f"written to {result.save()}", highlight=False)
            together.take(result)
    together.show(console)
    console.print(f"written to {together.save()} and {draw(together, RESULTS)}", highlight=False)
    return together


def _results(step: Step, together: Result, console: Console) -> Iterator[Result]:
    began = time.monotonic()
    try:
        yield step.run()
    except Exception as error:
        together.failures.append(f"{step.name}: {error}")
        console.print_exception(max_frames=6)
    console.print(f"{step.name} took {(time.monotonic() - began) / 60:.1f} minutes")
