"""A history that a seed makes: processes on one simulated disk, one life after the other."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from structlog.testing import capture_logs

from tests.dst.disk import SimulatedDisk, SimulatedFiles
from tests.dst.loop import ProcessLoop
from tests.sim.agenda import Agenda
from tests.sim.history import Failed

SHARED_MEMORY = Path("/dev/shm")
SYNCS = frozenset({"fsync", "fdatasync"})


class Refused(Exception):
    """The data cannot be opened, for a good reason, so the history ends."""


class History:
    """A disk, the process that works on it at present, and the transcript of both."""

    def __init__(self, seed: int, root: Path) -> None:
        self.seed, self.random = seed, Random(seed)
        self.disk = SimulatedDisk(root / "disk", self.random)
        self.disk.reorders = self.random.random() < 0.2
        self.counts: Counter[str] = self.disk.counts
        self.agenda = Agenda()
        self.story: list[str] = []
        # An invariant that was found broken by a callback, whose caller catches exceptions.
        self._broken: Failed | None = None
        self.failure: BaseException | None = None
        self.start_process()

    def play(self) -> None:
        """Play the whole history. Raises Failed, or Refused."""
        raise NotImplementedError

    def tell(self, text: str) -> None:
        self.story += [f"    {step}" for step in self.files.trace]
        self.files.trace.clear()
        self.story.append(text.replace(str(self.disk.root), ""))

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            self.tell(f"BROKEN: {text}")
            self._broken = Failed("\n".join([f"seed {self.seed}", *self.story]))
            raise self._broken

    # -- one process -------------------------------------------------------------------------------

    def start_process(self) -> None:
        self.disk.full = False
        self.loop = ProcessLoop(self.agenda, self.random, lambda: self.files.take_delay())
        self.files = SimulatedFiles(self.disk, self.loop.kill)
        self.failure = None

    def plan_a_fault(self, likelihood: float, steps: int) -> None:
        """Perhaps let one of the next changes of the disk fail, hang, or be the last."""
        files, random = self.files, self.random
        if random.random() < likelihood:
            files.crash_in = random.randint(1, steps)
        elif random.random() < likelihood:
            files.fail_in = random.randint(1, steps)
            files.fails_on = random.choice([frozenset[str](), SYNCS])
        elif random.random() < likelihood / 5:
            files.hang_in = random.randint(1, steps)
            files.fails_on = SYNCS
        elif random.random() < likelihood:
            files.slow_in = random.randint(1, steps)
        self.disk.full = self.disk.full or random.random() < likelihood / 5

    @property
    def faulty(self) -> bool:
        """Whether a change of the disk may fail now."""
        return bool(self.files.fail_in or self.disk.full)

    @property
    def over(self) -> bool:
        """Whether the process has ended, or is about to."""
        return self.files.dead or self.failure is not None

    def wait(self, seconds: float) -> None:
        self.agenda.run_until(self.agenda.now + seconds)
        if self._broken is not None:
            raise self._broken

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Wait until ``done``, or until the process ends; a hanging disk ends it after a while."""
        for _ in range(100):
            if done() or self.over:
                return
            self.wait(0.5)
        self.require(False, "the process waits for ever")

    def end_process(self) -> None:
        self.files.kill()
        self.loop.dispose()


def play(kind: type[History], seed: int) -> Counter[str]:
    """Play the history of ``seed``, and return what it reached. Raises Failed."""
    return _played(kind, seed).counts


def tell(kind: type[History], seed: int) -> str:
    """Play the history of ``seed``, and return its transcript. Raises Failed."""
    return "\n".join(_played(kind, seed).story)


def _played(kind: type[History], seed: int) -> History:
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="ha-engine-dst-", dir=place) as root:
        history, logged = kind(seed, Path(root)), logging.root.manager.disable
        logging.disable()
        try:
            with capture_logs():
                history.play()
        except Refused as refused:
            history.tell(f"the history ends: {refused}")
        except Failed:
            raise
        except Exception as error:
            history.tell(f"{type(error).__name__}: {error}")
            raise Failed("\n".join([f"seed {seed}", *history.story])) from error
        finally:
            logging.disable(logged)
        return history
