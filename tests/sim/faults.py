"""The faults and their times: each seed has a few kinds of faults, so that they accumulate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

from ha_engine.core import inputs as on
from ha_engine.types import LeaseRow
from tests.sim.forcing import force
from tests.sim.shadowing import order
from tests.sim.variants import Variant

if TYPE_CHECKING:
    from tests.core.surroundings import Disk
    from tests.sim.group import Group
    from tests.sim.network import Link
    from tests.sim.node import SimNode

FAULT_PHASE_SECONDS = 20.0


class Faults:
    """Draws one fault after the other from the kinds that the seed has chosen."""

    def __init__(self, group: Group) -> None:
        self.group, self.random = group, group.random
        self.over = False
        kinds: list[Callable[[], None]] = [
            self.kill,
            self.kill,
            self.pause,
            self.pause,
            self.break_link,
            self.partition,
            self.partition,
            self.cut_from_database,
            self.database_down,
            self.fail_over,
            self.switchover,
            self.stop,
            self.operator_pauses,
            self.query_process_dies,
            self.query_fails,
            self.sink_away,
            self.slow_disk,
            self.no_room,
            self.wipe,
            self.isolate,
            self.hint,
        ]
        self.kinds = self.random.sample(kinds, self.random.randint(2, 7))
        match group.variant:
            case Variant.FORCED | Variant.WARM:
                self.kinds += [self.force, self.kill]
            case Variant.ROLLED_BACK:
                self.kinds += [self.go_back, self.go_back]
            case Variant.RESCALED:
                self.kinds += [self.rescale, self.rescale, self.kill]
            case Variant.DEPLOYED:
                self.kinds += [self.deploy, self.deploy, self.force, self.kill]
            case Variant.SHADOWED:
                self.kinds += [*[self.shadow] * 6, self.kill, self.force]
            case Variant.BACKUP:
                self.kinds += [self.isolate, self.isolate, self.kill, self.force, self.deploy]
        self.gap = self.random.uniform(0.5, 2.5)
        self._flaws()

    def _flaws(self) -> None:
        """Set flaws that last for the whole history."""
        group, chance = self.group, self.random.random
        group.database.slow = 0.1 if chance() < 0.3 else 0.0
        group.database.loses_replies = 0.1 if chance() < 0.3 else 0.0
        group.database.late = 0.08 if chance() < 0.3 else 0.0
        group.wakes_late = 0.4 if chance() < 0.25 else 0.005
        group.sink_slow = 0.2 if chance() < 0.4 else 0.0
        if chance() < 0.25:
            group.network.drops = group.network.doubles = 0.02
        group.network.keeps = 0.05 if chance() < 0.3 else 0.0
        group.network.delay_max = 0.3 if chance() < 0.2 else 0.02

    def begin(self) -> None:
        self.group.agenda.after(self.random.uniform(2.5, 5), self._next)

    def _next(self) -> None:
        if self.over:
            return
        self.random.choice(self.kinds)()
        self.group.agenda.after(self.random.expovariate(1 / self.gap), self._next)

    def _tell(self, what: str) -> None:
        self.group.tell("fault", what)

    def _someone(self) -> SimNode:
        """Return a node, mostly the active."""
        holder = self.group.holder()
        if holder is not None and self.random.random() < 0.5:
            return holder
        return self.group.nodes[self.random.choice(sorted(self.group.nodes))]

    def _some_link(self) -> Link:
        links = self.group.network.links
        return self.random.choice([links[key] for key in sorted(links, key=sorted)])

    def _later(self, low: float, high: float, deed: Callable[[], None]) -> None:
        self.group.agenda.after(self.random.uniform(low, high), deed)

    # -- processes ---------------------------------------------------------------------------------

    def kill(self) -> None:
        self._someone().kill(query_process_dies=self.random.random() < 0.5)

    def pause(self) -> None:
        node, seconds = self._someone(), self.random.choice([0.5, 2.0, 3.5, 5.0, 8.0])
        self._tell(f"{node.node} is paused for {seconds} s")
        node.pause(seconds)

    def stop(self) -> None:
        node = self._someone()
        self._tell(f"{node.node} is asked to stop")
        node.now_or_later(on.StopAsked())

    def query_process_dies(self) -> None:
        node = self._someone()
        if node.alive and not node.paused:
            node.kill_spark()

    def query_fails(self) -> None:
        node = self._someone()
        names = ["delays", "storms"]
        if node.alive and node.core.deployment.shadow is not None:
            names.append(node.core.deployment.shadow.name)
        node.fail_query(self.random.choice(names))

    # -- network -----------------------------------------------------------------------------------

    def break_link(self) -> None:
        link = self._some_link()
        self._tell(f"the link of {link.ends} breaks")
        self.group.network.cut(link)

    def partition(self) -> None:
        one, other = self.random.sample(self._some_link().ends, 2)
        self._tell(f"nothing passes from {one} to {other}")
        self.group.network.block(one, other)
        if self.random.random() < 0.6:
            self.group.network.block(other, one)
        self._later(0.5, 8, self.group.network.unblock)

    def isolate(self) -> None:
        """Cut a node off from all others, the database included."""
        name = self._someone().node
        self._tell(f"{name} is cut off from everybody")
        for other in sorted(self.group.nodes):
            if other != name:
                self.group.network.block(name, other)
                self.group.network.block(other, name)
        self.group.database.unreachable.add(name)
        self._later(1, 9, self.group.network.unblock)
        self._later(1, 9, lambda: self.group.database.unreachable.discard(name))

    # -- database ----------------------------------------------------------------------------------

    def cut_from_database(self) -> None:
        name = self._someone().node
        self._tell(f"{name} does not reach the database")
        self.group.database.unreachable.add(name)
        self._later(0.5, 9, lambda: self.group.database.unreachable.discard(name))

    def database_down(self) -> None:
        self._tell("the database is down")
        self.group.database.up = False
        self._later(0.5, 9, self._database_up)

    def _database_up(self) -> None:
        self.group.database.up = True

    def fail_over(self) -> None:
        lost = self.random.choice([0, 0, 1, 2, 5])
        self._tell(f"the database fails over and loses {lost} writes")
        self.group.count("database failovers")
        self.group.database.fail_over(lost)
        if self.group.facts.regressed and lost:
            self.group.count("regressed rows")

    # -- people ------------------------------------------------------------------------------------

    def switchover(self) -> None:
        holder = self.group.holder()
        if holder is not None:
            self._tell(f"{holder.node} is asked to switch over")
            holder.now_or_later(on.SwitchoverAsked(None, "operator"))

    def rescale(self) -> None:
        holder, partitions = self.group.holder(), self.random.randint(1, 9)
        if holder is not None:
            query = self.random.choice(sorted(holder.plans))
            self._tell(f"{holder.node} is asked to rescale {query} to {partitions}")
            self.group.count("queries rescaled")
            holder.now_or_later(on.RescaleAsked(query, partitions))

    def deploy(self) -> None:
        holder = self.group.holder()
        if holder is not None and not holder.core.rollout.is_due:
            self.group.count("deployments")
            archive = f"archive {self.group.counters['deployments']}"
            self._tell(f"{holder.node} is asked to deploy {archive}")
            holder.now_or_later(on.DeployAsked(archive, "application", "operator", 0, ""))

    def shadow(self) -> None:
        if (ordered := order(self.group)) is not None:
            self._tell(f"an operator asks to {ordered}")

    def operator_pauses(self) -> None:
        self._tell("an operator pauses failover")
        self.group.database.pause(True)
        self._later(1, 6, lambda: self.group.database.pause(False))

    def force(self) -> None:
        force(self.group)

    def hint(self) -> None:
        self._someone().now_or_later(on.LeaseChanged())

    # -- disks and sinks ---------------------------------------------------------------------------

    def slow_disk(self) -> None:
        node = self._someone()
        self._tell(f"the disk of {node.node} is slow")
        node.fsync_max = self.random.choice([0.3, 1.0, 4.0])

        def over() -> None:
            node.fsync_max = 0.02

        self._later(1, 8, over)

    def no_room(self) -> None:
        node = self._someone()
        node.now_or_later(on.HeadroomChanged(False))
        self._later(1, 8, lambda: node.now_or_later(on.HeadroomChanged(True)))

    def sink_away(self) -> None:
        sink = self.random.choice(["board", "archive"])
        self.group.sinks_away.add(sink)
        self._later(0.5, 6, lambda: self.group.sinks_away.discard(sink))

    def wipe(self) -> None:
        """Wipe the disk of a node that is not the only one in sync with its disk."""
        node, newest = self._someone(), self.group.facts.newest
        if newest is None or not node.alive:
            return
        rows = [newest, *self.group.database.pending.values()]
        if not all(self._another_has(node.node, row) for row in rows):
            return
        node.kill(query_process_dies=True)
        self._tell(f"{node.node} loses its disk")
        self.group.count("wiped disks")
        node.new_disk()

    def go_back(self) -> None:
        """Copy a node's disk, and put the copy in the place of the disk later.

        A loss of acked records is certain to be detected only if the lease row names a commit
        position after the copy, so a database that loses writes too makes another fault.
        """
        node = self._someone()
        image, losing = copy.deepcopy(node.disk), self.fail_over in self.kinds

        def put_back() -> None:
            if losing or not node.alive or not self._may_go_back(node, image):
                return
            node.kill(query_process_dies=True)
            node.go_back_to(image)
            self.group.count("disks that went back")

        self._later(0.5, 6, put_back)

    def _may_go_back(self, node: SimNode, image: Disk) -> bool:
        newest = self.group.facts.newest
        if newest is None or node.disk.journal_id != image.journal_id:
            return False
        rows = [newest, *self.group.database.pending.values()]
        proven = all(row.committed > image.last for row in rows)
        return proven and all(self._another_has(node.node, row) for row in rows)

    def _another_has(self, name: str, row: LeaseRow) -> bool:
        """Return whether another node than ``name`` that ``row`` lists as in sync has its disk."""
        disks = {node.node: node.disk for node in self.group.nodes.values() if node.node != name}
        listed = ((disks.get(member.node), member.journal_id) for member in row.in_sync)
        return any(disk and disk.journal_id == i and not disk.once_had for disk, i in listed)
