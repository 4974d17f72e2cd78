"""Run rows of the matrix on a pair that continues to work between the runs.

    python -m tests.faults matrix --tier 1 --runs 500 --seed 7 [--rows a,b] [--resume DIRECTORY]

Each run begins with a whole pair under load, and ends with a pair at rest, whose history since its
start the checker judges. A pair that failed, or that has had RUNS_OF_A_WORLD runs, is replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console

from benchmarks.report import checked_out
from ha_engine.demo.traffic import longest_gap
from tests.faults.active import in_random_order
from tests.faults.matrix import checker, evidence, report
from tests.faults.matrix.history import History, LeaseVersion
from tests.faults.matrix.hosts import holds
from tests.faults.matrix.load import Log, load
from tests.faults.matrix.needs import SPARK, STANDBY
from tests.faults.matrix.report import Run
from tests.faults.matrix.rows import ROWS
from tests.faults.matrix.scene import Row, Scene
from tests.faults.matrix.world import World, new_world
from tests.waiting import mark_descendants

RUNS_OF_A_WORLD = 25
BEFORE_SECONDS = (0.3, 1.2)
"""The load runs for a random one of these times before the fault."""
AFTER_SECONDS = 0.5
ACK_SECONDS = 30.0
DIFFERS = "a batch differs"
"""A node writes it into its log when its batch is not that of the active."""


@dataclass(frozen=True)
class Planned:
    row: Row
    number: int
    seed: int
    tier: int

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.row.name, self.number, self.seed, self.tier

    def chance(self) -> random.Random:
        return random.Random(f"{self.seed} {self.row.name} {self.number}")


@dataclass
class Times:
    """Moments of a run on the clock of the history: the fault, and the whole pair after it."""

    fault: float = math.nan
    whole: float = math.inf


@dataclass
class Bench:
    """A world with its log, and the directory of the results."""

    world: World
    results: Path
    log: Log = field(default_factory=Log)
    runs: int = 0

    def suits(self, planned: Planned, first: Planned) -> bool:
        """Return whether a world that was made for ``first`` is good for another run."""
        most = 1 if STANDBY in first.row.needs else RUNS_OF_A_WORLD
        return self.runs < most and planned.row.needs == first.row.needs

    def run(self, planned: Planned) -> Run:
        """Run once, and judge the history. A failed run leaves what is needed to explain it."""
        began, times, history = time.monotonic(), Times(), History()
        wrong: list[str] = []
        self.runs += 1
        told = {node.name: len(node.log_text()) for node in self.world.nodes}
        versions = len(self.world.leases())
        try:
            history = self._play(planned, times)
            wrong = checker.faults(history) + self._differences()
        except Exception as error:
            traceback.print_exc()
            history = self._at_unrest()
            wrong = [f"{type(error).__name__}: {error}", *checker.faults(history, at_rest=False)]
        moves = [move.at for move in history.published()]
        run = Run(
            *planned.key,
            wrong=tuple(wrong),
            acks=_gap(self.log.acks(), times),
            output=_gap(moves, times),
            whole=round(times.whole - times.fault, 3) if times.whole < math.inf else None,
            seconds=round(time.monotonic() - began, 1),
            reached={
                **report.reached(node.log_text()[told[node.name] :] for node in self.world.nodes),
                report.REMOVED: _removals(history.leases[max(0, versions - 1) :]),
            },
            commit=checked_out(),
        )
        if wrong:
            self._keep(planned, history)
        return run

    def _play(self, planned: Planned, times: Times) -> History:
        chance, world = planned.chance(), self.world
        active = world.whole()
        with load(world, self.log, self.runs):
            self._wait_acked()
            time.sleep(chance.uniform(*BEFORE_SECONDS))
            times.fault = time.monotonic()
            planned.row.fault(Scene(world, chance, active, world.other(active), self.log))
            world.heal()
            world.whole()
            times.whole = time.monotonic()
            self._wait_acked()
            time.sleep(AFTER_SECONDS)
        return evidence.collect(world, world.rest(), self.log)

    def _at_unrest(self) -> History:
        """Return what can be known of a pair that is not whole, or nothing."""
        try:
            active = self.world.pair.active()
            found = [node for node in self.world.nodes if node is active] or self.world.nodes
            return evidence.collect(self.world, found[0], self.log)
        except Exception:
            traceback.print_exc()
            return History()

    def _wait_acked(self) -> None:
        now = time.monotonic()
        acked = holds(lambda: any(at > now for at in self.log.acks()[-1:]), ACK_SECONDS)
        assert acked, "no event was acked"

    def _differences(self) -> list[str]:
        return [
            f"C2: {node.name} has a batch that differs"
            for node in self.world.nodes
            if DIFFERS in node.log_text()
        ]

    def _keep(self, planned: Planned, history: History) -> None:
        place = self.results / "-".join(map(str, planned.key))
        place.mkdir(exist_ok=True)
        for node in self.world.nodes:
            shutil.copy(node.directory / "node.log", place / f"{node.name}.log")
        shutil.copy(self.world.database.log_path, place)
        (place / "history.pickle").write_bytes(pickle.dumps(history))


def _removals(leases: Sequence[LeaseVersion]) -> int:
    """Return how often the holder of the lease removed a member."""
    return sum(
        before.epoch == after.epoch and not set(before.in_sync) <= set(after.in_sync)
        for before, after in pairwise(leases)
    )


def _gap(moments: list[float], times: Times) -> float:
    """Return the longest time between two moments of which the later is after the fault, until the
    pair was whole."""
    ended = [(at, 0) for at in sorted(moments) if at <= times.whole]
    following = [(at, 0) for at in sorted(moments) if at > times.whole][:1]
    return round(longest_gap([*ended, *following], times.fault), 3)


def plan(seed: int, count: int, tier: int, rows: list[str]) -> list[Planned]:
    """Return the runs, each row as often as the others, in an order that the seed gives."""
    numbers = {name: itertools.count(1) for name in rows}
    return [
        Planned(ROWS[name], next(numbers[name]), seed, tier)
        for name in in_random_order(count, seed, rows)
    ]


def run_all(planned: list[Planned], results: Path, minutes: float) -> None:
    """Run what has not ended in ``results`` yet; begin no run after ``minutes``."""
    until = time.monotonic() + 60 * minutes
    done = {run.key for run in report.runs(results)}
    waiting = [one for one in planned if one.key not in done]
    waiting.sort(key=lambda one: one.row.needs)
    while waiting and time.monotonic() < until:
        first = waiting[0]
        with _bench(results, first) as bench:
            while waiting and time.monotonic() < until and bench.suits(waiting[0], first):
                run = bench.run(waiting.pop(0))
                report.append(results, run)
                print(_line(run), flush=True)
                if run.wrong:
                    break


@contextlib.contextmanager
def _bench(results: Path, first: Planned) -> Iterator[Bench]:
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-matrix-"))
    try:
        with new_world(directory, first.tier, first.row.needs) as world:
            yield Bench(world, results)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _line(run: Run) -> str:
    told = "; ".join(run.wrong) or "passed"
    whole = "never whole" if run.whole is None else f"whole after {run.whole:.1f} s"
    return (
        f"{run.row} {run.number}: {told} (acks {run.acks:.2f} s, output {run.output:.2f} s, "
        f"{whole}, run {run.seconds:.1f} s)"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tier", type=int, choices=(1, 2), default=1, help="2: with Spark")
    parser.add_argument("--runs", type=int, default=len(ROWS))
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--rows", help="only these, divided by commas")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no new run later")
    parser.add_argument("--resume", type=Path, help="the results of an earlier call, to complete")


def main(given: argparse.Namespace) -> int:
    mark_descendants()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # the nodes end too
    known = [name for name, row in ROWS.items() if given.tier > 1 or SPARK not in row.needs]
    rows = given.rows.split(",") if given.rows else known
    if unknown := set(rows) - set(known):
        raise SystemExit(f"no row named {', '.join(unknown)}; there are {', '.join(known)}")
    results = given.resume or Path(tempfile.mkdtemp(prefix="ha-engine-matrix-results-"))
    results.mkdir(exist_ok=True)
    print(f"seed {given.seed}; results in {results}", flush=True)
    run_all(plan(given.seed, given.runs, given.tier, rows), results, given.minutes)
    found = report.runs(results)
    Console(width=200).print(report.table(found), report.coverage(found))
    failed = [run for run in found if run.wrong]
    print("\n".join(_line(run) for run in failed) or f"all {len(found)} runs passed")
    return 1 if failed else 0
