"""What no history may break, judged by the true state of the whole group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.types import Holder, LeaseRow, Member, Position, Role
from ha_engine.v1 import local_pb2 as pb

if TYPE_CHECKING:
    from tests.dst.pair.database import Row
    from tests.dst.pair.history import PairHistory
    from tests.dst.pair.host import Host
    from tests.dst.pair.process import NodeProcess


@dataclass
class Disk:
    """What the judge knows of the journal on a host.

    The records up to ``durable`` are on the disk. The disk once had those up to ``once_had``, and
    then went back in time.
    """

    journal_id: str = ""
    durable: int = 0
    once_had: int = 0
    starts: tuple[Position, ...] = ()
    # Whether the next start may find fewer records.
    may_be_shorter: bool = False
    # Whether the next start may refuse the data.
    may_refuse: bool = False

    def at(self, sequence: int) -> Position:
        epoch = max((one.epoch for one in self.starts if one.sequence <= sequence), default=0)
        return Position(epoch, sequence)


@dataclass
class Judge:
    history: PairHistory
    # Every committed record, in order.
    committed: list[Position] = field(default_factory=list)
    acquired: dict[int, Holder] = field(default_factory=dict)
    promoted: set[int] = field(default_factory=set)
    # The newest lease row of any timeline, and whether the database has lost it.
    newest: LeaseRow | None = None
    lost: bool = False
    # By query, number, and the sequence of the lineage.
    batches: dict[tuple[str, int, str], list[Row]] = field(default_factory=dict)
    # The totals after a batch, by query, number and the sequence of the lineage.
    totals: dict[tuple[str, int, str], int] = field(default_factory=dict)
    disks: dict[str, Disk] = field(default_factory=dict)
    # The lease row that each process has read, unless a later call had no answer or was denied.
    read: dict[str, LeaseRow | None] = field(default_factory=dict)
    # For each holder and epoch, the last ack: its node, journal and durable sequence.
    acks: dict[tuple[str, int], tuple[str, str, int]] = field(default_factory=dict)

    def require(self, holds: bool, rule: str, text: str) -> None:
        self.history.require(holds, f"{rule}: {text}")

    # -- the lease row -----------------------------------------------------------------------------

    @property
    def regressed(self) -> bool:
        """Whether the database lost writes, or failed over without a write since."""
        table = self.history.database.table
        if table.row is None or self.newest is None:
            return False
        return self.lost or table.row.identity not in (None, table.identity)

    def failed_over(self) -> None:
        branch = self.history.database.branch
        self.lost = bool(branch) and branch[-1] != self.newest

    def mended(self, row: LeaseRow) -> None:
        self.lost, self.newest = False, row

    def row_written(self, before: LeaseRow | None, row: LeaseRow, *, by_node: bool) -> None:
        self.history.note("database", row)
        newest = self.newest
        older = newest is not None and (row.epoch, row.version) < (newest.epoch, newest.version)
        older = older and not (by_node and self._equals_newest(before))
        holder = None if before is None else before.holder
        if row.holder is not None and (before is None or row.epoch > before.epoch):
            self._acquires(before, row)
        elif row.holder is not None:
            self.require(row.holder == holder, "I1", f"{row.holder} took epoch {row.epoch}")
        if older or (self.lost and not by_node):
            return
        self.newest, self.lost = row, False
        self.require_everywhere(row)
        if before is not None and row.epoch == before.epoch:
            self.history.counts["in-sync joins"] += len(set(row.in_sync) - set(before.in_sync))
            self.history.counts["in-sync removals"] += len(set(before.in_sync) - set(row.in_sync))

    def _equals_newest(self, row: LeaseRow | None) -> bool:
        newest = self.newest
        if row is None or newest is None:
            return False
        same = (row.epoch, row.holder, row.in_sync)
        return same == (newest.epoch, newest.holder, newest.in_sync)

    def _acquires(self, before: LeaseRow | None, row: LeaseRow) -> None:
        assert row.holder is not None
        holder = self.acquired.setdefault(row.epoch, row.holder)
        self.require(holder == row.holder, "I1", f"epoch {row.epoch} has two holders")
        again = self.newest is not None and self.newest.holder == row.holder
        if before is not None and not again:
            mine = [member for member in row.in_sync if member.node == row.holder.node]
            self.require(mine[0] in before.in_sync, "C6", f"{row.holder} was not listed")
        previous = self.acquired.get(max([e for e in self.acquired if e < row.epoch], default=0))
        if previous is not None and previous.node != row.holder.node:
            planned = before is not None and before.successor == row.holder.node
            self.history.counts["switchovers" if planned else "failovers"] += 1

    def require_not_succeeded(self, process: NodeProcess, epoch: int, text: str) -> None:
        later = {e: h for e, h in self.acquired.items() if e > epoch and h != process.me}
        self.require(not later, "I2", f"{process.name} {text} under epoch {epoch} after {later}")

    # -- node processes ----------------------------------------------------------------------------

    def started(self, process: NodeProcess) -> None:
        """Note what the disk of a new process has."""
        journal, name = process.core.journal, process.host.name
        journal_id, last = process.journal.journal_id, journal.last.sequence
        self.history.name_journal(journal_id, name)
        disk = self.disks.setdefault(name, Disk())
        if disk.journal_id == journal_id and last < disk.durable:
            self.require(disk.may_be_shorter, "R31", f"{name} has {last}, had {disk.durable}")
            disk.once_had = max(disk.once_had, disk.durable)
        elif disk.journal_id != journal_id:
            disk.once_had = 0
        disk.journal_id, disk.durable, disk.starts = journal_id, last, journal.epochs
        disk.may_be_shorter = disk.may_refuse = False
        self._regain(disk)
        self.history.note(name, f"has a journal up to {journal.last}")

    def ended(self, process: NodeProcess) -> None:
        """Note the end of a process. A truncation may have begun."""
        core, disk = process.core, self.disks[process.host.name]
        if core.follower.replacing_journal:
            disk.may_be_shorter = True
            listed = self.newest.in_sync if self.newest is not None else ()
            member = Member(process.host.name, disk.journal_id)
            self.require(member not in listed, "R8", f"{process.name} replaces a listed journal")
            self.history.counts["journals replaced"] += 1

    def wiped(self, host: Host) -> None:
        self.disks[host.name] = Disk()

    def refuses(self, host: Host, error: Exception) -> None:
        disk = self.disks[host.name]
        expected = disk.may_refuse or host.disk.has_holes
        self.require(expected, "R31", f"{host.name} refuses its data: {error}")
        self.history.counts["refusals of damaged data"] += 1

    def takes(self, process: NodeProcess, event: on.Input) -> None:
        self.history.note(process.name, event)
        match event:
            case on.RecordsDurable(sequence):
                disk = self.disks[process.host.name]
                disk.durable, disk.starts = sequence, process.core.journal.epochs
                self._regain(disk)
            case on.LeaseRead(row) | on.LeaseWritten(row):
                self.read[process.name] = row
            case on.LeaseDenied() | on.DatabaseUnreachable():
                self.read[process.name] = None
            case on.PeerMessage(peer, say.Ack(epoch, journal_id, durable)):
                self.acks[process.name, epoch] = peer, journal_id, durable
            case _:
                pass

    def _regain(self, disk: Disk) -> None:
        if disk.durable >= disk.once_had:
            disk.once_had = 0

    def stepped(self, process: NodeProcess, event: on.Input, actions: Sequence[do.Action]) -> None:
        for action in actions:
            self.history.note(process.name, action)
            match action:
                case do.Commit(sequence):
                    self._commits(process, sequence)
                case do.ChangeRole(Role.PROMOTING, epoch):
                    self._promotes(process, epoch)
                # After a failed handover, a holder without authority starts to publish again, but
                # calls no sink, which ``calls_sink`` requires.
                case do.StartPublishing(epoch) if process.remaining_seconds() > 0:
                    self.require_not_succeeded(process, epoch, "publishes")
                case do.TruncateJournal() | do.Restore():
                    self._replaces(process)
                case do.TrimJournal(position):
                    self._trims(process, position.sequence)
                case do.ReportDifference(query, number):
                    self.require(False, "I6", f"{query} {number} differs")
                case do.ReportDiskWentBack():
                    self.history.counts["disks found to be back in time"] += 1
                case do.Exit(reason) if not process.core.stopping:
                    self.require(False, "liveness", f"{process.name} exits: {reason}")
                case _:
                    pass

    def _replaces(self, process: NodeProcess) -> None:
        """A node replaces its journal only after it has read a row of the present epoch that does
        not list it."""
        row, member = self.read.get(process.name), process.core.lease.member
        newest = process.core.lease.high_water.epoch
        has_read = row is not None and row.epoch == newest and member not in row.in_sync
        self.require(has_read, "R8", f"{process.name} replaces its journal and has read {row}")

    def _trims(self, process: NodeProcess, through: int) -> None:
        """A holder keeps the records that a member still needs which it has sent others to.

        A member without records may restore a snapshot instead.
        """
        acked = self.acks.get((process.name, process.core.epoch))
        if process.core.term is None or acked is None:
            return
        peer, journal_id, durable = acked
        if self.disks[peer].journal_id == journal_id and durable > 0:
            text = f"{process.name} trims {through}, and {peer} has {durable}"
            self.require(through <= durable, "R29", text)

    def _promotes(self, process: NodeProcess, epoch: int) -> None:
        self.require(epoch not in self.promoted, "P3", f"epoch {epoch} begins twice")
        self.promoted.add(epoch)
        holder = self.acquired.get(epoch)
        self.require(holder == process.me, "I1", f"promoted under epoch {epoch} of {holder}")
        if self.committed:
            journal, length = process.core.journal, len(self.committed)
            has = journal.durable >= length and journal.has(self.committed[-1])
            self.require(has, "P1", f"{process.name} promotes without {self.committed[-1]}")

    def _commits(self, process: NodeProcess, sequence: int) -> None:
        journal, have = process.core.journal, len(self.committed)
        if shared := min(have, sequence):
            same = journal.position_at(shared) == self.committed[shared - 1]
            self.require(same, "I8", f"{process.name} commits another record at {shared}")
        self.committed += map(journal.position_at, range(have + 1, sequence + 1))
        if self.newest is not None:
            self.require_everywhere(self.newest)

    def require_everywhere(self, row: LeaseRow) -> None:
        """Each journal that the row lists as in sync has every committed record durable."""
        length = len(self.committed)
        for member in row.in_sync if length else ():
            disk = self.disks[member.node]
            if disk.journal_id != member.journal_id or length <= disk.once_had:
                continue
            has = disk.durable >= length and disk.at(length) == self.committed[-1]
            self.require(has, "I3", f"{member.node} is in sync without {self.committed[-1]}")

    # -- events and batches ------------------------------------------------------------------------

    def acked(self, producer: str, sequence: int, position: Position) -> None:
        at = position.sequence
        has = at <= len(self.committed) and self.committed[at - 1] == position
        self.require(has, "I3", f"{producer} {sequence} is acked at {position}, not committed")

    def computed(
        self, host: str, run: pb.RunQuery, number: int, total: int, table: pa.Table
    ) -> None:
        """Judge a batch that ``host`` has made of a state with ``total`` events."""
        sequence = run.lineage.rpartition(":")[2]
        if number == run.initial_mark + 1:
            before = {0}
        else:
            # A state that a change keeps has another lineage before the change.
            known = self.totals.get((run.query, number - 1, sequence))
            before = {known} if known is not None else self._totals_after(run.query, number - 1)
        text = f"{host} makes {run.query} {number} of {total} events, not of {before}"
        self.require(total in before, "R23", text)
        self.totals[run.query, number, sequence] = total + table.num_rows
        rows: list[Any] = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        known = self.batches.setdefault((run.query, number, sequence), rows)
        text = f"{host} makes {run.query} {number} as {rows}, not {known}"
        self.require(known == rows, "I6", text)

    def _totals_after(self, query: str, number: int) -> set[int]:
        return {total for (of, at, _), total in self.totals.items() if (of, at) == (query, number)}

    def calls_sink(self, process: NodeProcess, epoch: int) -> None:
        self.require_not_succeeded(process, epoch, "calls a sink")

    def published(self, query: str, number: int, epoch: int, rows: list[Row]) -> None:
        made = [batch for key, batch in self.batches.items() if key[:2] == (query, number)]
        self.require(rows in made, "P2", f"{query} {number} is published as {rows}")
        self.history.counts["batches published"] += 1

    # -- what faults may destroy -------------------------------------------------------------------

    def rows(self) -> list[LeaseRow]:
        """Every lease row that may be in force."""
        return [] if self.newest is None else [self.newest, *self.history.database.pending]

    def another_has(self, host: Host) -> bool:
        """Whether the other host has every acked record, by each row that may be in force."""
        disk, rows = self.disks.get(host.peer), self.rows()
        if disk is None or not rows or disk.once_had or disk.may_refuse or disk.may_be_shorter:
            return False
        return all(Member(host.peer, disk.journal_id) in row.in_sync for row in rows)
