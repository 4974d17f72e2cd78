"""Judge safety from the world alone: the contents of the disk, the lease row and the sinks.

Nothing here reads a field of the core, so a wrong belief of the core cannot hide a fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ha_engine.core import actions as do
from ha_engine.types import (
    SHADOW_SIGN,
    Application,
    EpochStart,
    Events,
    LeaseRow,
    Mark,
    Position,
    Published,
    QueryVersion,
    Record,
    Role,
)

if TYPE_CHECKING:
    from tests.core.world import World


class Violation(AssertionError):
    """The core did what an invariant or a rule forbids."""


def is_forced(request: object) -> bool:
    return isinstance(request, do.WriteLease) and request.reason.startswith("failover forced by ")


def require(holds: bool, rule: str, said: str) -> None:
    if not holds:
        raise Violation(f"{rule}: {said}")


class Truth:
    """Judges each action before the world performs it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.epochs: set[int] = set()
        self.outages: set[int] = set()
        self.transitions: set[tuple[Role, Role]] = set()
        self.new_process()

    def new_process(self) -> None:
        self.committed, self.role = 0, Role.STARTING

    # -- actions -----------------------------------------------------------------------------------

    def judge(self, action: do.Action) -> None:
        match action:
            case do.WriteLease():
                self._write(action)
            case do.CreateLease():
                known = self.world.disk.records or self.world.read_max > (0, 0)
                forced = action.reason.startswith("failover forced by")
                first = not known or forced or self._puts_back(action.row)
                require(first, "R6", "a node with a past made the group's first row")
            case do.AppendRecords(records):
                for record in records:
                    self._append(record)
            case do.Commit(sequence):
                self._commit(sequence)
            case do.ChangeRole(role, epoch):
                self._role(role, epoch)
            case do.OpenReceivers() | do.StartPublishing():
                self.require_lease("I2", "took events or published without the lease")
            case do.NoteOutage(epoch, seconds):
                self._outage(epoch, seconds)
            case do.AnswerMark(mark, _):
                self._answer(mark)
            case do.TrimOutbox(query, through):
                self._trim(query, through)
            case _:
                pass

    def _write(self, action: do.WriteLease) -> None:
        me, expected, wanted = self.world.me, action.expected, action.wanted
        require(wanted.version == expected.version + 1, "R1", "a write does not raise the version")
        require(wanted.epoch >= expected.epoch, "I13", "a write lowers the epoch")
        seen = (expected.epoch, expected.version)
        if self._puts_back(wanted):
            return
        if is_forced(action):
            self._force(action)
            return
        require(seen >= self.world.read_max, "R5", "a node wrote on a regressed row")
        if wanted.holder == me and expected.holder != me:
            self._acquire(action)

    def _puts_back(self, wanted: LeaseRow) -> bool:
        """RULES.md#r5, RULES.md#r6: the holder of the newest row writes it again, an epoch higher.
        It is alone in sync, or sure that nobody can have acquired since."""
        world, history = self.world, self.world.table.history
        newest = max(history, key=lambda row: (row.epoch, row.version), default=None)
        if newest is None or newest.holder != world.me:
            return False
        safe = world.now < world.renewal_sent_at + world.timing.ttl - world.timing.margin
        higher = wanted.epoch > max(newest.epoch, world.read_max[0])
        alone = wanted.in_sync == (world.member,)
        return (
            higher
            and alone
            and wanted.holder == world.me
            and (safe or newest.in_sync == (world.member,))
        )

    def _acquire(self, action: do.WriteLease) -> None:
        expected, wanted, world = action.expected, action.wanted, self.world
        require(world.member in expected.in_sync, "I4", "acquired without being in sync")
        require(wanted.in_sync == (world.member,), "R3", "acquired and kept others in sync")
        require(not expected.paused, "R7", "acquired while paused")
        require(wanted.epoch > world.read_max[0], "I1", "acquired an epoch that was held before")
        released = expected.holder is None and expected.successor in (None, world.me.node)
        if not released:
            still = world.now - max(world.process_began_at, world.stamp_first_read_at)
            require(still >= world.timing.ttl - 1e-9, "R4", f"acquired after {still} s")

    def _force(self, action: do.WriteLease) -> None:
        """RULES.md#r26: an operator may force, where no other node can act."""
        expected, wanted, world = action.expected, action.wanted, self.world
        require(wanted.in_sync == (world.member,), "R3", "forced and kept others in sync")
        require(not expected.paused, "R7", "forced while paused")
        require(wanted.epoch > world.read_max[0], "I1", "forced an epoch that was held before")
        still = world.now - max(world.process_began_at, world.stamp_first_read_at)
        silent = expected.holder is None or still >= world.timing.ttl - 1e-9
        require(silent, "R26", f"forced {still} s after the holder renewed")

    def _append(self, record: Record) -> None:
        world, position = self.world, record.position
        require(position.sequence == len(world.disk.records) + 1, "R12", "a gap in the journal")
        before = world.disk.records[-1].position.epoch if world.disk.records else 0
        require(position.epoch >= before, "I8", "the journal's epoch fell")
        require(record.committed <= world.disk.durable, "I3", "a record calls undurable committed")
        match record.body:
            case Mark() as mark:
                self.require_lease("I2", "planned a mark without the lease")
                self._mark(mark)
            case EpochStart():
                self.require_lease("R3", "signed an epoch without the lease")
            case Published() as published:
                ledger = world.ledgers[(published.query, published.sink)]
                require(published.batch <= ledger.batch, "I7", "recorded what no ledger has")
            case _:
                pass

    def _mark(self, mark: Mark) -> None:
        disk, plan = self.world.disk, self.world.plans[mark.query]
        before = self._mark_before(mark)
        require(mark.number == before.number + 1, "I6", f"{mark} after {before}")
        require(mark.through <= disk.durable, "I5", "a mark covers what is not committed")
        require(mark.through >= before.through, "I6", "a mark goes back")
        sequences = disk.content(plan.streams, before.through, mark.through)
        has = max((self.world.ledgers[(mark.query, sink)].batch for sink in plan.sinks), default=0)
        again = mark.through <= disk.base.position.sequence  # a snapshot has that position
        new = not sequences or again or mark.number > has
        require(new, "R26", f"a sink has a batch {mark.number}")
        rows = [self._rows(position.sequence) for position in sequences]
        require(
            len(rows) <= 1 or sum(rows) <= self.world.limits.max_events_per_batch,
            "I6",
            "a batch is larger than its limit",
        )

    def _mark_before(self, mark: Mark) -> Mark:
        latest = Mark(mark.query, 0, 0)
        for record in self.world.disk.records:
            match record.body:
                case Mark(query) as found if query == mark.query:
                    latest = found
                case Application(_, versions):
                    firsts = [v.first for v in versions if v.query == mark.query]
                    latest = max([latest, *firsts], key=lambda m: (m.number, m.through))
        return latest

    def _rows(self, sequence: int) -> int:
        body = self.world.disk.records[sequence - 1].body
        return body.rows if isinstance(body, Events) else 0

    def _commit(self, sequence: int) -> None:
        require(sequence <= self.world.disk.durable, "I3", "acked what is not durable")
        require(sequence > self.committed, "I8", "the commit position fell")
        self.require_lease("I2", "acked without the lease")
        self.committed = sequence

    def _role(self, role: Role, epoch: int) -> None:
        self.transitions.add((self.role, role))
        self.role = role
        if role is Role.PROMOTING:
            require(epoch not in self.epochs, "R15", f"epoch {epoch} is resumed")
            require(epoch == self._row_epoch(), "I1", "promoted under an epoch of no row")
            self.epochs.add(epoch)
        if role is Role.ACTIVE:
            newest = max(
                (r.position.sequence for r in self.world.disk.records
                 if isinstance(r.body, EpochStart)), default=0,
            )  # fmt: skip
            require(0 < newest <= self.world.disk.durable, "R3", "active before the epoch record")

    def _outage(self, epoch: int, seconds: float) -> None:
        require(self.role is Role.ACTIVE and epoch in self.epochs, "history", "not by its holder")
        require(seconds >= 0, "history", f"an outage of {seconds} s")
        require(epoch not in self.outages, "history", f"two outages before epoch {epoch}")
        self.outages.add(epoch)

    def _row_epoch(self) -> int:
        return self.world.table.row.epoch if self.world.table.row else 0

    def require_lease(self, rule: str, said: str) -> None:
        """A missing or regressed row has no other holder; any other row must name this process."""
        row = self.world.table.row
        lost = row is None or (row.epoch, row.version) < self.world.table.highest
        require(lost or (row is not None and row.holder == self.world.me), rule, said)

    def _answer(self, mark: Mark) -> None:
        durable = self.world.disk.records[: self.world.disk.durable]
        shared = self._require_admitted(mark)
        require(shared in [r.body for r in durable], "I5", f"{mark} answered before it was durable")
        wanted = self.world.wanted.get(mark.query)
        require(wanted is not None and mark.number == wanted + 1, "R18", f"{mark} after {wanted}")

    def _require_admitted(self, mark: Mark) -> Mark:
        """RULES.md#r38: a shadow gets the mark of its live query once this node has the batch.
        Return the mark of the live query."""
        live, _, shadow = mark.query.partition(SHADOW_SIGN)
        has = not shadow or self.world.disk.admitted.get(live, 0) >= mark.number
        require(has, "R38", f"{mark} is answered before {live} has the batch")
        return replace(mark, query=live)

    def _trim(self, query: str, through: int) -> None:
        durable = [r.body for r in self.world.disk.records[: self.world.disk.durable]]
        if not any(number <= through for number in self.world.disk.outbox.get(query, {})):
            return  # a sink that was added later begins there and retains nothing
        plan = self.world.plan_of(query)
        for sink in plan.sinks:
            told = [b.batch for b in durable if isinstance(b, Published)
                    and (b.query, b.sink) == (plan.name, sink)]  # fmt: skip
            require(max(told, default=0) >= through, "R25", f"trimmed {query} {through} too early")

    # -- the end of a history ----------------------------------------------------------------------

    def all_published(self) -> bool:
        try:
            self.require_all_published()
        except Violation:
            return False
        return True

    def require_all_published(self) -> None:
        """Liveness: each committed event is in one batch of each query, at each of its sinks."""
        for query in self.world.plans:
            self._require_published(query, self._events_for(query))

    def _events_for(self, query: str) -> set[Position]:
        """Return the events after the begin of the query. Not among them are those trimmed while
        the query was out of the application, before it began again (RULES.md#r23)."""
        disk, streams, run = self.world.disk, self.world.plans[query].streams, self.world.batches
        by_mark, come_to = dict[int, set[Position]](), None
        for record in disk.records:
            version = _version_of(query, record)
            if isinstance(record.body, Mark) and record.body.query == query:
                through = record.body.through
                by_mark[record.body.number] = set(disk.content(streams, come_to or 0, through))
                come_to = through
            elif version is not None and (come_to is None or version.reset):
                if come_to is not None and version.first.through > come_to:
                    by_mark = {n: by_mark[n] for n in by_mark if n in run.get(query, {})}
                come_to = version.first.through
        if come_to is not None:
            by_mark[-1] = set(disk.content(streams, come_to, len(disk.records)))
        return set[Position]().union(*by_mark.values())

    def _require_published(self, query: str, events: set[Position]) -> None:
        batches = self.world.batches.get(query, {})
        numbers = sorted(batches)
        # A sink needs each number; without a sink, a batch that no node ran may be missing.
        whole = numbers == list(range(1, len(numbers) + 1)) or not self.world.plans[query].sinks
        require(whole, "I6", f"{query} batches {numbers}")
        seen = [sequence for number in numbers for sequence in batches[number]]
        require(seen == sorted(set(seen)), "I6", f"{query} has events twice or out of order")
        given_up = self.world.given_up.get(query, set())
        require(set(seen) | given_up == events, "liveness", f"{query}: {events - set(seen)}")
        for sink in self.world.plans[query].sinks:
            batch = self.world.ledgers[(query, sink)].batch
            require(batch == len(numbers), "liveness", f"{query} is at {batch} in {sink}")


def _version_of(query: str, record: Record) -> QueryVersion | None:
    """Return the version of a query that ``record`` puts in force."""
    versions = record.body.queries if isinstance(record.body, Application) else ()
    return next((version for version in versions if version.query == query), None)


def lineage_of(records: Iterable[Record], query: str) -> int:
    """Return the sequence of the record that began the query's state or carried it on under changed
    code, computed independently of the core."""
    began, known = 0, ""
    for record in records:
        if isinstance(record.body, Application):
            for version in record.body.queries:
                if version.query == query and (version.reset or known != version.digest):
                    began, known = record.position.sequence, version.digest
    return began
