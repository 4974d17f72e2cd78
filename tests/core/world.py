"""One node's core in a simulated world: clock, replies and fsyncs move only on a verb.

``automatic`` names the parts that do their work at once; every other part waits for its verb. Each
action is judged by ``truth`` before the world performs it. A mutated copy of the core can be put in
the place of the real one: ``engine`` is any module with the public names of ``ha_engine.core``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import ha_engine.core
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core.core import ALONE
from ha_engine.core.inputs import Input
from ha_engine.core.lease import LeaseTiming
from ha_engine.core.marks import MarkLimits
from ha_engine.types import Deployed, Events, Holder, LeaseRow, Member, Record
from tests.core.archive import Archive
from tests.core.ghost import Ghost
from tests.core.spark_world import SparkWorld
from tests.core.surroundings import Disk, Surroundings
from tests.core.truth import Truth, lineage_of, require
from tests.core.wakefulness import Wakefulness

TIMING = LeaseTiming(ttl=5.0, renew_interval=1.0, margin=0.5)
LIMITS = MarkLimits(
    max_events_per_batch=100,
    min_batch_interval=0.0,
    idle_batch_interval=0.5,
    outbox_batches_max=3,
    outbox_bytes_max=100_000,
)
EVERYTHING = frozenset({"lease", "disk", "process", "batches", "sinks"})
TICK_SECONDS = 0.25
SETTLED_WITHIN = 10_000


def plan(
    name: str,
    streams: str,
    sinks: str,
    digest: str = "v1",
    change: str | None = None,
    *,
    warm: bool = False,
) -> Any:
    """A query plan; streams and sinks are words in one string."""
    words = frozenset(streams.split()), tuple(sinks.split())
    return ha_engine.core.QueryPlan(name, digest, *words, change, warm)


PLANS = (plan("delays", "flights", "board"), plan("storms", "flights weather", "board archive"))


class World(SparkWorld):
    """Verbs are inputs: each feeds the core, lets what is automatic settle, and returns.

    Worlds that are given the same surroundings are nodes of one group.
    """

    node = "a"
    new_group_id = "group-1"
    others: tuple[str, ...] = ()
    backup: str | None = None
    peers = ALONE
    snapshot_every = 0.0
    shadow_limits: Any = None

    def __init__(
        self,
        engine: Any = ha_engine.core,
        plans: Iterable[Any] = PLANS,
        limits: MarkLimits = LIMITS,
        automatic: Iterable[str] = EVERYTHING,
        around: Surroundings | None = None,
    ) -> None:
        around = around or Surroundings()
        super().__init__(around)
        self.engine, self.limits, self.timing = engine, limits, TIMING
        self.plans = {plan.name: plan for plan in plans}
        self.automatic = set(automatic)
        self.ghost = Ghost(self)
        self.now = 0.0
        self.table, self.disk, self.archive = around.table, Disk(), Archive()
        self.core: Any = None
        self.processes = 0
        # The deployment that the node process runs.
        self.deployed: Deployed | None = None
        self.truth = Truth(self)
        self.heard: Callable[[do.Action], None] = lambda action: None
        self.request: do.ReadLease | do.CreateLease | do.WriteLease | None = None
        self.next_reply = "arrives"
        self.late: list[do.CreateLease | do.WriteLease] = []
        self.read_max = (0, 0)
        self.broken = False
        self._inputs: deque[Input] = deque()
        self._forget_process()

    def _forget_process(self) -> None:
        self.core, self.alive, self.request = None, False, None
        self.receiving, self.publishing = False, None
        self.claimed, self.fenced = set(), set()
        self.stamp: tuple[int, int] | None = None
        self.request_sent_at = self.renewal_sent_at = float("-inf")
        self.stamp_first_read_at = self.process_began_at = self.now
        self.wanted: dict[str, int] = {}
        self.ghost.linked = False
        self.wakefulness = Wakefulness()
        self._inputs.clear()
        self._stepping = False

    # -- identity of the node ----------------------------------------------------------------------

    @property
    def me(self) -> Holder:
        return Holder(self.node, f"p{self.processes}")

    @property
    def member(self) -> Member:
        return Member(self.node, self.disk.journal_id)

    # -- life of the node process ------------------------------------------------------------------

    def start(self, *, ticks: bool = True) -> None:
        """Start a process: it restores, learns which query process still lives, and ticks."""
        self.processes += 1
        self.deployed = self.disk.deployed
        self._forget_process()
        self.truth.new_process()
        self.core, self.alive = self.new_core(), True
        for query, marks in self.core.deployment.marks.items():
            kept = len(self.disk.outbox.get(query, {}))
            require(marks.outbox.backlog[0] == kept, "R19", f"{query} has {kept} in the outbox")
        if self.spark is not None:
            self.feed(on.QueryProcessAdopted(self.spark.incarnation))
        if ticks:
            self.feed(on.Tick())
        if self.spark is not None:
            self.spark.attended = False
            if "process" in self.automatic:
                self.attend()
        self.settle()

    def new_core(self) -> Any:
        """Return a core restored from everything on the disk, as ``node`` does it."""
        core = self._core_of(self.disk.records)
        self._restore_outboxes(core)
        return core

    def _core_of(self, records: Iterable[Record]) -> Any:
        """Return a core that loaded the base of the journal and read ``records`` behind it."""
        engine, disk = self.engine, self.disk
        identity = engine.NodeIdentity(
            self.node,
            self.me.process,
            disk.journal_id,
            disk.group_id,
            self.new_group_id,
            f"http://{self.node}:8080",
            self.others,
            self.backup,
        )
        digest = "+".join(f"{p.name}:{p.digest}" for p in self.plans.values())
        plans = tuple(engine.QueryPlan(**_fields(p)) for p in self.plans.values())
        restarts = engine.RestartPolicy(attempts_per_batch=2, deaths_per_batch=5, backoff_max=8.0)
        deployed = self.deployed
        parts: tuple[Any, ...] = (self.archive_of_process,)
        if deployed is not None and deployed.shadow is not None:
            parts = *parts, (deployed.shadow, deployed.shadow.archive), self.shadow_limits
        deployment = engine.Deployment(digest, plans, self.limits, restarts, *parts)
        high_water = disk.high_water or engine.HighWater()
        every = self.snapshot_every
        core = engine.Core(identity, self.timing, high_water, deployment, self.peers, every)
        core.load_base(disk.base)
        for record in records:
            if record.position > disk.base.position:
                core.replay(record)
        return core

    def require_needless(self, through: int) -> None:
        """Check a trim when it is decided; a query process that dies later needs no more."""
        require(through <= self.core.deployment.need(), "R29", f"a query needs what {through} has")

    def trim(self, through: int) -> None:
        """Trim the records up to there; the base then holds their content."""
        base = self.disk.base.position.sequence
        require(base < through <= self.core.journal.committed, "R29", f"trim to {through}, {base}")
        self.disk.base = self._core_of(self.disk.records[:through]).journal.as_base()
        self.feed(on.JournalTrimmed(self.disk.base.position))

    @property
    def archive_of_process(self) -> str | None:
        return None if self.deployed is None else self.deployed.runs

    def _restore_outboxes(self, core: Any) -> None:
        self._prepare_shadows(core)
        for query, marks in core.deployment.marks.items():
            first_kept = min(self.disk.outbox.get(query, {}), default=None)
            floor = marks.set_outbox_floor(first_kept, self.disk.trimmed.get(query, 0))
            self._restore_outbox(core, query, floor)

    def _prepare_shadows(self, core: Any) -> None:
        """Do what a node does with the outboxes of shadows at its start (RULES.md#r38)."""

    def _restore_outbox(self, core: Any, query: str, floor: int) -> None:
        outbox = self.disk.outbox.setdefault(query, {})
        for number in [n for n in outbox if n <= floor]:
            del outbox[number]
        self.disk.trimmed[query] = max(floor, self.disk.trimmed.get(query, 0))
        last = max(outbox, default=floor)
        self.disk.admitted[query] = max(last, self.disk.admitted.get(query, 0))
        require(sorted(outbox) == list(range(floor + 1, last + 1)), "R25", f"{query} has a gap")
        for number in sorted(outbox):
            rows = self.disk.outbox_rows[(query, number)]
            core.deployment.restore_admitted(query, number, rows, 100 * rows)

    def crash(self, *, tail_kept: int = 0, query_process_dies: bool = True) -> None:
        """kill -9; ``tail_kept`` records that were not fsynced happen to survive."""
        self.require_same_after_restart()
        if isinstance(self.request, do.CreateLease | do.WriteLease):
            self.late.append(self.request)
        self.disk.lose_tail(tail_kept)
        self._forget_process()
        if query_process_dies:
            self.spark = None

    def stop(self) -> None:
        self.feed(on.StopAsked())
        self.settle()

    def require_same_after_restart(self) -> None:
        """A core fed the same records knows the same marks, versions, lineages and skips."""
        if not self.alive:
            return
        live, again = picture(self.core), picture(self._fresh_copy())
        require(live == again, "R12", f"a restart changes\n{live}\nto\n{again}")
        for query, lineage in self.core.deployment.versions.lineages.items():
            require(lineage == lineage_of(self.disk.records, query), "R23", f"lineage of {query}")

    def _fresh_copy(self) -> Any:
        disk, outbox = self.disk, self.disk.outbox
        self.disk = replace(
            disk,
            outbox={query: dict(batches) for query, batches in outbox.items()},
            admitted=dict(disk.admitted),
            trimmed=dict(disk.trimmed),
            made_by=dict(disk.made_by),
        )
        try:
            return self.new_core()
        finally:
            self.disk = disk

    # -- time --------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Move the clock in ticks, which reach the core while it is alive."""
        for _ in range(round(seconds / TICK_SECONDS)):
            self.now += TICK_SECONDS
            self.feed(on.Tick())
            self.settle()

    def jump(self, seconds: float) -> None:
        """Move the clock without a Tick for the core: a pause of the process."""
        self.now += seconds

    # -- inputs and actions ------------------------------------------------------------------------

    def feed(self, event: Input) -> None:
        """Step the core as the driver does; the inputs that an action causes wait their turn."""
        self._inputs.append(event)
        if self._stepping:
            return
        # ``broken`` stays when a step raises, so that no caller continues with half of one.
        self._stepping = self.broken = True
        while self._inputs and self.alive:
            for action in self.wakefulness.step(self.core, self.now, self._inputs.popleft()):
                self.truth.judge(action)
                self.heard(action)
                self._perform(action)
                self.ghost.hears(action)
        self._stepping = self.broken = False
        self._inputs.clear()

    def _perform(self, action: do.Action) -> None:
        match action:
            case do.ReadLease() | do.CreateLease() | do.WriteLease():
                require(self.request is None, "R1", "two requests at once")
                self.request, self.request_sent_at = action, self.now
            case do.KeepHighWater(high_water):
                self.disk.high_water = high_water
            case do.BindGroup(group_id):
                self.disk.group_id = group_id
            case do.AppendRecords(records):
                self.disk.records += records
            case do.TrimOutbox(query, through):
                outbox = self.disk.outbox.get(query, {})
                for told in (self.disk.trimmed, self.disk.admitted):
                    told[query] = max(through, told.get(query, 0))
                for number in [n for n in outbox if n <= through]:
                    del outbox[number]
            case do.TakeSnapshot(place):
                self.feed(on.SnapshotTaken(place, self.archive.take(place)))
            case do.ShowSnapshot(draft, epoch):
                self.feed(on.RevisionsKept(self.archive.show(draft, epoch)))
            case do.FindRevisions() if self.archive.answers:
                self.feed(on.RevisionsKept(self.archive.places()))
            case do.TrimJournal(position):
                self.require_needless(position.sequence)
                self.trim(position.sequence)
            case do.OpenReceivers() | do.CloseReceivers():
                self.receiving = isinstance(action, do.OpenReceivers)
            case do.StartPublishing(epoch):
                self.publishing, self.claimed, self.fenced = epoch, set(), set()
            case do.StopPublishing():
                self.publishing = None
            case do.ChangeApplication(deployed):
                self.disk.deployed = deployed
                self.crash(query_process_dies=False)
                self.alive = False
            case do.Exit():
                self.disk.durable = len(self.disk.records)
                self.alive, self.spark = False, None
            case _:
                self._perform_for_spark(action)

    def settle(self) -> None:
        """Let everything automatic work until nothing is left to do."""
        for _ in range(SETTLED_WITHIN):
            if not self.alive or not (
                self._lease_settles()
                or self._disk_settles()
                or self._process_settles()
                or self._batch_settles()
                or self._sink_settles()
            ):
                return
        raise AssertionError("the world does not come to rest")

    # -- lease -------------------------------------------------------------------------------------

    def _lease_settles(self) -> bool:
        if self.request is None or "lease" not in self.automatic:
            return False
        how, self.next_reply = self.next_reply, "arrives"
        self.reply(how if self.table.up else "request lost")
        return True

    def reply(self, how: str = "arrives") -> None:
        """Decide the fate of the request in flight.

        It 'arrives'; or the node learns nothing: 'request lost', 'reply lost' (it took effect), or
        'late' (it takes effect at ``land``).
        """
        request, self.request = self.request, None
        assert request is not None
        answer: Input = on.DatabaseUnreachable("no answer within 1 s")
        if how == "late" and not isinstance(request, do.ReadLease):
            self.late.append(request)
        elif how in ("arrives", "reply lost"):
            done = self._carry_out(request)
            answer = done if how == "arrives" else answer
        self._note_read(answer)
        if isinstance(answer, on.LeaseWritten):
            self.renewal_sent_at = self.request_sent_at
        self.feed(answer)

    def land(self) -> None:
        """Let a request whose outcome was unknown reach the row now."""
        self._carry_out(self.late.pop(0))

    def _carry_out(self, request: do.ReadLease | do.CreateLease | do.WriteLease) -> Input:
        match request:
            case do.ReadLease():
                return on.LeaseRead(self.table.row, self.table.identity)
            case do.CreateLease(row):
                written = self.table.create(self.now, row)
            case do.WriteLease(expected, wanted):
                written = self.table.compare_and_set(self.now, expected, wanted)
        return (
            on.LeaseDenied() if written is None else on.LeaseWritten(written, self.table.identity)
        )

    def _note_read(self, answer: Input) -> None:
        if not isinstance(answer, on.LeaseRead | on.LeaseWritten):
            return
        row = answer.row
        stamp = None if row is None else (row.epoch, row.version)
        if stamp is None or stamp != self.stamp:
            self.stamp, self.stamp_first_read_at = stamp, self.now
        self.read_max = max(self.read_max, stamp or (0, 0))

    def rewrite_row(self, **changes: Any) -> None:
        """Change the row as another writer: a supervisor, a peer or an operator."""
        row = self.table.row
        assert row is not None
        self.table.put(self.now, replace(row, version=row.version + 1, **changes))

    def set_row(self, row: LeaseRow | None) -> None:
        """Set the row to a value that no compare-and-set made: lost, or older than it was."""
        self.table.row, self.table.changed_at = row, self.now

    # -- events and disk ---------------------------------------------------------------------------

    def offer(self, stream: str, rows: int) -> None:
        if self.receiving and self.alive:
            self.feed(on.EventsOffered(Events(stream, rows, 0), b""))
            self.settle()

    def _disk_settles(self) -> bool:
        if "disk" not in self.automatic or self.disk.durable == len(self.disk.records):
            return False
        self.sync()
        return True

    def sync(self, records: int | None = None) -> None:
        """Fsync the next ``records`` of the journal, or all of them."""
        written = len(self.disk.records)
        self.disk.durable = min(written, self.disk.durable + (records or written))
        self.feed(on.RecordsDurable(self.disk.durable))


def picture(core: Any) -> dict[str, Any]:
    """Return the state of a core that follows from its journal and outbox alone."""
    deployment = core.deployment
    return {
        "last": core.journal.last,
        "recorded": deployment.versions.application,
        "versions": deployment.versions.of,
        "lineages": deployment.versions.lineages,
        "skips": deployment.skips.known,
        "marks": {
            name: (
                [marks.mark_at(n) for n in range(marks.kept_after.number, marks.last.number + 1)],
                marks.published,
                marks.admitted,
                marks.events_pending,
            )
            for name, marks in deployment.marks.items()
        },
    }


def _fields(plan: Any) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in type(plan).__slots__}
