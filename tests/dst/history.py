"""A history that a seed makes, and its transcript."""

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
    """What every history has: its seed, the virtual time, what it reached, and a transcript.

    ``root`` is an empty directory of the host for the simulated disks.
    """

    def __init__(self, seed: int, root: Path) -> None:
        self.seed, self.random, self.root = seed, Random(seed), root
        self.counts: Counter[str] = Counter()
        self.agenda = Agenda()
        self.story: list[str] = []
        # An invariant that was found broken by a callback, whose caller catches exceptions.
        self._broken: Failed | None = None

    def play(self) -> None:
        """Play the whole history. Raises Failed, or Refused."""
        raise NotImplementedError

    def transcript(self) -> str:
        return "\n".join(self.story)

    def tell(self, text: str) -> None:
        self.story.append(text.replace(str(self.root), ""))

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            self.tell(f"BROKEN: {text}")
            self._broken = self._broken or self.failed()
            raise self._broken

    def failed(self) -> Failed:
        return Failed(f"seed {self.seed}\n{self.transcript()}")

    def wait(self, seconds: float) -> None:
        self.agenda.run_until(self.agenda.now + seconds)
        if self._broken is not None:
            raise self._broken


class DiskHistory(History):
    """A history of one disk, and of the processes that work on it one after the other."""

    def __init__(self, seed: int, root: Path) -> None:
        super().__init__(seed, root)
        self.disk = SimulatedDisk(root / "disk", self.random)
        self.disk.reorders = self.random.random() < 0.2
        self.counts = self.disk.counts
        self.failure: BaseException | None = None
        self.start_process()

    def tell(self, text: str) -> None:
        self.story += [f"    {step}" for step in self.files.trace]
        self.files.trace.clear()
        super().tell(text)

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

    def plan_a_misread(self, likelihood: float, reads: int) -> None:
        """Perhaps let one of the next reads fail, or return a flipped bit."""
        if self.random.random() < likelihood:
            self.files.unreadable_in = self.random.randint(1, reads)
        elif self.random.random() < likelihood:
            self.files.misread_in = self.random.randint(1, reads)

    @property
    def faulty(self) -> bool:
        """Whether a change of the disk, or a read, may fail now."""
        files = self.files
        return bool(files.fail_in or files.unreadable_in or files.misread_in or self.disk.full)

    @property
    def over(self) -> bool:
        """Whether the process has ended, or is about to."""
        return self.files.dead or self.failure is not None

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
    return _played(kind, seed).transcript()


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
            raise history.failed() from error
        finally:
            logging.disable(logged)
        return history
