"""The judge of one node of a group: the checks of ``tests.core.truth``, and those of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha_engine.core import actions as do
from ha_engine.types import LeaseRow, Mark, Record, Role
from tests.core.truth import Truth, require

if TYPE_CHECKING:
    from tests.sim.node import SimNode


class SimTruth(Truth):
    world: SimNode

    def new_process(self) -> None:
        super().new_process()
        self.epoch, self.suspended = 0, False

    @property
    def holds_epoch(self) -> bool:
        return self.role in (Role.PROMOTING, Role.ACTIVE)

    def judge(self, action: do.Action) -> None:
        if not isinstance(action, do.StartPublishing):  # each of its calls is judged
            super().judge(action)
        count = self.world.group.count
        match action:
            case do.CloseReceivers(reason) if reason.startswith("the lease was not renewed"):
                self.suspended = True
                count("suspensions")
            case do.OpenReceivers() if self.suspended:
                self.suspended = False
                count("resumes")
            case do.NoteOutage():
                count("outages noted")
            case do.ReportDiskWentBack():
                count("disks reported as gone back")
            case do.ReportDifference(query, number):
                require(False, "I6", f"{query} {number} came out differently")
            case _:
                pass

    def require_lease(self, rule: str, said: str) -> None:
        self.world.group.facts.require_not_succeeded(self.world, self.epoch, rule, said)

    def _write(self, action: do.WriteLease) -> None:
        super()._write(action)
        world, wanted = self.world, action.wanted
        world.group.facts.require_joined(world.me, action.expected, wanted)
        if wanted.holder is None and wanted.successor is not None:
            require(not action.expected.paused, "R7", "released what nobody may acquire")
            successor = world.group.nodes[wanted.successor].disk
            equal = successor.records[: successor.durable] == world.disk.records
            # A disk lost at this moment is not listed, so no node acquires with its new journal.
            # When a node has acquired meanwhile, this write is denied.
            listed = successor.journal_id in [member.journal_id for member in wanted.in_sync]
            void = not listed or max(world.group.facts.acquired) > wanted.epoch
            # A successor whose disk goes back at this moment does not acquire the lease.
            void = void or successor.once_had > 0
            require(equal or void, "R3", "released for a switchover with unequal journals")

    def _acquire(self, action: do.WriteLease) -> None:
        super()._acquire(action)
        self.world.group.facts.require_no_promise(self.world, action)

    def _puts_back(self, wanted: LeaseRow) -> bool:
        world, newest = self.world, self.world.group.facts.newest
        if newest is None or wanted.holder != world.me:
            return False
        alone = newest.in_sync == (world.member,)
        # A holder that is alone in sync may have lost the reply to its own release.
        released = newest.holder is None and alone and newest.epoch in self.epochs
        if newest.holder != world.me and not released:
            return False
        timing = world.timing
        safe = world.now < world.renewal_sent_at + timing.ttl - timing.margin
        promised = world.group.facts.promises_cover(newest, world.member)
        # An earlier rewrite of this process that was also lost may have the same epoch.
        new = wanted.epoch not in self.epochs and wanted.epoch > world.read_max[0]
        higher = new and wanted.epoch >= newest.epoch
        return higher and wanted.in_sync == (world.member,) and (safe or alone or promised)

    def _append(self, record: Record) -> None:
        """Leave the appends of a follower to ``Facts.appended``."""
        if self.holds_epoch:
            require(record.position.epoch == self.epoch, "I8", "appended under another epoch")
            super()._append(record)

    def _commit(self, sequence: int) -> None:
        super()._commit(sequence)
        world, timing = self.world, self.world.timing
        newest = world.group.facts.newest
        past = world.now > world.renewal_sent_at + timing.ttl - timing.margin
        if past and newest is not None and newest.in_sync != (world.member,):
            world.group.count("promises used")
        self.world.group.facts.committed_by(self.world, sequence)

    def _role(self, role: Role, epoch: int) -> None:
        world = self.world
        self.transitions.add((self.role, role))
        before, self.role = self.role, role
        if role is Role.PROMOTING:
            require(epoch not in self.epochs, "R15", f"epoch {epoch} is resumed")
            holder = world.group.facts.acquired.get(epoch)
            require(holder == world.me, "I1", f"promoted under epoch {epoch} of {holder}")
            self.epochs.add(epoch)
            self.epoch = epoch
            world.group.facts.require_complete(world)
        if role is Role.DEMOTING and before is Role.ACTIVE:
            world.group.count("demotions")
        if role is Role.ACTIVE:
            super()._role(role, epoch)

    def _force(self, action: do.WriteLease) -> None:
        super()._force(action)
        group = self.world.group
        group.facts.require_no_promise(self.world, action)
        others = {m.node for m in action.expected.in_sync if m.node != self.world.node}
        lives = [name for name in sorted(others) if group.nodes[name].alive]
        require(not lives, "R26", f"forced while {lives} live")

    def _answer(self, mark: Mark) -> None:
        wanted = self.world.wanted.get(mark.query)
        require(wanted is not None and mark.number == wanted + 1, "R18", f"{mark} after {wanted}")
        mark = self._require_admitted(mark)
        if self.world.group.facts.given_up_mark(self.world, mark.query, mark.number):
            return
        self.world.group.facts.require_committed_mark(self.world, mark)
        position = self.world.group.facts.marks[(mark.query, mark.number)]
        disk = self.world.disk
        here = disk.durable >= position.sequence
        here = here and disk.records[position.sequence - 1].position == position
        require(here, "I5", f"{mark} is answered where it is not durable")

    def _trim(self, query: str, through: int) -> None:
        super()._trim(query, through)
        self.world.group.facts.trimmed[(self.world.disk.journal_id, query)] = through
