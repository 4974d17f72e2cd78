"""A failover that an operator forces, when no in-sync member is left to take over (RULES.md#r26,
RULES.md#i4).

A forced failover gives up the records that in-sync members have and this node's journal lacks. The
core refuses a forced failover while there is a sign that an in-sync member is alive. Only an
operator can confirm that a silent node is off.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core.follower import Follower
from ha_engine.core.journal_state import JournalState
from ha_engine.core.lease_client import HOW_TO_CHOOSE, LeaseClient
from ha_engine.types import Position


@dataclass(frozen=True, slots=True)
class Loss:
    """The records that a forced failover to this node would give up, as far as this node knows.

    ``last`` is the end of this node's journal. ``committed`` is the highest sequence that this node
    knows to be committed on any node. ``in_sync`` names the other nodes that the lease row of
    ``epoch`` lists as in sync. Each in-sync node has every committed record. ``list_is_lost`` says
    whether the database has lost that list.
    """

    last: Position
    committed: int
    epoch: int
    in_sync: tuple[str, ...]
    list_is_lost: bool

    @property
    def records_min(self) -> int:
        return max(0, self.committed - self.last.sequence)

    def __str__(self) -> str:
        known = f"a failover would give up at least {self.records_min} later committed records"
        lost = known if self.records_min else "a failover would give up all later committed records"
        return (
            f"the journal of this node ends at {self.last}, and {self._who_has_all}; {lost}, "
            "acked events among them; the sinks keep the batches that these events yielded"
        )

    @property
    def _who_has_all(self) -> str:
        if not self.in_sync and self.list_is_lost:
            return "the database has lost the in-sync list"
        if not self.in_sync:
            return f"the lease row of epoch {self.epoch} lists no other node as in sync"
        return f"all records committed in epoch {self.epoch} are on {' and '.join(self.in_sync)}"


class ForcedFailover:
    """Decides on forced failovers to this node. ``peers`` names the other nodes in the config."""

    def __init__(
        self,
        lease_client: LeaseClient,
        journal: JournalState,
        follower: Follower,
        peers: tuple[str, ...],
    ) -> None:
        self._lease_client, self._lease = lease_client, lease_client.lease
        self._journal, self._follower, self._peers = journal, follower, peers
        self._asked: on.FailoverForced | None = None
        self._epoch = 0

    @property
    def is_asked(self) -> bool:
        """Whether a request of an operator waits for the read of the row."""
        return self._asked is not None

    def may_lose(self) -> Loss:
        row = self._lease.row
        in_sync = row.in_sync if row is not None else ()
        others = tuple(m.node for m in in_sync if m != self._lease.member)
        known = row.committed.sequence if row is not None else 0
        is_lost = row is None or self._lease.regressed
        committed = max(self._journal.committed, self._follower.highest_announced, known)
        return Loss(self._journal.last, committed, row.epoch if row else 0, others, is_lost)

    def why_not(self, now: float, connected: Set[str], confirmed_fenced: Set[str]) -> str | None:
        """The reason why an operator must not force a failover to this node now, or None."""
        return (
            self._why_not_by_row()
            or self._who_lives(now, connected)
            or self._who_may_live(connected, confirmed_fenced)
        )

    def _why_not_by_row(self) -> str | None:
        row = self._lease.row
        if row is None:
            unread = "this node has not read whether the group has a lease row"
            return None if self._lease.row_is_current else unread
        if self._lease_client.is_foreign(row):
            return "the lease row belongs to another group"
        if row.paused:
            return "failover is paused; run: ha-engine resume"
        last, announced = self._journal.last, self._follower.announced_in(row.epoch)
        complete = not self._lease.lacks_committed(last) and announced <= last.sequence
        if self._lease.member in row.in_sync and complete and not self._lease.regressed:
            return "this node is in sync, so it takes over by itself when the active is lost"
        return None

    def _who_lives(self, now: float, connected: Set[str]) -> str | None:
        lease, ttl = self._lease, self._lease.timing.ttl
        still = ttl - (now - lease.unchanged_since)
        # Promises need no check of their own: a promise answers a heartbeat and binds for one ttl
        # from then on (RULES.md#r16).
        if self._follower.had_message_within(now, ttl):
            return f"an active sent a message in the last {ttl:g} s"
        if lease.row is not None and lease.row.holder is not None and still > 0:
            return (
                f"{lease.row.holder.node} may be active: wait until its lease has not been renewed "
                f"for another {still:.1f} s"
            )
        lost = lease.row is None or lease.regressed
        answering = sorted((set(self._peers) if lost else self._listed) & connected)
        if answering and lease.lacks_committed(self._journal.last):
            return (
                f"{answering[0]} answers; the disk of this node went back in time, and that of "
                f"{answering[0]} may have too; stop all other nodes and {HOW_TO_CHOOSE}"
            )
        if answering and lost:
            return (
                f"{answering[0]} answers; the database lost writes, so no node knows which journal "
                f"has more records; stop all other nodes and {HOW_TO_CHOOSE}"
            )
        if answering:
            return (
                f"{answering[0]} answers and has the records that this node lacks; let it take over"
            )
        return None

    def _who_may_live(self, connected: Set[str], confirmed_fenced: Set[str]) -> str | None:
        wrong = sorted(confirmed_fenced & connected)
        if wrong:
            return f"{wrong[0]} answers, but --confirm-fenced says that it is off"
        silent = sorted((self._listed | set(self._peers)) - connected - confirmed_fenced)
        if silent:
            names = " and ".join(silent)
            options = " ".join(f"--confirm-fenced {name}" for name in silent)
            return f"{names} may be active unseen; make sure that it is off, then add {options}"
        return None

    @property
    def _listed(self) -> set[str]:
        row = self._lease.row
        members = {member.node for member in row.in_sync} if row is not None else set()
        holder = {row.holder.node} if row is not None and row.holder is not None else set()
        return (members | holder) - {self._lease.me.node}

    # -- doing it ----------------------------------------------------------------------------------

    def ask(self, now: float, event: on.FailoverForced) -> None:
        """Note the operator's request, and read the lease row at once.

        After the read the core decides on the request, since the row is current and the operator's
        confirmation is recent. If the read fails, the core drops the request.
        """
        self._asked = event
        self._lease.ask_at_once(now)

    def forget(self) -> None:
        self._asked = None

    def after_read(self, now: float, connected: Set[str]) -> do.Action | None:
        """The write that acquires the lease by force over the row that was just read, or None.

        Each request of an operator leads to one attempt at most.
        """
        asked, self._asked = self._asked, None
        if asked is None or self.why_not(now, connected, frozenset(asked.confirmed_fenced)):
            self._force_again()
            return None
        action, self._epoch = self._lease_client.force(now, asked.by)
        self._lease.note_forced(self._epoch)
        return action

    def _force_again(self) -> None:
        """Treat the next acquisition as forced, if an earlier forced acquisition left no epoch
        record.

        1. A process acquires an epoch by force. 2. The process ends before its journal has the
        epoch record, and so may the next ones. 3. Another process acquires a later epoch. The epoch
        record of that process must carry ``forced``, since the operator has given up records.

        A journal with a record of the forced epoch or of a later one follows a holder that knows
        what was given up.
        """
        row, tried = self._lease.row, self._lease.high_water.forced
        if row is None or row.epoch < tried or self._journal.last.epoch >= tried:
            return
        if not self._lease.is_holder and row.in_sync == (self._lease.member,):
            self._epoch = self._lease.acquired(None).epoch

    def acquired(self, epoch: int) -> bool:
        """Whether this node acquired ``epoch`` by force.

        A request that arrived while the lease write was in flight is forgotten. Otherwise the node
        would act on it after this epoch, when the operator's confirmation is out of date.
        """
        self.forget()
        if epoch == self._epoch:
            self._lease.note_forced(epoch)
        return epoch == self._epoch
