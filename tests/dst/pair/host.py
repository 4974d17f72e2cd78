"""A host: its disk and its clock, its supervisor, and the node and query processes on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from ha_engine.core import inputs as on
from ha_engine.errors import (
    DatabaseUnreachable,
    DiskFailed,
    ForeignJournal,
    JournalDamaged,
    JournalReplaced,
    OutboxDamaged,
    UnknownJournalVersion,
)
from ha_engine.node.lease_release import release
from ha_engine.types import Holder
from tests.dst.disk import Crashed, SimulatedDisk, SimulatedFiles
from tests.dst.pair.checkpoint import reboot
from tests.dst.pair.database import NodeLeaseStore
from tests.dst.pair.group import Application
from tests.dst.pair.process import NodeProcess
from tests.dst.pair.spark import QueryProcess

if TYPE_CHECKING:
    from tests.dst.pair.history import PairHistory

DRIFT_MAX = 0.03
BATCH_SECONDS = 0.3
REFUSALS = (JournalDamaged, OutboxDamaged, ForeignJournal, UnknownJournalVersion)
SYNCS = frozenset({"fsync", "fdatasync"})


@dataclass(frozen=True)
class _Supervisor:
    """The supervisor of a host as a caller of the database."""

    host: Host
    by_node = False

    def charge(self, seconds: float) -> None:
        """Take no notice, because the supervisor waits for the database in a process of its own."""


class Host:
    """``process`` and ``spark`` are the living node process and query process, if any. The host is
    also the driver's port to its supervisor."""

    def __init__(self, history: PairHistory, name: str, peer: str) -> None:
        self.history, self.name, self.peer = history, name, peer
        self.random = Random(history.random.random())
        self.disk = SimulatedDisk(history.root / name, self.random)
        self.disk.counts = history.counts
        self.home = self.disk.root / "data"
        self.application = history.application
        self.runs_spark = True
        # The longest time of a batch.
        self.batch_seconds = BATCH_SECONDS
        self.process: NodeProcess | None = None
        self.spark: QueryProcess | None = None
        self._rate = 1 + self.random.uniform(-DRIFT_MAX, DRIFT_MAX)
        self._offset = self.random.uniform(0, 1000)
        self._processes = self._wiped = self._boots = 0
        # The last process of this host, if nobody has released its lease.
        self._unreleased: str | None = None
        # A fault of the disk may have ended the process.
        self.faulty = False
        # How often the disk fails during a start.
        self.start_faults = 0.0
        self.refused: str | None = None
        # The queries whose state only a snapshot has.
        self.lost_states = set[str]()
        # Whether the disk is a copy of the other host's.
        self.copied = False

    def clock(self) -> float:
        """CLOCK_BOOTTIME of this host, which drifts."""
        return self._offset + self._rate * self.history.agenda.now

    @property
    def checkpoints(self) -> Path:
        return self.home / "checkpoints"

    def boot_again(self) -> None:
        """Have the checkpoints of an earlier boot, after a loss of power or with another disk."""
        self._boots += 1
        reboot(self.home, self.disk, f"boot {self._boots}")

    # -- node processes ----------------------------------------------------------------------------

    def start(self) -> None:
        if self.process is not None or self.name in self.history.unpowered:
            return
        self._processes += 1
        earlier, self._unreleased = self._unreleased, None
        process = NodeProcess(self, f"{self.name}{self._processes}", earlier)
        fails = self.random.random() < self.start_faults
        self.faulty = fails or self.disk.full
        if fails:
            kind = self.random.choice(["crash_in", "fail_in"])
            setattr(process.files, kind, self.random.randint(1, 20))
        self.history.note(self.name, f"starts process {process.name}")
        try:
            process.start()
        except Crashed:
            self._not_started(process, "it died")
        except DiskFailed as error:
            self.history.require(self.faulty, f"not started: {error}")
            self._not_started(process, str(error))
        except REFUSALS as error:
            self._not_started(process, str(error))
            self.refused = str(error)
            self.history.judge.refuses(self, error)
            self.history.agenda.after(self.random.uniform(0.5, 3), self.reinit)
        else:
            self.process, self.refused = process, None

    def _not_started(self, process: NodeProcess, reason: str) -> None:
        process.dead = True
        process.loop.kill()
        process.loop.dispose()
        process.close()
        self.history.note(self.name, f"has not started: {reason}")
        self._start_soon()

    def _start_soon(self) -> None:
        self.history.agenda.after(self.random.uniform(0.1, self.history.restart_within), self.start)

    def node_died(self, process: NodeProcess, error: BaseException | None) -> None:
        """Note the end of a node process, with the error that ended it."""
        if self.process is not process:
            return
        self.process = None
        self.history.note(self.name, f"process {process.name} has ended: {error!r}")
        for failure in process.loop.failures:
            crashed = isinstance(failure, Crashed | DiskFailed)
            self.history.require(crashed, f"{process.name} failed: {failure!r}")
        expected = error is None or isinstance(error, JournalReplaced)
        expected = expected or (isinstance(error, DiskFailed) and self.faulty)
        self.history.require(expected, f"{process.name} ended: {error!r}")
        self.history.judge.ended(process)
        self.history.network.died(process, silently=self.name in self.history.unpowered)
        if self.spark is not None:
            self.spark.node_died()
        self._unreleased = process.name
        if self.random.random() < 0.5 and self.name not in self.history.unpowered:
            self.history.agenda.after(self.random.uniform(0.01, 0.5), self._release)
        self._start_soon()

    def _release(self) -> None:
        """Release the lease of the dead process, as its supervisor does."""
        if self._unreleased is None:
            return
        dead, self._unreleased = Holder(self.name, self._unreleased), None
        try:
            release(NodeLeaseStore(self.history.database, _Supervisor(self)), dead, self.home)
        except (DatabaseUnreachable, DiskFailed):
            self._unreleased = dead.process
        self.history.counts["releases by a supervisor"] += 1

    # -- the supervisor ----------------------------------------------------------------------------

    def start_process(self, incarnation: str) -> None:
        self.history.agenda.after(
            self.random.uniform(0.02, 0.4), lambda: self._start_spark(incarnation)
        )

    def _start_spark(self, incarnation: str) -> None:
        process = self.process
        if process is None or process.core.query_control.process.incarnation != incarnation:
            return
        if not self.runs_spark:
            self.history.agenda.after(0.5, lambda: self._start_spark(incarnation))
            return
        if self.spark is not None:
            self.spark.kill("another query process starts")
        self.spark = QueryProcess(self, incarnation)
        self.spark.start()

    def stop_process(self, incarnation: str, reason: str) -> None:
        spark = self.spark

        def stop() -> None:
            if spark is not None and spark.incarnation == incarnation:
                spark.kill(reason)
            elif self.process is not None:
                self.process.feed(on.QueryProcessGone(incarnation, reason))

        self.history.agenda.after(self.random.uniform(0.001, 0.05), stop)

    def spark_died(self, spark: QueryProcess, reason: str) -> None:
        if self.spark is spark:
            self.spark = None
        self.history.note(self.name, f"query process {spark.incarnation} has ended: {reason}")
        self.history.counts["deaths of a query process"] += 1
        if self.process is not None:
            self.process.feed(on.QueryProcessGone(spark.incarnation, reason, by_host=True))

    # -- faults ------------------------------------------------------------------------------------

    def kill(self, *, query_process_dies: bool) -> None:
        if self.process is not None:
            self.process.kill()
        if query_process_dies and self.spark is not None:
            self.spark.kill()

    def lose_power(self) -> None:
        """Lose power: all processes, and what no fsync made durable."""
        self.history.unpowered.add(self.name)
        self.kill(query_process_dies=True)
        self._unreleased = None
        self.disk.lose_power()
        self.boot_again()

    def get_power(self) -> None:
        self.history.unpowered.discard(self.name)
        self._start_soon()

    def pause(self, seconds: float) -> None:
        process = self.process
        if process is None or process.loop.paused:
            return
        process.loop.pause()
        self.history.network.notice()
        self.history.agenda.after(seconds, process.loop.resume)

    def resume(self) -> None:
        if self.process is not None:
            self.process.loop.resume()

    def plan_a_fault(self, kind: str, steps: int) -> None:
        """Let one of the next changes of the disk by the node process fail, hang, be slow, or be
        its last."""
        if self.process is None:
            return
        files: SimulatedFiles = self.process.files
        self.faulty = True
        match kind:
            case "crash":
                files.crash_in = steps
            case "fail":
                files.fail_in = steps
                files.fails_on = self.random.choice([frozenset[str](), SYNCS])
            case "hang":
                files.hang_in, files.fails_on = steps, SYNCS
            case "slow":
                files.slow_in = steps

    def be_slow(self, seconds: float) -> None:
        """Let each fsync of the node process take ``seconds`` longer."""
        if self.process is not None:
            self.process.files.sync_seconds = seconds

    def be_full(self, full: bool) -> None:
        self.disk.full = full
        self.faulty = self.faulty or full
        if self.process is not None:
            self.process.feed(on.HeadroomChanged(not full))

    def reinit(self) -> None:
        """Begin with an empty disk, as an operator decides who knows that another host has all."""
        if self.process is None and self.refused and self.history.judge.another_has(self):
            self.history.counts["reinits"] += 1
            self.wipe()

    def deploy(self, application: Application) -> None:
        """Get an application file, unless a newer one is here, and start again if it is another.

        A node process that restarts by itself keeps the query process of the old application.
        """
        if application.number < self.application.number:
            return
        same = application.digest == self.application.digest
        self.application = application
        if not same:
            self.lost_states.clear()
            self.kill(query_process_dies=self.random.random() < 0.7)

    def wipe(self) -> None:
        """Replace the disk by an empty one, as an operator does with reinit."""
        assert self.process is None
        self._wiped += 1
        self.disk = SimulatedDisk(self.history.root / f"{self.name}-{self._wiped}", self.random)
        self.disk.counts = self.history.counts
        self.home = self.disk.root / "data"
        self.refused, self._unreleased, self.copied = None, None, False
        self.history.judge.wiped(self)
