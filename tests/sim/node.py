"""One node of the simulated group: a real core with a disk, its own clock and an edge.

It is a World whose parts work after a delay instead of on a verb: requests go to the shared
database, messages over the network, records to the disk, batches through Spark to the sinks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core.lease import LeaseTiming
from ha_engine.core.marks import MarkLimits
from ha_engine.core.progress import PeerTiming
from ha_engine.node.storage import prepare_shadows
from ha_engine.types import Deployed, Events, Mark, Record, Role
from tests.core.spark_world import live_of
from tests.core.surroundings import Checkpoint, Content, Disk, RunningQuery
from tests.core.truth import require
from tests.core.world import World, plan
from tests.sim.agenda import Deed
from tests.sim.archive import Revision, require_out_of_sync
from tests.sim.delivery import Delivery
from tests.sim.pulling import pulled_by
from tests.sim.shadowing import LIMITS as SHADOW_LIMITS
from tests.sim.shadowing import Outboxes, plans_with
from tests.sim.sim_truth import SimTruth
from tests.sim.streams import Streams
from tests.sim.variants import Variant
from tests.sim.watching import keep_for_observers

if TYPE_CHECKING:
    from tests.sim.group import Group

TIMING = LeaseTiming(ttl=3.0, renew_interval=0.8, margin=0.4)
PEERS = PeerTiming(heartbeat_interval=0.5, sync_timeout=1.6, backup_after=2.0)
LIMITS = MarkLimits(
    max_events_per_batch=60,
    min_batch_interval=0.8,
    idle_batch_interval=2.5,
    outbox_batches_max=4,
    outbox_bytes_max=100_000,
)
PLANS = (plan("delays", "flights", "board"), plan("storms", "flights weather", "archive"))
WARM_PLANS = (plan("delays", "flights", "board", warm=True), PLANS[1])
SOONEST_SECONDS = 0.001
NEEDLESS_TICK_SECONDS = 2.0
HALTED_WITHIN = 0.6
LATE_RELEASE = 40.0


def plans_of(variant: Variant) -> tuple[Any, ...]:
    return WARM_PLANS if variant is Variant.WARM else PLANS


def _plans_of_backup() -> tuple[Any, ...]:
    """RULES.md#r37: a backup runs no query until it is the active."""
    return tuple(replace(one, warm=True) for one in PLANS)


class StateIsLost(Exception):
    """The state of a query is on another node's disk or nowhere, and no snapshot has it."""


class _Nobody:
    """A replacement of World's ghost: here the other members are real."""

    linked = False

    def hears(self, action: do.Action) -> None:
        pass


