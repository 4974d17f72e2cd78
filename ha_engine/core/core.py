"""``Core.step``: one input in, the actions that follow from it out.

The order of the methods is the order of a node's life: restore, lease, promotion, records, marks,
queries, stop. A transition has one home, named for it; the invariants are checked after every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core.deployment import Deployment
from ha_engine.core.invariants import check
from ha_engine.core.lease import HighWater, Lease, LeaseTiming
from ha_engine.core.process import QueryProcess
from ha_engine.core.role import check_transition
from ha_engine.types import (
    ORIGIN,
    Body,
    EpochStart,
    Holder,
    Member,
    Position,
    Record,
    Role,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is. ``new_group_id`` is used only if the group has no row yet (R6)."""

    node: str
    process: str
    journal_id: str
    group_id: str | None
    new_group_id: str
    advertise: str | None = None


class Core:
    """The decisions of one node. Not thread-safe; one driver feeds it."""

    def __init__(
        self,
        identity: Identity,
        timing: LeaseTiming,
        high_water: HighWater,
        deployment: Deployment,
    ) -> None:
        self.identity = identity
        holder = Holder(identity.node, identity.process)
        member = Member(identity.node, identity.journal_id)
        self.lease = Lease(holder, member, timing, high_water)
        self.deployment = deployment
        self.process = QueryProcess(identity.process, deployment.restarts)
        self.role, self.why = Role.STARTING, "the process has just started"
        self.epoch = 0
        self.group_id = identity.group_id
        # I5, I8: committed <= durable <= last, and none of them ever falls within a process.
        self.last: Position = ORIGIN
        self.durable = 0
        self.committed = 0
        self.epoch_record = math.inf
        self.receiving = False
        self.stopping = False
        # I2: from the moment a release is sent, this node counts as no holder.
        self.releasing = False
        self._now = -math.inf
        self._out: list[do.Action] = []

    # -- restore: what the disk says, before the first step ---------------------------------------

    def restore(self, record: Record) -> None:
        """Takes in one record of the journal that was there at start, in order."""
        self._take(record)
        self.lease.heard_of(record.position.epoch)
        self.durable = record.position.sequence
        self.committed = max(self.committed, record.committed)

    # -- the step ----------------------------------------------------------------------------------

    def step(self, now: float, event: on.Input) -> list[do.Action]:
        """Raises InvariantBroken when the node must not go on."""
        self._now, self._out = max(now, self._now), []
        high_water = self.lease.high_water
        if not self._is_about_a_gone_query(event):
            self._dispatch(event)
        self._keep_high_water(high_water)
        self._advance()
        check(self)
        return self._out

    def _is_about_a_gone_query(self, event: on.Input) -> bool:
        """A query process that outlived a change of the application still speaks of what it ran."""
        match event:
            case (
                on.MarkWanted(query)
                | on.BatchAdmitted(query)
                | on.QueryFailed(query)
                | on.QueryRefused(query)
                | on.SkipAsked(query)
                | on.RetryAsked(query)
            ):
                return query not in self.deployment.marks
            case _:
                return False

    def _dispatch(self, event: on.Input) -> None:
        match event:
            case on.EventsOffered():
                self._on_offered(event)
            case on.RecordsDurable():
                self.durable = max(self.durable, event.sequence)
            case on.MarkWanted():
                self.deployment.marks[event.query].wanted = event.after
            case on.BatchAdmitted():
                self._on_admitted(event)
            case on.SinkPublished():
                self._on_published(event)
            case on.Tick():
                self._on_tick()
            case on.LeaseRead() | on.LeaseWritten() | on.LeaseDenied() | on.DatabaseUnreachable():
                self._on_lease(event)
            case on.HigherEpochSeen():
                self._on_higher_epoch(event)
            case on.StopAsked():
                self._stop()
            case _:
                self._on_query_event(event)

    def _on_query_event(self, event: on.Input) -> None:
        match event:
            case on.QueryProcessAdopted():
                self.process.adopt(event.incarnation)
            case on.QueryProcessAttended():
                self._on_attended(event)
            case on.QueryProcessGone():
                self._on_process_gone(event)
            case on.QueryFailed():
                self.deployment.failed(self._now, event)
            case on.QueryRefused():
                self.deployment.lives[event.query].refused(event.reason)
            case on.SkipAsked():
                self._on_skip(event)
            case on.RetryAsked():
                self.deployment.retry(event.query)
            case _:
                raise TypeError(f"no step for {event!r}")

    def _advance(self) -> None:
        """What any step may have made possible."""
        self._commit()
        self.deployment.revive_skipped(self.committed)
        self._become_active_when_committed()
        self._suspend_or_resume()
        self._out += self.deployment.trims(self.committed)
        self._plan_marks()
        self._out += self.deployment.answers(self.committed)
        self._run_queries()
        self._leave()

    def may_act(self) -> bool:
        """I2: ack, publish and plan marks only while the lease carries it."""
        return self.authority_seconds(self._now) > 0

    def suspended(self) -> bool:
        """Past safe_until and not demoted: acts no more until a renewal succeeds (R15)."""
        return self.role is Role.ACTIVE and not self.may_act()

    def authority_seconds(self, now: float) -> float:
        """How long the publisher's next call may take; 0 when it must not start (R17)."""
        if self.role is not Role.ACTIVE or self.releasing:
            return 0.0
        return max(0.0, self.lease.authority_ends() - now)

    # -- lease -------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        if self.role is Role.STARTING:
            self._become(Role.JOINING, "the journal is read")
        if self.lease.due(self._now) and self.role is not Role.STOPPED:
            self._ask_lease()

    def _ask_lease(self) -> None:
        lease = self.lease
        lease.sent(self._now)
        if lease.mine and lease.read_once and not lease.regressed:
            assert lease.row is not None
            self._do(do.WriteLease(lease.row, lease.renewed(), "renew"))
        else:
            self._do(do.ReadLease())

    def _on_lease(
        self, event: on.LeaseRead | on.LeaseWritten | on.LeaseDenied | on.DatabaseUnreachable
    ) -> None:
        match event:
            case on.LeaseRead():
                self.lease.saw(self._now, event.row, event.identity)
                self._after_read()
            case on.LeaseWritten():
                self.lease.wrote(self._now, event.row)
                self._after_write()
            case on.LeaseDenied():
                self.lease.failed()
                self.lease.again_at_once(self._now)
            case on.DatabaseUnreachable():
                self.lease.failed()

    def _keep_high_water(self, before: HighWater) -> None:
        mark = self.lease.high_water
        if mark != before:
            self._do(do.KeepHighWater(mark.epoch, mark.version, mark.identity))

    def _after_read(self) -> None:
        row = self.lease.row
        if row is not None and self.group_id is not None and row.group_id != self.group_id:
            self._become_stopped(
                f"the lease row belongs to group {row.group_id}, this journal to {self.group_id}; "
                "point the node at its own database, or give it an empty data directory"
            )
        elif self.role in (Role.ACTIVE, Role.PROMOTING):
            self._check_still_holder()
        elif self.stopping or self.role is Role.STOPPED:
            return
        elif row is None:
            self._create_row()
        elif self.lease.mine and not self.lease.regressed:
            # An acquire of ours whose reply was lost (R1): only a write gives authority.
            self.lease.again_at_once(self._now)
        elif self.lease.may_acquire(self._now):
            self._acquire()
        else:
            self.why = self.lease.why_not(self._now)

    def _create_row(self) -> None:
        """R6: only a node that knows of no earlier epoch makes the group's first row."""
        if self.last != ORIGIN or self.lease.high_water.epoch > 0 or self.group_id is not None:
            self.why = (
                "the database has no lease row but this node's journal belongs to a group; the "
                "database lost it, or the url names another database"
            )
            return
        self.lease.sent(self._now)
        self._do(
            do.CreateLease(
                self.lease.first_row(self.identity.new_group_id, self.identity.advertise)
            )
        )

    def _acquire(self) -> None:
        row = self.lease.row
        assert row is not None
        self.lease.sent(self._now)
        why = "released" if row.holder is None else "not renewed for a ttl"
        self._do(do.WriteLease(row, self.lease.acquired(self.identity.advertise), why))

    def _after_write(self) -> None:
        row = self.lease.row
        assert row is not None
        # R15: a renewal that was in flight when this epoch ended does not bring it back.
        new = self.lease.mine and not self.lease.regressed and row.epoch > self.epoch
        if not new or self.stopping:
            return
        if self.role in (Role.ACTIVE, Role.PROMOTING):
            self._become_demoting("the database had lost the lease row; it is written again")
        self._become_promoting(row.epoch, row.group_id)

    def _check_still_holder(self) -> None:
        """Proof of another holder or epoch demotes; a lost or older row does not (R5, R15)."""
        row = self.lease.row
        if self.lease.may_rewrite() and not self.stopping:
            self._rewrite()
        elif row is None or self.lease.regressed:
            self.why = (
                "the database lost writes to the lease row, and another node may have read it; "
                "stop all nodes, compare their epochs, and write the row of the highest by hand"
            )
        elif row.epoch > self.epoch or not self.lease.mine:
            self._become_demoting(
                f"epoch {row.epoch} is held by {row.holder.node if row.holder else 'nobody'}"
            )
        else:
            self.lease.again_at_once(self._now)

    def _rewrite(self) -> None:
        """R5, R6: what the database lost is put back one epoch higher, and that epoch promoted."""
        before, wanted = self.lease.row, self.lease.rewritten()
        self.lease.sent(self._now)
        if before is None:
            self._do(do.CreateLease(wanted))
        else:
            self._do(do.WriteLease(before, wanted, "the database had lost writes"))

    def _on_higher_epoch(self, event: on.HigherEpochSeen) -> None:
        """R14: kept on disk, so that no row below it is ever acquired from or renewed (R5)."""
        self.lease.heard_of(event.epoch)
        if event.epoch > self.epoch and self.role in (Role.ACTIVE, Role.PROMOTING):
            self._become_demoting(f"{event.where} carries epoch {event.epoch}")

    # -- transitions -------------------------------------------------------------------------------

    def _become(self, role: Role, why: str) -> None:
        check_transition(self.role, role)
        self.role, self.why = role, why
        self._do(do.ChangeRole(role, self.epoch, why))

    def _become_promoting(self, epoch: int, group_id: str) -> None:
        """The lease is ours; the epoch record commits the whole journal first (R3)."""
        self.epoch = epoch
        self._become(Role.PROMOTING, f"acquired epoch {epoch}")
        if self.group_id is None:
            self.group_id = group_id
            self._do(do.BindGroup(group_id))
        self._append(EpochStart(self.identity.node, self.identity.process))
        self.epoch_record = self.last.sequence

    def _become_active_when_committed(self) -> None:
        if self.role is not Role.PROMOTING or self.committed < self.epoch_record or self.stopping:
            return
        self._become(Role.ACTIVE, f"the journal is committed through {self.last}")
        change = self.deployment.change(self.committed)
        if change is not None:
            self._append(change)
        self.receiving = True
        self._do(do.OpenReceivers())
        self._do(do.StartPublishing(self.epoch))

    def _suspend_or_resume(self) -> None:
        if self.role is not Role.ACTIVE or self.stopping or self.receiving == self.may_act():
            return
        if self.receiving:
            self._suspend()
        else:
            self._resume()

    def _suspend(self) -> None:
        """R15: past safe_until. Events that nobody may ack are refused, not kept waiting."""
        self.receiving = False
        self.why = "the lease was not renewed in time; it goes on with the next renewal"
        self._do(do.CloseReceivers(self.why, None))

    def _resume(self) -> None:
        """R15: the same process, under the same epoch, after a renewal."""
        self.receiving, self.why = True, "the lease is renewed"
        self._do(do.OpenReceivers())

    def _become_demoting(self, why: str) -> None:
        self._become(Role.DEMOTING, why)
        self._close(why)
        self._become(Role.JOINING, why)

    def _become_stopped(self, why: str) -> None:
        if self.role is Role.ACTIVE:
            self._become(Role.DEMOTING, why)
            if not self.stopping:
                self._close(why)
        self._become(Role.STOPPED, why)
        self._do(do.Exit(why))

    def _close(self, why: str) -> None:
        self.receiving = False
        row = self.lease.row
        held_by_another = row is not None and row.holder is not None and not self.lease.mine
        self._do(do.CloseReceivers(why, row.advertise if row and held_by_another else None))
        self._do(do.StopPublishing())

    def _stop(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        self._close("the node is stopping")
        if self.process.incarnation is not None:
            self._do(do.StopQueryProcess(self.process.incarnation, "the node is stopping"))

    def _leave(self) -> None:
        """Commits what was taken, then gives the lease up so that nobody need wait for a ttl.

        One try: where the database does not answer, the others wait instead.
        """
        waits = self.lease.sent_at is not None or self.durable < self.last.sequence
        if not self.stopping or self.role is Role.STOPPED or waits:
            return
        if self.lease.row is None or not self.lease.mine or self.lease.regressed or self.releasing:
            self._become_stopped("the node was asked to stop")
            return
        self.releasing = True
        self.lease.sent(self._now)
        self._do(do.WriteLease(self.lease.row, self.lease.released(), "stopped"))

    # -- records -----------------------------------------------------------------------------------

    def _append(self, body: Body, payload: bytes = b"") -> None:
        position = Position(self.epoch, self.last.sequence + 1)
        record = Record(position, self.committed, body, payload)
        self._take(record)
        self._do(do.AppendRecords((record,)))

    def _take(self, record: Record) -> None:
        """The one place where a record changes what the core knows, at start and at run time."""
        self.last = record.position
        self.deployment.take(record)

    def _on_offered(self, event: on.EventsOffered) -> None:
        if not self.receiving:
            raise ValueError("events were offered while receivers are closed")
        self._append(event.events, event.payload)

    def _commit(self) -> None:
        """In a group of one, durable here is durable on every in-sync member (I3).

        Records of earlier epochs are committed by this epoch's own first record (R3).
        """
        promoted = self.role is Role.PROMOTING and self.lease.mine and not self.releasing
        signed = promoted and self.durable >= self.epoch_record
        if self.durable > self.committed and (signed or self.may_act()):
            self.committed = self.durable
            self._do(do.Commit(self.committed))

    # -- queries -----------------------------------------------------------------------------------

    def _plan_marks(self) -> None:
        if self.may_act() and not self.stopping:
            for mark in list(self.deployment.next_marks(self._now, self.committed)):
                self._append(mark)

    def _run_queries(self) -> None:
        if self.stopping or self.role in (Role.STARTING, Role.STOPPED):
            return
        incarnation = self.process.start(self._now)
        if incarnation is not None:
            self._do(do.StartQueryProcess(incarnation))
        if self.process.attended:
            self._out += self.deployment.runs(self._now, self.identity.journal_id)

    def _on_admitted(self, event: on.BatchAdmitted) -> None:
        self.deployment.admitted(event)
        self.process.proved_itself()

    def _on_published(self, event: on.SinkPublished) -> None:
        holds = self.role is Role.ACTIVE and not self.releasing
        record = self.deployment.published(event) if holds else None
        if record is not None:
            self._append(record)

    def _on_attended(self, event: on.QueryProcessAttended) -> None:
        if self.process.attend(event.incarnation):
            self.deployment.attended()

    def _on_process_gone(self, event: on.QueryProcessGone) -> None:
        if self.process.gone(self._now, event.incarnation, event.reason):
            self.deployment.process_died(self._now, event.reason)

    def _on_skip(self, event: on.SkipAsked) -> None:
        record = self.deployment.skip(event) if self.may_act() else None
        if record is not None:
            self._append(record)

    def _do(self, action: do.Action) -> None:
        self._out.append(action)
