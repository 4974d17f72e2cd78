"""Many seeds, one after the other or in several processes, and the sum of their counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.sim.history import Failed, play

SEEDS = Path(__file__).with_name("seeds.txt")
FORCED = Path(__file__).with_name("forced_seeds.txt")
PROGRESS_EVERY = 50
Outcome = tuple[int, Counter[str], str]


def known_seeds(file: Path = SEEDS) -> list[int]:
    """Return every seed that ever failed; a ``#`` begins its finding. FORCED: with ``forces``."""
    lines = (line.split("#")[0].strip() for line in file.read_text().splitlines())
    return [int(line) for line in lines if line]


@dataclass
class Result:
    seconds: float = 0.0
    played: int = 0
    failed: list[int] = field(default_factory=list)
    stories: list[str] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)

    @property
    def summary(self) -> str:
        reached = ", ".join(f"{what} {n}" for what, n in sorted(self.counters.items()))
        rate = self.played / self.seconds if self.seconds else 0.0
        violations = f"violations at seeds {self.failed}" if self.failed else "no violation"
        return f"{self.played} seeds, {rate:.1f} seeds/s, {violations}; {reached}"


def play_all(
    seeds: Iterable[int],
    workers: int = 1,
    progress: Callable[[int, int, list[int]], None] | None = None,
    *,
    forces: bool = False,
) -> Result:
    seeds, result, began = list(seeds), Result(), time.monotonic()
    for seed, counters, story in _outcomes(seeds, workers, forces):
        result.played += 1
        result.counters += counters
        if story:
            result.failed.append(seed)
            result.stories.append(story)
        if progress and (result.played % PROGRESS_EVERY == 0 or result.played == len(seeds)):
            progress(result.played, len(seeds), result.failed)
    result.seconds = time.monotonic() - began
    return result


def _outcomes(seeds: list[int], workers: int, forces: bool) -> Iterator[Outcome]:
    one = partial(_outcome, forces=forces)
    if workers == 1:
        yield from map(one, seeds)
        return
    # The workers are no forks of the tests' process: a child that collects the garbage of grpc.aio
    # waits for ever for a thread that only its parent has.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, seeds, chunksize=20)


def _outcome(seed: int, *, forces: bool) -> Outcome:
    try:
        return seed, play(seed, forces=forces), ""
    except Failed as failed:
        return seed, Counter(), str(failed)