class SimNode(World):
    peers = PEERS
    snapshot_every = 2.5
    shadow_limits = SHADOW_LIMITS

    def __init__(self, group: Group, name: str, rate: float, offset: float, engine: Any) -> None:
        self.group, self.random = group, group.random
        self.node, self.new_group_id = name, f"group-{name}"
        self.others = tuple(other for other in group.names if other != name)
        self.rate, self._offset = rate, offset
        self.paused = False
        self._backlog: list[Deed] = []
        self.waits_for: object | None = None
        self.disks = 0
        self.streams, self.delivery = Streams(self), Delivery(self)
        # This node's directory on storage that all nodes share, which outlives its disk.
        self.shared: dict[str, Checkpoint] = {}
        self.backup = group.backup
        plans = _plans_of_backup() if name == group.backup else plans_of(group.variant)
        super().__init__(engine, plans, LIMITS, (), group.around)
        self.timing, self.ghost, self.truth = TIMING, _Nobody(), SimTruth(self)
        self.heard = lambda action: group.tell(name, action)
        self.known: dict[tuple[str, int], int] = {}
        self.pulled = 0
        self.fsync_max, self.spark_starts_within = 0.02, (0.05, 0.5)
        self.new_disk()

    # -- its clock, its process --------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Return CLOCK_BOOTTIME of this host, which drifts."""
        return self._offset + self.rate * self.group.now

    @now.setter
    def now(self, _: float) -> None:
        """Ignore World, which sets its own clock; this one runs by itself."""

    def new_disk(self) -> None:
        self.disks += 1
        self.disk, self.read_max = Disk(f"{self.node}-{self.disks}"), (0, 0)

    def later(self, delay: float, deed: Deed) -> None:
        """Run the deed after ``delay`` true seconds, if this same process still lives."""
        process = self.processes

        def due() -> None:
            if self.alive and self.processes == process:
                self.now_or_run(deed)

        self.group.agenda.after(delay, due)

    def now_or_run(self, deed: Deed) -> None:
        """Run the deed now, or in order when a stopped process continues."""
        if self.paused:
            self._backlog.append(deed)
        else:
            deed()

    def soon(self, delay: float, event: on.Input) -> None:
        self.later(delay, lambda: self.feed(event))

    def now_or_later(self, event: on.Input) -> None:
        if self.alive:
            self.now_or_run(lambda: self.feed(event))

    def feed(self, event: on.Input) -> None:
        self.group.tell(self.node, event)
        self.group.facts.heard(self, event)
        super().feed(event)
        self._arm()

    def settle(self) -> None:
        """Do nothing: no part works at once here."""

    def _forget_process(self) -> None:
        super()._forget_process()
        self.paused, self.waits_for, self._armed_for = False, None, math.inf
        self._backlog.clear()
        self.streams.stop()
        self.delivery.stop()
        self.syncing = False

    def start(self, *, ticks: bool = True) -> None:
        if self.alive:
            return
        self.known, self.pulled = {}, 0
        for record in self.disk.records:
            self._index(record)
        if self.group.variant is Variant.SHADOWED:
            self.plans = {one.name: one for one in plans_with(self.disk.deployed, PLANS)}
        super().start(ticks=ticks)
        self.later(self.random.expovariate(1 / NEEDLESS_TICK_SECONDS), self._tick_needlessly)
        self._attend_soon()

    def _arm(self) -> None:
        """Set the timer like the driver: the next Tick comes when the core wants it, or slightly
        later."""
        if not self.alive:
            return
        wake_at = self.core.wake_at()
        if wake_at < self._armed_for:
            self._armed_for = wake_at
            delay = max(SOONEST_SECONDS, (wake_at - self.now) / self.rate)
            late = self.random.uniform(0, self.group.wakes_late)
            self.later(delay + late, lambda: self._wake(wake_at))

    def _wake(self, armed_for: float) -> None:
        if armed_for == self._armed_for:
            self._armed_for = math.inf
            if self.now >= self.core.wake_at():
                self.feed(on.Tick())
            else:
                self._arm()

    def _tick_needlessly(self) -> None:
        """Send a needless Tick; ``wakefulness`` judges that it does nothing."""
        self.later(self.random.expovariate(1 / NEEDLESS_TICK_SECONDS), self._tick_needlessly)
        self.feed(on.Tick())

    def kill(self, *, query_process_dies: bool) -> None:
        if not self.alive:
            return
        dead = (self.node, self.me.process)
        kept = self.random.randint(0, len(self.disk.records) - self.disk.durable)
        self.group.tell(self.node, f"is killed; {kept} records that were not fsynced survive")
        self.crash(tail_kept=kept, query_process_dies=query_process_dies)
        self.late.clear()
        self._died(dead, released=self.random.random() < 0.4)

    def _died(self, dead: tuple[str, str], *, released: bool) -> None:
        self.alive = False
        self.group.network.died(self.node)
        self.group.facts.node_died(self)
        if released:
            # The supervisor that saw the death releases at once; the next one late if both died.
            delay = self.random.uniform(0.01, 0.5)
            delay = delay if delay < 0.3 else (delay - 0.29) * LATE_RELEASE
            self.group.agenda.after(delay, lambda: self.group.database.release(dead))
        self.group.restart(self)

    def pause(self, seconds: float) -> None:
        if not self.alive or self.paused:
            return
        self.paused = True
        process = self.processes
        self.group.network.falls_silent(self.node)
        self.group.agenda.after(seconds, lambda: self.resume(process))

    def resume(self, process: int) -> None:
        if self.paused and self.processes == process:
            self.paused = False
            self.group.tell(self.node, "goes on after a pause")
            backlog, self._backlog = self._backlog, []
            for deed in backlog:
                if self.alive and self.processes == process:
                    self.now_or_run(deed)

    # -- actions -----------------------------------------------------------------------------------

    def _perform(self, action: do.Action) -> None:
        match action:
            case do.Send(peer, message):
                self.group.facts.told(self, message)
                self.group.network.send(self, peer, message)
            case do.StreamRecords(peer, epoch, after):
                self.streams.start(peer, epoch, after)
            case do.StopStreams():
                self.streams.stop()
            case do.AppendRecords(records):
                self._append(records)
            case do.TruncateJournal(match, _, set_aside):
                if set_aside:
                    self._give_up()
                self._cut(match.sequence)
            case do.TakeSnapshot(place):
                self.group.archive.take(self, place)
            case do.ShowSnapshot(draft, epoch):
                self.group.archive.show(self, draft, epoch)
            case do.FindRevisions():
                self.group.archive.find(self)
            case do.Restore():
                require(self.spark is None, "R20", "a query process lives on what is replaced")
                self.group.archive.restore(self, action)
            case do.TrimJournal(position):
                self.require_needless(position.sequence)
                self.group.archive.require_kept(self, position)
                self.later(self.random.uniform(0.01, 0.5), lambda: self._trim(position.sequence))
            case do.ChangeApplication(deployed):
                self._change_application(deployed)
            case do.Exit():
                self._exit(action)
            case do.ReadLease() | do.CreateLease() | do.WriteLease():
                super()._perform(action)
                self.group.database.ask(self, action)
            case do.ChangeRole(role) if role is Role.DEMOTING:
                self.group.producers.refuse(self)
            case do.Commit(sequence):
                self.group.producers.committed(self, sequence)
            case do.TrimOutbox(query, through):
                keep_for_observers(self.disk, query, through)
                super()._perform(action)
            case do.StartPublishing() | do.StopPublishing():
                super()._perform(action)
                self.delivery.restart()
            case do.AnswerMark():
                super()._perform(action)
                self._work(action.mark.query)
            case do.RunQuery(query):
                super()._perform(action)
                if action.takeover is not None and self.running(query) is not None:
                    self.shared[query] = self.disk.checkpoints[query]
                self._work(query)
            case do.HaltQuery(query):
                halt = partial(self._halt, action, self.running(query))
                self.spark_later(self.random.uniform(0.01, HALTED_WITHIN), halt)
            case do.StartQueryProcess():
                super()._perform(action)
                self._attend_soon()
            case _:
                super()._perform(action)

    def _halt(self, action: do.HaltQuery, running: RunningQuery | None) -> None:
        """Stop the run that the query process had when it got the command; a later run came after
        that command."""
        if self.running(action.query) is running:
            super()._perform(action)
        else:
            self.feed(on.QueryHalted(action.query))

    def _append(self, records: tuple[Record, ...]) -> None:
        for record in records:
            self.disk.records.append(record)
            self.group.facts.appended(self, record)
            self._index(record)
        self._fsync()
        self.streams.go_on()

    def _index(self, record: Record) -> None:
        if isinstance(record.body, Events):
            for one in record.body.submissions:
                self.known[(one.producer, one.sequence)] = record.position.sequence
        self.pulled = pulled_by(record) or self.pulled

    def _fsync(self) -> None:
        """Run one fsync at a time; it makes the records durable that were written at its begin."""
        if self.syncing or not self.alive or self.disk.durable == len(self.disk.records):
            return
        self.syncing = True
        written, process = len(self.disk.records), self.processes

        def done() -> None:
            if self.processes == process and self.alive:
                self.syncing, self.disk.durable = False, written
                self.now_or_run(lambda: self.feed(on.RecordsDurable(written)))
                self._fsync()

        self.group.agenda.after(self.random.uniform(0.0005, self.fsync_max), done)

    def _cut(self, length: int) -> None:
        """Truncate durably; then another node process begins, and that of Spark lives on."""
        dead = (self.node, self.me.process)
        self.group.facts.cut(self, length)
        del self.disk.records[length:]
        self.disk.durable = length
        self._forget_process()
        self._died(dead, released=False)

    def _give_up(self) -> None:
        """RULES.md#r8, RULES.md#r26: the journal has a new id from here on, and the files derived
        from it are deleted."""
        require(self.spark is None, "R26", "a query process lives on what is given up")
        self.group.count("journals set aside")
        self.disks += 1
        self.disk.journal_id = f"{self.node}-{self.disks}"
        for kept in (self.disk.outbox, self.disk.admitted, self.disk.trimmed):
            kept.clear()
        self.disk.outbox_rows.clear()

    def go_back_to(self, image: Disk) -> None:
        """Put an earlier image in the place of this dead node's disk."""
        require(not self.alive, "schedule", f"the disk of {self.node} is in use")
        self.group.tell(self.node, f"has its disk as of {len(image.records)} records")
        once_had = max(self.disk.durable, self.disk.once_had)
        self.disk = copy.deepcopy(image)
        self.disk.once_had, self.disk.durable = once_had, len(self.disk.records)
        self.disk.seen_by = set()

    def _trim(self, through: int) -> None:
        self.trim(through)
        self.group.count("journals trimmed")

    def begin_from(self, disk: Disk) -> None:
        """Replace everything by a snapshot; then another process begins."""
        dead = (self.node, self.me.process)
        require_out_of_sync(self)
        self.disk, self.shared = disk, {}
        self._forget_process()
        self._died(dead, released=False)

    def _change_application(self, deployed: Deployed | None) -> None:
        row = self.group.around.table.row
        require(row is None or row.holder != self.me, "R36", "the holder restarts")
        self.disk.deployed = deployed
        self.group.count("restarts with another application")
        self.kill(query_process_dies=False)

    def _exit(self, action: do.Exit) -> None:
        dead = (self.node, self.me.process)
        graceful = self.core.stopping
        super()._perform(action)
        self._died(dead, released=not graceful)

    # -- the database ------------------------------------------------------------------------------

    def carry_out(self, request: do.ReadLease | do.CreateLease | do.WriteLease) -> on.Input:
        return self._carry_out(request)

    def answered(self, answer: on.Input) -> None:
        request, self.request = self.request, None
        self.group.facts.answered(self, request, answer)
        if not self._is_doubtful(answer):
            self._note_read(answer)
            if isinstance(answer, on.LeaseWritten):
                self.renewal_sent_at = self.request_sent_at
        self.feed(answer)

    def _is_doubtful(self, answer: on.Input) -> bool:
        """Return whether the database failed over around the write, which may be lost
        (RULES.md#r5)."""
        written = isinstance(answer, on.LeaseWritten)
        return written and answer.row.identity not in (None, answer.identity)

    # -- Spark -------------------------------------------------------------------------------------

    def spark_later(self, delay: float, deed: Deed) -> None:
        """Run the deed in this query process; if it needs the node, wait until one serves."""
        incarnation = self.spark.incarnation if self.spark is not None else None

        def due() -> None:
            if self.spark is None or self.spark.incarnation != incarnation:
                return
            if self.alive and not self.paused:
                deed()
            else:
                self.group.agenda.after(0.2, due)

        self.group.agenda.after(delay, due)

    def _attend_soon(self) -> None:
        if self.spark is not None:
            self.spark_later(self.random.uniform(*self.spark_starts_within), self._attend_once)

    def _attend_once(self) -> None:
        if self.spark is not None and not self.spark.attended:
            self.attend()

    def _work(self, query: str) -> None:
        """Let Spark compute the batch whose marks it has all."""
        running = self.running(query)
        if query in self.group.unfinished:
            return
        if running is not None and running.checkpoint.begun is not None:
            delay = self.random.uniform(0.01, self.group.batch_max)
            self.spark_later(delay, lambda: self.finish(query))

    def _judge_batch(self, query: str, number: int, content: Content) -> None:
        facts = self.group.facts
        position = facts.given_up_mark(self, live_of(query), number)
        if position is None:
            super()._judge_batch(query, number, content)
        elif query == live_of(query):
            facts.contents[position] = content

    def _admit(self, query: str, number: int, content: Content, lineage: str) -> bool:
        new = super()._admit(query, number, content, lineage)
        if new and self.alive:
            made_by = self.disk.made_by[(query, number)]
            self.feed(on.BatchDigested(query, number, f"{content} {made_by}"))
            self.delivery.restart()
        return new

    def _prepare_shadows(self, core: Any) -> None:
        outboxes: Any = Outboxes(self.disk)
        prepare_shadows(outboxes, core)

    def _find_state(self, action: do.RunQuery) -> bool:
        """Bring the state of a promoted query from a snapshot. That of a shadow is in none."""
        if self.group.variant is not Variant.SHADOWED:
            return super()._find_state(action)
        query = action.query
        revision = self.group.archive.usable(self, query, action.lineage)
        if action.shadow_of is not None or revision is None:
            return False
        self.group.count("promoted queries restored from a snapshot")
        number = dict(revision.place.batches)[query]
        mark = Mark(query, number, revision.place.position.sequence)
        made_by = revision.states[query]
        self.disk.checkpoints[query] = Checkpoint(action.lineage, mark, made_by=made_by)
        self._begin_outbox(query, number, revision)
        return True

    def _take_over(self, action: do.RunQuery, takeover: do.Takeover) -> bool:
        """Continue a state that is newer than this node's own: of a checkpoint on the shared
        storage, or of a snapshot. Return False if the database cannot be asked for one."""
        query, lineage = action.query, action.lineage
        own = self.disk.checkpoints.get(query)
        whole = own is not None and own.lineage == lineage
        if own is not None and self.core.deployment.lacks_mark_after(query, own.done.number):
            whole = False  # the journal has trimmed what follows this node's old checkpoint
        mine = own.done.number if own is not None and whole else action.initial.number
        if (whole or not action.must_resume) and mine + 1 >= takeover.published:
            return True
        found = max(
            self._shared(query, lineage, dict(takeover.shared)), key=lambda one: one.done.number
        )
        if found.done.number > mine:
            self.group.count("checkpoints of others continued")
            self.disk.checkpoints[query] = found
            self._begin_outbox(query, found.done.number)
            return True
        if not self.group.archive.reached(self):
            return False
        revision = self.group.archive.usable(self, query, lineage)
        number = 0 if revision is None else dict(revision.place.batches)[query]
        if revision is not None and number > mine:
            self.group.count("warm queries restored from a snapshot")
            mark = Mark(query, number, revision.place.position.sequence)
            self.disk.checkpoints[query] = Checkpoint(lineage, mark)
            self._begin_outbox(query, number, revision)
        elif action.must_resume and not whole:
            self._require_loss(query)
        return True

    def _shared(self, query: str, lineage: str, shared: dict[int, int]) -> Iterator[Checkpoint]:
        yield Checkpoint(lineage, Mark(query, 0, 0))
        for node in self.group.nodes.values() if self.group.shares_storage else ():
            theirs = node.shared.get(query)
            if theirs is None or _record_in(theirs.lineage) != _record_in(lineage):
                continue
            newest = min(theirs.done.number, shared.get(theirs.epoch, 0))
            if newest in theirs.past:
                mark, position = theirs.past[newest]
                has = self.core.journal.has(position)
                require(has, "R33", f"batch {newest} of {query} has another mark on {node.node}")
                past = {number: one for number, one in theirs.past.items() if number <= newest}
                yield Checkpoint(lineage, mark, past=past)

    def _require_loss(self, query: str) -> None:
        """A state is lost if the database lost the snapshots, or if an operator gave up their
        history. With shared storage it is lost only if both happened, since an operator also gives
        up the checkpoints of a later epoch."""
        group = self.group
        causes = [group.counters["database failovers"], group.counters["forced failovers"]]
        lost = all(causes) if group.shares_storage else any(causes)
        require(lost, "R33", f"{query} has no state")
        raise StateIsLost(query)

    def _begin_outbox(self, query: str, last: int, revision: Revision | None = None) -> None:
        """Let the outbox end with batch ``last``, and have the batches of ``revision``, unless it
        is further."""
        if self.disk.admitted.get(query, 0) >= last:
            return
        batches = {} if revision is None else revision.outbox[query]
        left = last - len(batches)
        self.disk.outbox[query], self.disk.admitted[query] = dict(batches), last
        self.disk.trimmed[query] = left
        self.feed(on.OutboxRestored(query, left))
        for number in sorted(batches):
            assert revision is not None
            count = self.disk.outbox_rows[(query, number)] = revision.rows[(query, number)]
            self.disk.made_by[(query, number)] = revision.made_by[(query, number)]
            self.feed(on.BatchAdmitted(query, number, count, 100 * count))

    def fail_query(self, query: str) -> None:
        if self.alive and not self.paused:
            self.fail(query)


def _record_in(lineage: str) -> str:
    return lineage.rpartition(":")[2]
