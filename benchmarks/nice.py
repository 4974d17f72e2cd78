"""Acks of single events while two nodes with Spark at work share the machine, by ``query.nice``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import product

import numpy as np
from rich.console import Console

from benchmarks.engine_side import EngineSide
from benchmarks.paced import Schedule, Sent, Times, send
from benchmarks.report import Result
from benchmarks.workload import WINDOWED
from benchmarks.workload import WORKLOADS as ALL

WORKLOADS = LOADED, PROBED = WINDOWED, ALL[0]
WORK_REQUESTS_A_SECOND, PROBES_A_SECOND = 20, 50
LEVELS = (5, 10, 15)
SETTLE_SECONDS = 5.0


def measure(
    pair_at: Callable[[int], AbstractContextManager[EngineSide]],
    rate: int,
    seconds: float,
    rounds: int,
    result: Result,
    console: Console,
) -> None:
    """``pair_at`` starts a pair with that ``nice``; each round has one of each level."""
    for number in range(rounds):
        for level in LEVELS if number % 2 else LEVELS[::-1]:
            with pair_at(level) as engine:
                acks = _acks_at_work(engine, rate, seconds)
            for quantile, words in ((50, "p50"), (99, "p99")):
                result.extend(
                    f"nice {level}: ack {words}", "ms", float(np.percentile(acks, quantile))
                )
            console.print(f"  nice {level}: ack p50 {np.median(acks):.0f} ms", highlight=False)
    for level, words in product(LEVELS[1:], ("p50", "p99")):
        base, stepped = (result.samples(f"nice {n}: ack {words}") for n in (LEVELS[0], level))
        ratios = [a / b for a, b in zip(stepped, base, strict=True)]
        result.at_most(f"ack {words} with nice {level}, of {LEVELS[0]}", ratios, 1.0, "ratio")


def _acks_at_work(engine: EngineSide, rate: int, seconds: float) -> Times:
    """Milliseconds of each single event, while both Sparks work off ``rate`` events/s."""
    whole = seconds + 2 * SETTLE_SECONDS
    load = Sent(Schedule.of_rate(1 << 30, rate, whole, WORK_REQUESTS_A_SECOND))
    working = threading.Thread(target=send, args=(engine.urls, LOADED.name, load))
    working.start()
    probes = Schedule.of_rate(1 << 40, PROBES_A_SECOND, seconds + SETTLE_SECONDS, PROBES_A_SECOND)
    acks = send(engine.urls, PROBED.name, Sent(probes)).ack_seconds * 1e3
    working.join()
    return acks[int(SETTLE_SECONDS * PROBES_A_SECOND) :]
