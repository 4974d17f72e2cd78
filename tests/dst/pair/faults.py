"""The faults and their times: each seed has a few kinds of faults, so that they accumulate."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from ha_engine.core import inputs as on
from ha_engine.journal.segment import segment_paths
from tests.dst.disk import SimulatedFiles
from tests.dst.pair.group import PLANS, Application

if TYPE_CHECKING:
    from tests.dst.pair.history import PairHistory
    from tests.dst.pair.host import Host

FAULT_SECONDS = 20.0


class Faults:
    """Draws one fault after the other from the kinds that the seed has chosen."""

    def __init__(self, history: PairHistory) -> None:
        self.history, self.random = history, Random(history.random.random())
        self.over = False
        kinds: list[Callable[[], None]] = [
            self.kill,
            self.kill,
            self.pause,
            self.cut,
            self.partition,
            self.isolate,
            self.cut_from_database,
            self.database_down,
            self.fail_over,
            self.switchover,
            self.stop,
            self.operator_pauses,
            self.spark_dies,
            self.sinks_down,
            self.damage_snapshots,
            self.lose_checkpoint,
            self.disk_fault,
            self.disk_fault,
            self.slow_disk,
            self.full_disk,
            self.lose_power,
            self.go_back,
            self.flip,
            self.copy,
            self.wipe,
            self.hint,
        ]
        self.kinds = self.random.sample(kinds, self.random.randint(2, 7))
        # The application before the newest one.
        self.former_application: Application | None = None
        self.gap = self.random.uniform(0.5, 2.5)
        # A generator of its own, so that this story changes no seed without it.
        story = Random(f"application {history.seed}")
        if story.random() < 0.2:
            self.kinds += [self.change_application, self.change_application, self.sinks_down]
            self.gap = story.uniform(0.5, 1.5)
            history.agenda.after(0.0, lambda: self._slow_down(story))

    def _flaws(self) -> None:
        """Set flaws that last for the whole history."""
        history, chance = self.history, self.random.random
        database, network = history.database, history.network
        database.slow = 0.1 if chance() < 0.3 else 0.0
        database.loses_replies = 0.1 if chance() < 0.3 else 0.0
        database.late = 0.08 if chance() < 0.3 else 0.0
        database.sink_failures = 0.15 if chance() < 0.4 else 0.0
        network.delay_max = 0.3 if chance() < 0.2 else 0.02
        for host in history.hosts.values():
            host.disk.reorders = chance() < 0.1
            host.start_faults = 0.2 if chance() < 0.3 else 0.0

    def _slow_down(self, story: Random) -> None:
        """Let one node make batches later than the other."""
        self.history.hosts[story.choice("ab")].batch_seconds += story.uniform(0, 1.5)

    def begin(self) -> None:
        self._flaws()
        self._after(2.5, 5, self._next)

    def _next(self) -> None:
        if self.over:
            return
        fault = self.random.choice(self.kinds)
        self.history.note("fault", fault.__name__)
        self.history.counts[f"fault: {fault.__name__}"] += 1
        fault()
        self.history.agenda.after(self.random.expovariate(1 / self.gap), self._next)

    def _after(self, low: float, high: float, deed: Callable[[], None]) -> None:
        self.history.agenda.after(self.random.uniform(low, high), deed)

    def _someone(self) -> Host:
        """A host, mostly that of the holder."""
        holder = self.history.holder()
        if holder is not None and self.random.random() < 0.5:
            return holder
        return self.history.hosts[self.random.choice("ab")]

    # -- processes ---------------------------------------------------------------------------------

    def kill(self) -> None:
        self._someone().kill(query_process_dies=self.random.random() < 0.5)

    def pause(self) -> None:
        self._someone().pause(self.random.choice([0.5, 2.0, 3.5, 5.0, 8.0]))

    def stop(self) -> None:
        self._feed(self._someone(), on.StopAsked())

    def spark_dies(self) -> None:
        spark = self._someone().spark
        if spark is not None:
            spark.kill()

    def hint(self) -> None:
        self._feed(self._someone(), on.LeaseChanged())

    def switchover(self) -> None:
        holder = self.history.holder()
        if holder is not None:
            self._feed(holder, on.SwitchoverAsked(None, "operator"))

    def change_application(self) -> None:
        """Give both hosts another application, one after the other, as an operator does.

        At times it is the former one. Then a host may not have got the other one meanwhile.
        """
        history, query = self.history, self.random.choice(PLANS).name
        on_change = self.random.choice(["keep", "reset", "backfill"])
        before, former = history.application, self.former_application
        self.former_application = before
        if former is not None and self.random.random() < 0.4:
            application = history.application = before.again(former)
        else:
            application = history.application = before.changed(query, on_change)
        for host in self.random.sample(list(history.hosts.values()), 2):
            self._after(0.0, 6.0, lambda host=host: host.deploy(application))  # type: ignore[misc]

    def _feed(self, host: Host, event: on.Input) -> None:
        if host.process is not None:
            host.process.feed(event)

    # -- network -----------------------------------------------------------------------------------

    def cut(self) -> None:
        self.history.network.cut()

    def partition(self) -> None:
        one, other = self.random.sample("ab", 2)
        self.history.network.block(one, other)
        if self.random.random() < 0.6:
            self.history.network.block(other, one)
        self._after(0.5, 8, self.history.network.unblock)

    def isolate(self) -> None:
        """Cut a host off from the other and from the database."""
        host = self._someone()
        self.history.network.block("a", "b")
        self.history.network.block("b", "a")
        self.history.database.unreachable.add(host.name)
        self._after(1, 9, self.history.network.unblock)
        self._after(1, 9, lambda: self.history.database.unreachable.discard(host.name))

    # -- database ----------------------------------------------------------------------------------

    def cut_from_database(self) -> None:
        name = self._someone().name
        self.history.database.unreachable.add(name)
        self._after(0.5, 9, lambda: self.history.database.unreachable.discard(name))

    def database_down(self) -> None:
        self.history.database.up = False
        self._after(0.5, 9, self._database_up)

    def _database_up(self) -> None:
        self.history.database.up = True

    def fail_over(self) -> None:
        self.history.database.fail_over(self.random.choice([0, 0, 1, 2]), self.random.randint(0, 3))

    def operator_pauses(self) -> None:
        self.history.database.pause(True)
        self._after(1, 6, lambda: self.history.database.pause(False))

    def sinks_down(self) -> None:
        self.history.database.sinks_up = False
        self._after(0.5, 6, self._sinks_up)

    def _sinks_up(self) -> None:
        self.history.database.sinks_up = True

    def damage_snapshots(self) -> None:
        if (what := self.history.database.revisions.damage()) is not None:
            self.history.counts[f"damage: {what}"] += 1

    # -- disks -------------------------------------------------------------------------------------

    def lose_checkpoint(self) -> None:
        """Delete the checkpoint of a query, as an operator may."""
        host = self._someone()
        if host.spark is not None:
            host.spark.kill()
        checkpoint = host.checkpoints / self.random.choice(PLANS).name
        if checkpoint.exists():
            SimulatedFiles(host.disk).rmtree(checkpoint)

    def disk_fault(self) -> None:
        kind = self.random.choice(["crash", "fail", "hang", "slow"])
        self._someone().plan_a_fault(kind, self.random.randint(1, 15))

    def slow_disk(self) -> None:
        host = self._someone()
        host.be_slow(self.random.choice([0.3, 1.0, 4.0]))
        self._after(1, 10, lambda: host.be_slow(0.0))

    def full_disk(self) -> None:
        host = self._someone()
        host.be_full(True)
        self._after(0.5, 4, lambda: host.be_full(False))

    def lose_power(self) -> None:
        host = self._someone()
        host.lose_power()
        self._after(0.2, 9, host.get_power)

    def wipe(self) -> None:
        """Replace the disk of a host, if another has everything."""
        host = self._someone()
        if self.history.judge.another_has(host):
            host.kill(query_process_dies=True)
            host.wipe()

    def flip(self) -> None:
        """Change a bit of an old segment, which no start may take for a torn tail."""
        host = self._someone()
        if not self.history.judge.another_has(host):
            return
        host.lose_power()
        segments = segment_paths(host.home / "journal")[:-1]
        if segments:
            path = self.random.choice(segments)
            offset = self.random.randrange(path.stat().st_size)
            host.disk.flip(path, offset, self.random.randrange(8))
            self.history.judge.disks[host.name].may_refuse = True
        self._after(0.1, 1, host.get_power)

    def go_back(self) -> None:
        """Copy the disk of a host, and put the copy in the place of the disk later."""
        host = self._someone()
        disk = self.history.judge.disks.get(host.name)
        if disk is None or host.process is None:
            return
        image, journal_id, last = host.disk.image(), disk.journal_id, disk.at(disk.durable)

        def put_back() -> None:
            proven = all(row.committed > last for row in self.history.judge.rows())
            same = self.history.judge.disks[host.name].journal_id == journal_id
            loses = self.fail_over in self.kinds
            if proven and same and not loses and self.history.judge.another_has(host):
                host.lose_power()
                host.disk.go_back(image)
                host.boot_again()
                self.history.judge.disks[host.name].may_be_shorter = True
                self.history.counts["disks back in time"] += 1
                host.get_power()

        self._after(0.5, 6, put_back)

    def copy(self) -> None:
        """Start a host on a copy of the other's disk, until an operator sees it."""
        host = self._someone()
        other = self.history.hosts[host.peer]
        if not self.history.judge.another_has(host) or other.process is None:
            return
        host.kill(query_process_dies=True)
        host.wipe()
        host.disk.go_back(other.disk.image())
        host.boot_again()
        self.history.counts["copied disks"] += 1

        def reinit() -> None:
            if host.copied:
                host.kill(query_process_dies=True)
                host.wipe()

        host.copied = True
        self._after(2, 6, reinit)
