"""Feed the core with inputs and perform its actions; nothing else calls ``Core.step``.

The driver makes no decisions and retries no action. The driver's only timer fires at the time that
``Core.wake_at`` returns. For each kind of action, the driver has one case, which calls a port.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import structlog

from ha_engine.core import Core
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.errors import (
    ApplicationReplaced,
    EngineError,
    InvariantBroken,
    JournalReplaced,
    NotActive,
)
from ha_engine.node.alarm import Alarm
from ha_engine.node.ports import Outages, Ports
from ha_engine.node.reachability import Reachability
from ha_engine.node.snapshot_actions import SnapshotActions
from ha_engine.stats.counters import NodeCounters
from ha_engine.stats.lag import Arrivals
from ha_engine.system.stuck_watch import STUCK_SECONDS, StuckWatch
from ha_engine.types import Deployed, Events, Position, Record, Role

log = structlog.get_logger(__name__)

LEASE_THREADS = 3
"""A call that a frozen database does not answer keeps its thread for up to two timeouts, so the
next calls need others."""
SMALL_FILE_STUCK_SECONDS = 4 * STUCK_SECONDS
"""Longer than the limit for the journal, since an fsync of a small file may wait for the gigabytes
of a snapshot that the node downloads."""


class Driver:
    """A node process has one driver, on its event loop."""

    def __init__(
        self,
        core: Core,
        clock: Callable[[], float],
        db_timeout: float,
        counters: NodeCounters | None = None,
        on_stuck: Callable[[], None] = lambda: None,
        stuck_after: float = SMALL_FILE_STUCK_SECONDS,
    ) -> None:
        self.core, self._clock, self._db_timeout = core, clock, db_timeout
        self._ports: Ports | None = None
        self.counters, self._role = counters or NodeCounters(), core.role
        self.arrivals = Arrivals()
        self._inputs: deque[on.Input] = deque()
        self._stepping = False
        # The number of inputs that the core has taken.
        self.steps = 0
        self._alarm = Alarm(clock, core.wake_at, self._tick)
        # A heap by sequence, because a retried request may wait for an older record than earlier
        # requests.
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._turns = count()
        self._threads = ThreadPoolExecutor(LEASE_THREADS, thread_name_prefix="lease")
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="storage")
        self._disk_watch = StuckWatch(on_stuck, stuck_after)
        self._tasks: set[asyncio.Task[None]] = set()
        self._runs: dict[str, do.RunQuery] = {}
        self._reachability = Reachability(clock)
        self._kept: asyncio.Future[None] | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connect(self, ports: Ports) -> None:
        self._ports = ports

    def handle(self, event: on.Input) -> None:
        """Give the input ``event`` to the core, and perform the core's actions. An input that
        arrives during a step of the core waits for the end of the step.

        A driver that has ended gives no input to the core. If an ended driver still stepped the
        core, the node would renew its lease without doing the holder's work.
        """
        self._inputs.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inputs and not self.ended.done():
                event = self._inputs.popleft()
                self.steps += 1
                for action in self.core.step(self._clock(), event):
                    self._count(action, event)
                    self._perform(action)
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self._stepping = False
        self._alarm.look_soon()

    def start(self) -> None:
        """From now on, give the core a Tick at each time that ``Core.wake_at`` returns."""
        self._alarm.start()

    def _tick(self) -> None:
        self.handle(on.Tick())

    def _count(self, action: do.Action, event: on.Input) -> None:
        match action:
            case do.ChangeRole(role):
                stopping = self.core.stopping
                self.counters.role_changed(self._role, role, event, stopping=stopping)
                self._role = role
            case do.ReportDifference():
                self.counters.digest_mismatches += 1
            case do.ReportDiskWentBack():
                self.counters.peer_rollbacks += 1

    def fail(self, error: BaseException) -> None:
        """End the node process with ``error`` as the reason, because a part of the node failed."""
        self._alarm.stop()
        if not self.ended.done():
            self.ended.set_exception(error)
            self._refuse_commits(str(error))

    def close(self) -> None:
        """Finish the pending changes of files, without waiting for a database call that has no
        answer."""
        self._alarm.stop()
        self._disk.shutdown(wait=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def end(self) -> None:
        """End the node process without an error, because the core has finished its work."""
        self._alarm.stop()
        if not self.ended.done():
            self.ended.set_result(None)

    # -- the gate's port to the journal ------------------------------------------------------------

    def offer(self, events: Events, payload: bytes) -> Position:
        """Give validated events to the core, and return the position of their record. Raises
        NotActive."""
        if not self.core.receiving or self.ended.done():
            raise NotActive(self.core.reason)
        assert not self._stepping, "offer() was called while the core performed a step"
        # The core appends the events at ``position``, because it takes no other input before them.
        position = self.core.journal.next_position(self.core.epoch)
        self.handle(on.EventsOffered(events, payload))
        return position

    async def committed(self, sequence: int) -> None:
        """Wait until the record ``sequence`` is committed. Raises NotActive if this node demotes or
        ends."""
        if sequence <= self.core.journal.committed:
            return
        if not self.core.holds_epoch or self.ended.done():
            raise NotActive(self.core.reason)
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (sequence, next(self._turns), future))
        await future

    @property
    def acks_waiting(self) -> int:
        """The number of calls that wait for the commit of a record with events."""
        return len(self._waiters)

    def durable(self, sequence: int) -> None:
        self.handle(on.RecordsDurable(sequence))

    def _answer_commits(self, sequence: int) -> None:
        while self._waiters and self._waiters[0][0] <= sequence:
            future = heapq.heappop(self._waiters)[-1]
            if not future.done():
                future.set_result(None)

    def _refuse_commits(self, reason: str) -> None:
        while self._waiters:
            future = heapq.heappop(self._waiters)[-1]
            if not future.done():
                future.set_exception(NotActive(reason))

    # -- actions -----------------------------------------------------------------------------------

    def _perform(self, action: do.Action) -> None:
        ports = self._ports
        assert ports is not None
        match action:
            case do.AppendRecords(records):
                self._append(ports, records)
            case do.Commit(sequence):
                self._answer_commits(sequence)
            case do.AnswerMark(mark, lineage):
                ports.process_link.answer_mark(mark, lineage)
            case do.TakeSnapshot() | do.ShowSnapshot() | do.FindRevisions() | do.TrimJournal():
                self._spawn(self._snapshot_actions(ports).perform(action), type(action).__name__)
            case do.TrimOutbox(query, through):
                self._on_disk(ports.storage.trim_outbox, query, through)
            case do.ReadLease() | do.CreateLease() | do.WriteLease():
                self._spawn(self._call_lease(action), "lease call")
            case do.KeepHighWater(high_water):
                self._kept = self._on_disk(ports.storage.keep, high_water)
            case do.BindGroup(group_id):
                bound = ports.storage.bind_group(group_id)
                self._spawn(self._introduce(ports, bound), "bind the journal to its group")
            case do.Send(peer, message):
                ports.peers.send(peer, message)
            case do.StreamRecords(peer, epoch, after):
                ports.peers.stream(peer, epoch, after)
            case do.StopStreams():
                ports.peers.stop_streams()
            case do.ChangeRole(role, epoch, reason):
                log.info("role changed", role=role.value, epoch=epoch, reason=reason)
                if role is Role.DEMOTING:
                    self._refuse_commits(reason)
            case do.OpenReceivers():
                ports.receivers.open()
            case do.CloseReceivers(reason, active):
                ports.receivers.close(reason, active)
            case do.StartPublishing(epoch):
                ports.publishing.start(epoch)
            case do.NoteOutage(epoch, seconds):
                self.counters.outage_seconds = seconds
                self._spawn(self._note_outage(ports.outages, epoch, seconds), "note the outage")
            case do.StopPublishing():
                self._spawn(ports.publishing.stop(), "stop publishing")
            case do.StartQueryProcess(incarnation):
                ports.supervisor.start_process(incarnation)
            case do.StopQueryProcess(incarnation, reason):
                ports.supervisor.stop_process(incarnation, reason)
            case do.RunQuery():
                self._runs[action.query] = action
                if self._lacks_state(ports, action):
                    self._spawn(self._resume_query(ports, action), "resume a query")
                else:
                    ports.process_link.run_query(action)
            case do.HaltQuery(query):
                ports.process_link.halt_query(query)
            case do.Restore():
                self._spawn(self._snapshot_actions(ports).perform(action), "restore a snapshot")
            case do.TruncateJournal():
                self._spawn(self._truncate_journal(ports, action), "truncate the journal")
            case do.ReportDifference(query, number):
                log.error("a batch differs from the active's", query=query, batch=number)
            case do.ReportDiskWentBack(peer, acked, shared_end):
                what = {"peer": peer, "acked": acked, "shared_end": shared_end}
                log.error("the disk of a peer went back in time", **what)
            case do.ChangeApplication(deployed):
                self._spawn(self._change_application(ports, deployed), "change the application")
            case do.Exit(reason):
                ports.exit(reason)
            case _:
                raise TypeError(f"no port for {action!r}")

    def _append(self, ports: Ports, records: tuple[Record, ...]) -> None:
        """Append records. If another node is the active, also replay the records in the gate
        (RULES.md#r27).

        The gate already knows the records that its own node made.
        """
        ports.appender.append(records)
        ports.peers.appended(records)
        self.arrivals.saw(self._clock(), records)
        if not self.core.holds_epoch:
            for record in records:
                ports.receivers.replay(record)

    async def _introduce(self, ports: Ports, bound: Awaitable[None]) -> None:
        await bound
        ports.peers.introduce()

    async def _truncate_journal(self, ports: Ports, action: do.TruncateJournal) -> None:
        await ports.storage.truncate_journal(action.after.sequence, set_aside=action.set_aside)
        raise JournalReplaced(
            f"the journal was truncated after {action.after}, since {action.reason}; "
            "the node process restarts"
        )

    async def _change_application(self, ports: Ports, deployed: Deployed | None) -> None:
        await ports.storage.keep_application(deployed)
        which = "the application of its file"
        if deployed is not None:
            which = f"deployment {deployed.number}, application {deployed.name}"
        raise ApplicationReplaced(f"the node process restarts with {which}")

    async def _resume_query(self, ports: Ports, run: do.RunQuery) -> None:
        journal = self.core.journal
        durable = replace(journal.history, ends=journal.position_at(journal.durable))
        has_state = await self._snapshot_actions(ports).bring_state(run, durable)
        if has_state and self._may_run(run):
            ports.process_link.run_query(run)

    def _lacks_state(self, ports: Ports, run: do.RunQuery) -> bool:
        """Whether the state may have to come from elsewhere. No snapshot has that of a shadow, and
        a promoted query continues the checkpoint of its shadow if that is here."""
        if run.shadow_of is not None:
            return False
        if run.adopts is not None and ports.storage.has_checkpoint(run.adopts[0]):
            return False
        return run.must_resume or run.takeover is not None

    def _may_run(self, run: do.RunQuery) -> bool:
        """Whether the core still wants this run of the query.

        A state may take minutes to arrive. If the core has asked to run the query again meanwhile,
        the state for that run replaces the checkpoint, so no earlier run may write to it. If only
        the active runs the query, this node must also be the active of the same epoch still.
        """
        takeover, core = run.takeover, self.core
        holds = takeover is None or (core.holds_epoch and core.epoch == takeover.epoch)
        return holds and self._runs[run.query] is run

    def _snapshot_actions(self, ports: Ports) -> SnapshotActions:
        return SnapshotActions(ports.snapshots, self.handle, ports.publishing.admitted)

    async def _note_outage(self, outages: Outages, epoch: int, seconds: float) -> None:
        """Write the outage into the lease's history. Only people read the history, so the driver
        does not retry a failed write."""
        try:
            await asyncio.to_thread(outages.note_outage, epoch, seconds)
        except EngineError as error:
            log.warning("outage not written to the history", seconds=seconds, reason=str(error))

    # -- lease -------------------------------------------------------------------------------------

    async def _call_lease(self, action: do.Action) -> None:
        """Perform one call on the lease row. The driver ignores a reply after the deadline. The
        session of the lease store ends such a call, which frees its thread."""
        if self._kept is not None and _begins_an_epoch(action):
            await self._kept  # RULES.md#r16: the disk has what is tried before it can take effect
        loop, began = asyncio.get_running_loop(), time.monotonic()
        try:
            call = loop.run_in_executor(self._threads, self._ask, action)
            outcome = await asyncio.wait_for(call, self._db_timeout)
        except TimeoutError:
            outcome = on.DatabaseUnreachable(f"no answer within {self._db_timeout:g} s")
        except InvariantBroken:
            raise
        except EngineError as error:
            outcome = on.DatabaseUnreachable(str(error))
        self.counters.database_asked(time.monotonic() - began)
        self._note_database(outcome)
        self.handle(outcome)

    def _note_database(self, outcome: on.Input) -> None:
        match outcome:
            case on.DatabaseUnreachable(reason):
                self.counters.database_failures += 1
                self._reachability.failed(reason)
            case _:
                self._reachability.answered()

    def _ask(self, action: do.Action) -> on.Input:
        assert self._ports is not None
        store = self._ports.lease_store
        match action:
            case do.ReadLease():
                return on.LeaseRead(store.read(), store.identity())
            case do.CreateLease(row, reason):
                written = store.create(row, reason=reason or None)
            case do.WriteLease(expected, wanted, reason):
                written = store.compare_and_set(expected, wanted, reason=reason)
            case _:
                raise TypeError(f"not a lease call: {action!r}")
        if written is None:
            return on.LeaseDenied()
        # If the row names a database, the SQL statement writes the row into that database only
        # (RULES.md#r5).
        return on.LeaseWritten(written, written.identity or store.identity())

    def _on_disk(self, change: Callable[..., None], *arguments: Any) -> asyncio.Future[None]:
        """Run ``change`` in a thread. Changes run one at a time, in the order of the core's
        actions."""
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._disk, change, *arguments)
        self._disk_watch.begin()
        done.add_done_callback(lambda _: self._disk_watch.end())
        self._spawn(done, "small file work")
        return done

    @property
    def disk_is_late(self) -> bool:
        """Whether a change of a small file has not returned for some seconds."""
        return self._disk_watch.is_late

    def _spawn(self, work: Awaitable[None], name: str) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:
                self.fail(error)

        task = asyncio.get_running_loop().create_task(run(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _begins_an_epoch(action: do.Action) -> bool:
    """Whether the lease call ``action`` would begin an epoch.

    Only a call that begins an epoch waits for the disk. If renewals waited too, a slow disk would
    cost the holder its lease.
    """
    match action:
        case do.CreateLease():
            return True
        case do.WriteLease(expected, wanted):
            return wanted.epoch > expected.epoch
        case _:
            return False
