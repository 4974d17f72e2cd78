"""The true state of the whole group, kept by the simulation and never read from a core."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.types import (
    ORIGIN,
    Application,
    EpochStart,
    Events,
    Holder,
    LeaseRow,
    Mark,
    Member,
    Position,
    Record,
)
from tests.core.spark_world import live_of
from tests.core.surroundings import Content, QuerySink
from tests.core.truth import require

if TYPE_CHECKING:
    from tests.sim.group import Group
    from tests.sim.node import SimNode

BACKUP_AFTER_MIN = 1.9
"""The shortest ``backup_after`` by a clock that runs fast."""


def version_of(made_by: str) -> int:
    """The number of the code that made a batch."""
    return int(made_by.split()[0].removeprefix("v"))


def stamp(row: LeaseRow) -> tuple[int, int]:
    return row.epoch, row.version


class Facts:
    def __init__(self, group: Group) -> None:
        self.group = group
        # The rows of the database's present timeline, and the newest row of any.
        self.branch: list[LeaseRow] = []
        self.newest: LeaseRow | None = None
        # The newest row was lost, and no writer that knows of it has written since.
        self.lost = False
        self.acquired: dict[int, Holder] = {}
        # Every committed record, in order; none may ever be lost.
        self.committed: list[Position] = []
        self.submitted: dict[tuple[str, int], Position] = {}
        self.marks: dict[tuple[str, int], Position] = {}
        self.trimmed: dict[tuple[str, str], int] = {}
        # The newest code of which each sink has a batch, and the newest promoted shadow.
        self._code_in: dict[QuerySink, int] = {}
        self._promoted = 0
        # Log matching: the record at a position, and the position before it (RULES.md#i8).
        self._records: dict[Position, tuple[Record, Position]] = {}
        self._promised: dict[str, tuple[float, int]] = {}
        self._bound_until: dict[str, float] = {}
        # RULES.md#r26: committed records that an operator gave up, and the requests in them.
        self.given_up: set[Position] = set()
        self.requests_given_up: set[tuple[str, int]] = set()
        # The content of the batches of given up marks: a later operator may bring them back.
        self.contents: dict[Position, Content | None] = {}
        # RULES.md#r37: when the row last listed another regular member, or its epoch began. It is
        # long ago if the backup was the second disk before that epoch.
        self._missing_since = 0.0
        self._unknown: set[str] = set()
        self._raced: object = None

    # -- the lease row -----------------------------------------------------------------------------

    @property
    def regressed(self) -> bool:
        """Return whether the database lost writes, or failed over without a write since
        (RULES.md#r5)."""
        table = self.group.around.table
        if table.row is None or self.newest is None:
            return False
        moved = table.row.identity is not None and table.row.identity != table.identity
        return moved or self.lost

    def failed_over(self) -> None:
        self.lost = bool(self.branch) and self.branch[-1] != self.newest

    def mended(self, row: LeaseRow) -> None:
        """Note that an operator has written the newest row again, by hand."""
        self.lost, self.newest = False, row

    def row_written(
        self,
        node: SimNode | None,
        before: LeaseRow | None,
        row: LeaseRow,
        *,
        forced: bool = False,
    ) -> None:
        self.branch.append(row)
        older = self.newest is not None and stamp(row) < stamp(self.newest)
        # Where only an operator's flag was lost, the holder's next row is the newest anyway.
        older = older and not (node is not None and self._equals_newest(before))
        # A supervisor or an operator may change a lost branch without knowing that it is lost.
        lost = older or (self.lost and node is None)
        holder_before = before.holder if before is not None else None
        if forced and node is not None:
            self._give_up_behind(node)
        if row.holder is not None and (before is None or row.epoch > before.epoch):
            self._acquire(None if forced else before, row)
        elif row.holder is not None:
            require(row.holder == holder_before, "I1", f"{row.holder} took epoch {row.epoch}")
        if lost:
            return
        self.newest, self.lost = row, False
        self.require_everywhere(row)
        self._judge_backup(before, row)
        if before is not None and row.epoch == before.epoch:
            self.group.count("in-sync joins", len(set(row.in_sync) - set(before.in_sync)))
            self.group.count("in-sync removals", len(set(before.in_sync) - set(row.in_sync)))

    def _judge_backup(self, before: LeaseRow | None, row: LeaseRow) -> None:
        """RULES.md#r37: the backup joins once the row has listed no other regular member for long.
        A database that lost writes may have shown the holder other rows."""
        backup, now = self.group.backup, self.group.now
        if backup is None or row.holder is None or row.holder.node == backup:
            return
        regular = {member.node for member in row.in_sync} - {row.holder.node, backup}
        names = [{member.node for member in one.in_sync} if one else set() for one in (before, row)]
        if backup in names[1] - names[0]:
            self.group.count("backups listed")
            if not self.group.counters["database failovers"]:
                long = now - self._missing_since >= BACKUP_AFTER_MIN
                require(long, "R37", f"{backup} joined {now - self._missing_since} s after another")
        if backup in names[0] - names[1] and regular:
            self.group.count("backups relieved")
        if before is not None and row.epoch > before.epoch:
            stood_in = names[0] - {row.holder.node} == {backup}
            self._missing_since = -math.inf if stood_in else now
        elif regular or before is None:
            self._missing_since = now

    def _equals_newest(self, row: LeaseRow | None) -> bool:
        newest = self.newest
        return (
            row is not None
            and newest is not None
            and (row.epoch, row.holder, row.in_sync)
            == (newest.epoch, newest.holder, newest.in_sync)
        )

    def _acquire(self, before: LeaseRow | None, row: LeaseRow) -> None:
        """Note an acquisition; ``before`` is None where it does not matter: a first or forced
        row."""
        assert row.holder is not None
        same = self.acquired.get(row.epoch, row.holder) == row.holder
        require(same, "I1", f"epoch {row.epoch} has two holders")
        self.acquired[row.epoch] = row.holder
        again = self.newest is not None and self.newest.holder == row.holder
        if before is not None and not again:
            members = [member.node for member in before.in_sync]
            require(row.in_sync[0] in before.in_sync, "C6", f"{row.holder} of {members}")
        self.group.count("rewrites" if again and before is not None else "acquisitions")
        previous = self.acquired.get(max([e for e in self.acquired if e < row.epoch], default=0))
        if previous is not None and previous.node != row.holder.node:
            successor = before is not None and before.successor == row.holder.node
            self.group.count("switchovers" if successor else "failovers")

    def require_not_succeeded(self, node: SimNode, epoch: int, rule: str, said: str) -> None:
        """RULES.md#i2, in true time: no node acts once another acquisition took effect."""
        later = {e: h for e, h in self.acquired.items() if e > epoch and h != node.me}
        require(not later, rule, f"{node.node} {said} under epoch {epoch} after {later}")

    # -- promises ----------------------------------------------------------------------------------

    def told(self, node: SimNode, message: say.Message) -> None:
        if isinstance(message, say.Promise):
            until = node.now + node.timing.ttl
            self._promised[node.node + node.me.process] = (until, message.epoch)
            self._bound_until[node.node] = until
            self.group.count("promises given")

    def require_no_promise(self, node: SimNode, action: do.WriteLease) -> None:
        """RULES.md#r16: a promise forbids every acquire but one on a release of its epoch."""
        until, epoch = self._promised.get(node.node + node.me.process, (0.0, 0))
        released = action.expected.holder is None and action.expected.epoch == epoch
        require(released or node.now >= until, "R16", f"{node.node} broke its promise")

    def promises_cover(self, row: LeaseRow, me: Member) -> bool:
        """Return whether each other in-sync member of ``row`` has promised beyond this moment."""
        return all(self._has_promised(member) for member in row.in_sync if member != me)

    def _has_promised(self, member: Member) -> bool:
        """RULES.md#r4: a restarted process, which forgot its promise, waits as long anyway."""
        node = self.group.nodes[member.node]
        return node.now < self._bound_until.get(node.node, 0.0)

    # -- records -----------------------------------------------------------------------------------

    def appended(self, node: SimNode, record: Record) -> None:
        """RULES.md#i8: two journals that share a position share it and everything before it."""
        records = node.disk.records
        before = records[-2].position if len(records) > 1 else ORIGIN
        require(record.position.sequence == len(records), "R12", "a gap in the journal")
        require(record.position.epoch >= before.epoch, "I8", "the journal's epoch fell")
        if isinstance(record.body, EpochStart):
            # A crash after a forced failover may have left records that were not durable before.
            self._take_back(node, node.disk.durable)
        require(record.committed <= len(self.committed), "R12", "calls committed what is not")
        known = self._records.setdefault(record.position, (record, before))
        require(known[1] == before, "I8", f"{node.node} has {before} before {record.position}")
        require(known[0] == record, "I8", f"two records at {record.position}")

    def committed_by(self, node: SimNode, sequence: int) -> None:
        """RULES.md#i3, and no committed record ever changes (RULES.md#i8, P1)."""
        records, have = node.disk.records, len(self.committed)
        shared = min(have, sequence)
        if shared:
            same = records[shared - 1].position == self.committed[shared - 1]
            require(same, "I8", f"{node.node} commits another record at {shared}")
        for record in records[have:sequence]:
            self.committed.append(record.position)
            self._note_committed(node, record)
        newest = self.newest
        assert newest is not None
        self.require_everywhere(newest)
        for member in newest.in_sync:
            disk = self.group.nodes[member.node].disk
            if disk.journal_id == member.journal_id and node.me in disk.seen_by:
                # RULES.md#r8: this holder knows that the disk went back.
                require(disk.durable >= sequence, "I3", f"{sequence} is not on {member.node}")

    def _give_up_behind(self, node: SimNode) -> None:
        """Note a forced failover: the committed records that the node lacks are given up."""
        durable = {record.position for record in node.disk.records[: node.disk.durable]}
        lost = {position for position in self.committed if position not in durable}
        self.committed = [position for position in self.committed if position not in lost]
        self.given_up |= lost
        requests = {one for one, position in self.submitted.items() if position in lost}
        self.requests_given_up |= requests
        for request in requests:
            del self.submitted[request]
        batches = self.group.around.batches
        for mark, position in [one for one in self.marks.items() if one[1] in lost]:
            del self.marks[mark]
            self.contents[position] = batches.setdefault(mark[0], {}).pop(mark[1], None)
            for shadow in [name for name in batches if live_of(name) == mark[0]]:
                batches[shadow].pop(mark[1], None)
        self._take_back(node, node.disk.durable)
        self._code_in.clear()  # a promotion may be given up too
        self.group.count("forced failovers")
        self.group.count("records given up", len(lost))
        self.group.count("requests given up", len(requests))

    def _take_back(self, node: SimNode, durable: int) -> None:
        """Note that records which were given up in favour of another node are back."""
        for record in node.disk.records[len(self.committed) : durable]:
            if record.position not in self.given_up:
                break
            self.committed.append(record.position)
            self._note_committed(node, record)

    def given_up_mark(self, node: SimNode, query: str, number: int) -> Position | None:
        """Return the position of the mark of batch ``number`` on that node's disk, if it was given
        up."""
        for record in node.disk.records if self.given_up else ():
            body, gone = record.body, record.position in self.given_up
            if gone and isinstance(body, Mark) and (body.query, body.number) == (query, number):
                return record.position
        return None

    def _note_committed(self, node: SimNode, record: Record) -> None:
        self.given_up.discard(record.position)
        content = self.contents.get(record.position)  # of a mark that was given up before
        match record.body:
            case Events() as events:
                for one in events.submissions:
                    key = (one.producer, one.sequence)
                    twice = self.submitted.setdefault(key, record.position) != record.position
                    require(not twice, "I11", f"{key} is stored twice")
            case Mark(query, number) as mark:
                self.marks[(query, number)] = record.position
                if content is not None:
                    self.group.around.batches.setdefault(query, {})[number] = content
                if mark.through <= node.disk.base.position.sequence:
                    self._bring_back(mark)
            case Application(_, versions):
                newest = max((one.promoted or 0 for one in versions), default=0)
                self.group.count("promotions in force", newest > self._promoted)
                self._promoted = max(newest, self._promoted)
            case _:
                pass

    def _bring_back(self, mark: Mark) -> None:
        """Restore a given up mark that a snapshot needs again, with its former batch."""
        for position, content in self.contents.items():
            if content is not None and self._records[position][0].body == mark:
                batches = self.group.around.batches.setdefault(mark.query, {})
                batches.setdefault(mark.number, content)

    def require_everywhere(self, row: LeaseRow) -> None:
        """RULES.md#i3: every journal that the row lists as in sync has every committed record
        durable.

        A disk that went back (RULES.md#r8) may lack records that it once had, until its node has
        been removed; see ``require_joined``.
        """
        length = len(self.committed)
        for member in row.in_sync:
            disk = self.group.nodes[member.node].disk
            if disk.journal_id != member.journal_id or not length:
                continue
            has = disk.durable >= length
            has = has and disk.records[length - 1].position == self.committed[-1]
            if has:
                disk.once_had = 0
            excused = length <= disk.once_had
            require(has or excused, "I3", f"{member.node} is in sync without {self.committed[-1]}")

    def require_joined(self, holder: Holder, before: LeaseRow, wanted: LeaseRow) -> None:
        """RULES.md#r8: a holder that knows where a journal ends lists it only if it has every
        committed record."""
        for member in set(wanted.in_sync) - set(before.in_sync):
            disk = self.group.nodes[member.node].disk
            if disk.journal_id == member.journal_id and holder in disk.seen_by:
                has = disk.durable >= len(self.committed)
                require(has, "I3", f"{member.node} joins without {self.committed[-1]}")

    def require_complete(self, node: SimNode) -> None:
        """P1: a new holder has every record that was ever committed."""
        length, disk = len(self.committed), node.disk
        has = disk.durable >= length and (
            not length or disk.records[length - 1].position == self.committed[-1]
        )
        require(has, "P1", f"{node.node} promotes without {self.committed[-1:]}")

    def cut(self, node: SimNode, length: int) -> None:
        self.group.count("cuts")
        listed = self.newest.in_sync if self.newest is not None else ()
        member = Member(node.node, node.disk.journal_id)
        require(member not in listed, "R8", f"{node.node} cuts what it acked while in sync")
        at = min(length, len(self.committed))
        removed = [record.position for record in node.disk.records[at : len(self.committed)]]
        lost = set(removed) & set(self.committed) if length < len(self.committed) else set()
        require(not lost, "I8", f"{node.node} cuts committed records {sorted(lost)[:3]}")

    def require_committed_mark(self, node: SimNode, mark: Mark) -> None:
        """RULES.md#i5: a mark is committed before any node starts its batch."""
        position = self.marks.get((mark.query, mark.number))
        require(position is not None, "I5", f"{mark} is answered and not committed")
        assert position is not None
        record = self._records[position][0]
        require(record.body == mark, "I5", f"{mark} is answered, {record.body} is committed")

    # -- sinks -------------------------------------------------------------------------------------

    def published(
        self, key: QuerySink, number: int, content: Content | object, made_by: str
    ) -> None:
        query, newest = key[0], self.newest
        late = newest is not None and self.group.around.ledgers[key].epoch < newest.epoch
        if late and content in self.contents.values():
            return  # an abandoned call of the holder, from before the claim of the ledger
        same = self.group.around.batches.get(query, {}).get(number) == content
        require(content is not None and same, "I7", f"{key} got another batch {number}")
        require((query, number) in self.marks, "I5", f"{key} got {number} before its mark")
        code = version_of(made_by)
        require(code >= self._code_in.get(key, 0), "R38", f"{key} got {number} of {made_by}")
        self._code_in[key] = code

    # -- counts of rare cases ----------------------------------------------------------------------

    def answered(self, node: SimNode, request: object, answer: on.Input) -> None:
        if isinstance(answer, on.DatabaseUnreachable):
            if not isinstance(request, do.ReadLease):
                self._unknown.add(node.node)
        elif node.node in self._unknown and not isinstance(answer, on.LeaseDenied):
            self._unknown.discard(node.node)
            self.group.count("unknown outcomes resolved")

    def heard(self, node: SimNode, event: on.Input) -> None:
        """Note who knows of a disk that went back. Count an ack of a member while its removal is in
        flight."""
        request = node.request
        match event, request:
            case on.PeerMessage(peer, say.ProbeReply(last=last)), _:
                disk = self.group.nodes[peer].disk
                if disk.once_had and last == disk.last:
                    disk.seen_by.add(node.me)
            case on.PeerMessage(peer, say.Ack()), do.WriteLease(expected, wanted):
                was = any(member.node == peer for member in expected.in_sync)
                stays = any(member.node == peer for member in wanted.in_sync)
                if (
                    was
                    and not stays
                    and wanted.epoch == expected.epoch
                    and (self._raced is not request)
                ):
                    self._raced = request
                    self.group.count("removal races")
            case _:
                pass

    def node_died(self, node: SimNode) -> None:
        self._unknown.discard(node.node)
