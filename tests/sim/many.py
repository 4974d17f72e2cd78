"""Many seeds, one after the other or in several processes, and the sum of their counts."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.sim.history import Failed, play
from tests.sim.variants import Variant

FILES = {
    Variant.PLAIN: "seeds.txt",
    Variant.FORCED: "forced_seeds.txt",
    Variant.ROLLED_BACK: "rolled_back_seeds.txt",
    Variant.WARM: "warm_seeds.txt",
    Variant.RESCALED: "rescaled_seeds.txt",
    Variant.DEPLOYED: "deployed_seeds.txt",
    Variant.SHADOWED: "shadowed_seeds.txt",
    Variant.BACKUP: "backup_seeds.txt",
}
PROGRESS_EVERY = 50
Outcome = tuple[int, Counter[str], str]
Play = Callable[[int], Counter[str]]


def known_seeds(variant: Variant = Variant.PLAIN) -> list[int]:
    """Return every seed of the variant that ever failed; a ``#`` begins its finding."""
    file = Path(__file__).with_name(FILES[variant])
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
    play: Play = play,
) -> Result:
    seeds, result, began = list(seeds), Result(), time.monotonic()
    for seed, counters, story in _outcomes(seeds, workers, play):
        result.played += 1
        result.counters += counters
        if story:
            result.failed.append(seed)
            result.stories.append(story)
        if progress and (result.played % PROGRESS_EVERY == 0 or result.played == len(seeds)):
            progress(result.played, len(seeds), result.failed)
    result.seconds = time.monotonic() - began
    return result


def _outcomes(seeds: list[int], workers: int, play: Play) -> Iterator[Outcome]:
    one = partial(_outcome, play)
    if workers == 1:
        yield from map(one, seeds)
        return
    # The workers are no forks of the tests' process: a child that collects the garbage of grpc.aio
    # waits for ever for a thread that only its parent has.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, seeds, chunksize=20)


def _outcome(play: Play, seed: int) -> Outcome:
    try:
        return seed, play(seed), ""
    except Failed as failed:
        return seed, Counter(), str(failed)


def show_progress(done: int, of: int, failed: list[int]) -> None:
    """A ``progress`` of play_all for a terminal."""
    end = "\n" if done == of else ""
    sys.stderr.write(f"\r{done} of {of} seeds, failed: {failed or 'none'}{end}")
    sys.stderr.flush()
