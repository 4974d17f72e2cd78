"""The follower's side of replication: how a member handles the messages of the holder of the lease.

A follower keeps its journal a prefix of the holder's journal. A follower reports where its own
journal ends, appends the holder's records, and acks the durable ones. A follower truncates records
that the holder does not have. If the holder lacks committed records of a follower, the follower
stops, unless an operator gave them up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.journal_state import JournalState
from ha_engine.core.lease_client import LeaseClient
from ha_engine.core.query_control import QueryControl
from ha_engine.core.retention import Retention
from ha_engine.core.verdicts import Outcome, Stop, Wait
from ha_engine.types import ORIGIN, EpochStart, History, Position, Record

RESTORE_AGAIN_SECONDS = 5.0
"""The pause between a failed restore and the next attempt. The holder needs about as long to take a
snapshot."""


class Follower:
    """A follower of the holder of ``epoch``. While this node follows no holder, ``epoch`` is 0."""

    def __init__(
        self,
        lease_client: LeaseClient,
        journal: JournalState,
        query_control: QueryControl,
        retention: Retention,
    ) -> None:
        self._lease_client, self._lease = lease_client, lease_client.lease
        self._journal, self._query_control, self.retention = journal, query_control, retention
        self.epoch = 0
        self.holder: str | None = None
        # The epoch of the newest message from a holder, and the moment at which that message
        # arrived.
        self._last_message: tuple[int, float] | None = None
        # Whether the journal is being truncated or restored. Meanwhile the node ignores holders and
        # acquires nothing, until its process ends or the restore fails.
        self.replacing_journal = False
        # RULES.md#r26: whether this node gives up committed records or replaces its journal by a
        # snapshot. No query may run on a state that includes records to give up.
        self.giving_up = False
        # RULES.md#r30: whether the disk has space for events. The input HeadroomChanged sets this
        # field.
        self.headroom = True
        # RULES.md#r9: whether this node stops. Each ack then asks the holder to remove it.
        self.leaves = False
        self._restore_again_at = -math.inf
        self._not_restored: str | None = None
        # The highest commit position that the present holder has reported (RULES.md#r12), and the
        # highest that any holder has reported.
        self._announced = self.highest_announced = 0
        # RULES.md#r8: the newest epoch whose holder has reported a commit position, and the highest
        # position that it reported, whether this node followed it or not.
        self._announced_in = 0, 0

    def end(self) -> None:
        self.epoch, self.holder, self.giving_up = 0, None, False
        self._not_restored = None
        self._query_control.drop_snapshot_request()

    def announced_in(self, epoch: int) -> int:
        """The highest commit position that the holder of ``epoch`` has reported to this node."""
        of, committed = self._announced_in
        return committed if of == epoch else 0

    def silent_since(self, epoch: int) -> float | None:
        """The moment at which the last message from the holder of ``epoch`` arrived.

        The result is None if that holder sent no message, or if a message of another epoch came
        later.
        """
        if self._last_message is None or self._last_message[0] != epoch:
            return None
        return self._last_message[1]

    def had_message_within(self, now: float, seconds: float) -> bool:
        """Whether a message from a holder arrived in the last ``seconds``."""
        return self._last_message is not None and now - self._last_message[1] < seconds

    def on_peer_lost(self, now: float, peer: str) -> None:
        if self.holder == peer:
            self.end()
            self._lease.ask_at_once(now)

    # -- messages ----------------------------------------------------------------------------------

    def handle(self, now: float, peer: str, message: say.Message) -> Iterator[Outcome]:
        """Handle a message from a holder.

        The caller has checked that no higher epoch is known (RULES.md#i14).
        """
        self.holder, self._last_message = peer, (message.epoch, now)
        match message:
            case say.Probe():
                yield self._reply_to_probe(peer, message.epoch)
            case say.Follow():
                yield from self._on_follow(now, peer, message)
            case say.Records():
                yield from self._on_records(message)
            case say.Committed(epoch, committed):
                self._note_committed(epoch, committed)
            case say.Heartbeat():
                yield from self._on_heartbeat(now, peer, message)
            case say.TakeSnapshot(epoch, place) if epoch == self.epoch:
                self._query_control.request_snapshot(epoch, place)
            case say.Released():
                self._lease.ask_at_once(now)
            case say.BatchDigest(epoch, query, number, digest) if epoch == self.epoch:
                if not self._query_control.digests.note_theirs(query, number, digest):
                    yield do.ReportDifference(query, number)

    def _reply_to_probe(self, peer: str, epoch: int) -> do.Action:
        journal, journal_id = self._journal, self._lease.member.journal_id
        reply = say.ProbeReply(epoch, journal_id, journal.last, journal.committed, journal.epochs)
        return do.Send(peer, reply)

    def _on_follow(self, now: float, peer: str, message: say.Follow) -> Iterator[Outcome]:
        if message.journal_id != self._lease.member.journal_id:
            return
        if self.epoch != message.epoch or message.by_snapshot:
            if message.shared_end != self._journal.last or message.by_snapshot:
                # A Follow that answers an older ProbeReply says nothing about later records
                # (RULES.md#i14).
                answers_the_newest = message.replied_end == self._journal.last
                if answers_the_newest:
                    yield from self._make_prefix(now, message, peer)
                return
            # RULES.md#i8: from now on, this node's journal is a prefix of this holder's journal
            # only. The follower restarts from its own commit position. An operator may have given
            # up records that an earlier holder reported as committed (RULES.md#r26).
            self.epoch, self._announced = message.epoch, self._journal.committed
            self._query_control.drop_snapshot_request()
            if self._lease.row is not None:
                yield from self._lease_client.bind(self._lease.row.group_id)
            self._lease.ask_at_once(now)
        # An earlier holder may have required that this node give up records. The node may still be
        # waiting for its query process to end. The present holder continues this journal as it is,
        # so the node gives up no records, and its queries may run again.
        self.giving_up, self._not_restored = False, None
        yield self._ack(peer)

    def explain_wait(self) -> Iterator[Outcome]:
        """Report a failed restore, so that the status shows this reason and not the reason from the
        lease row."""
        if self._not_restored is not None:
            yield Wait(self._not_restored)

    def bind(self) -> Iterator[do.Action]:
        """Bind this journal to the group of the lease row, if this node follows the holder in the
        row (RULES.md#r6)."""
        row = self._lease.row
        if row is not None and self.epoch == row.epoch > 0:
            yield from self._lease_client.bind(row.group_id)

    def _make_prefix(self, now: float, message: say.Follow, holder: str) -> Iterator[Outcome]:
        """Make this journal a prefix of the holder's journal: truncate it, or restore a snapshot
        (RULES.md#i8, RULES.md#r8).

        Before a truncation or a restore, the node must have read a lease row that does not list
        this node as in sync. A node never removes committed records unless an operator gave them up
        (RULES.md#r26).
        """
        lease, row, shared_end = self._lease, self._lease.row, message.shared_end
        out = row is not None and row.epoch == lease.high_water.epoch
        if not out or not lease.row_is_current or lease.member in (row.in_sync if row else ()):
            lease.ask_at_once(now)
        elif shared_end.sequence < self._journal.committed and not message.forced:
            yield Stop(
                f"{holder} lacks records that are committed here after {shared_end}: the two "
                "journals have different histories; keep the right one, and run ha-engine reinit "
                "on the other node"
            )
        elif message.by_snapshot or (message.forced and self._journal.base > ORIGIN):
            # The journal has trimmed its oldest records, so no replay could rebuild the state of
            # the queries after a forced truncation.
            if now >= self._restore_again_at:
                reason = f"the active has trimmed the records after {shared_end}"
                given_up = shared_end if message.forced else None
                self.giving_up = True
                restore = do.Restore(History(message.begins, message.epochs), reason, given_up)
                yield from self._replace_journal(restore, reason)
        elif shared_end < self._journal.last:
            reason = f"{holder} became active with a journal that ends at {shared_end}"
            # A restarted process does not know for certain which records are committed, so it
            # treats every forced truncation as one of committed records.
            self.giving_up = message.forced
            yield from self._replace_journal(
                do.TruncateJournal(shared_end, reason, set_aside=self.giving_up), reason
            )

    def _replace_journal(
        self, change: do.TruncateJournal | do.Restore, reason: str
    ) -> Iterator[do.Action]:
        """Truncate or restore the journal, as ``change`` says.

        If the node gives up records, it first ends the query process, whose state may include these
        records.
        """
        incarnation = self._query_control.process.incarnation
        if self.giving_up and incarnation is not None:
            yield do.StopQueryProcess(incarnation, reason)
            return
        self.replacing_journal = True
        yield change

    def restore_failed(self, now: float, reason: str) -> Iterator[Outcome]:
        """Note a failed restore, which left the journal, the outbox and the checkpoints as they
        were.

        Ask the holder for a snapshot that this node can use. Spark does not start before the next
        restore, since that restore would end the query process again.
        """
        self.replacing_journal = False
        self._not_restored = f"no snapshot was restored: {reason}"
        yield from self.explain_wait()
        self._restore_again_at = now + RESTORE_AGAIN_SECONDS
        if self.holder is not None:
            epoch = self._lease.high_water.epoch
            yield do.Send(self.holder, say.SnapshotLacking(epoch, reason))

    def _on_records(self, message: say.Records) -> Iterator[do.Action]:
        self._note_committed(message.epoch, message.committed)
        records = self._new_records(message, self._journal.last)
        for record in records:
            self._journal.apply(record)
            if isinstance(record.body, EpochStart) and record.body.forced:
                self._query_control.digests.history_was_given_up()
        if records:
            # The holder's records continue this journal, so an earlier request to truncate it is
            # out of date.
            self.giving_up, self._not_restored = False, None
            yield do.AppendRecords(records)

    def _new_records(self, message: say.Records, last: Position) -> tuple[Record, ...]:
        """The records of ``message`` that continue this journal.

        The result is empty after a gap (RULES.md#i8), or if the message is from another holder.
        """
        if message.epoch != self.epoch or message.previous.sequence > last.sequence:
            return ()
        return tuple(r for r in message.records if r.position.sequence > last.sequence)

    def _on_heartbeat(self, now: float, peer: str, message: say.Heartbeat) -> Iterator[do.Action]:
        self._note_committed(message.epoch, message.committed)
        self.retention.oldest_revision = message.oldest_revision
        if message.request and self._lease.promise(now, message.epoch):
            mine = self._lease.member.journal_id
            yield do.Send(peer, say.Promise(message.epoch, message.request, mine))
        if self.epoch == message.epoch:
            yield self._ack(peer)

    def answer_snapshot_request(
        self, event: on.SnapshotTaken | on.SnapshotFailed
    ) -> Iterator[do.Action]:
        """Send the holder the outcome of the snapshot that it requested.

        A holder ignores the outcome of a snapshot that an earlier holder requested.
        """
        answer = self._query_control.answer_of(event)
        if self.epoch and self.holder is not None and answer is not None:
            yield do.Send(self.holder, answer)

    # -- how far we are ----------------------------------------------------------------------------

    def ack_durable(self) -> Iterator[do.Action]:
        """Send the holder an ack, since more records of this journal are durable."""
        if self.epoch and self.holder is not None:
            yield self._ack(self.holder)

    @property
    def is_waited_for(self) -> bool:
        """Whether the holder that this node follows still waits for its acks (RULES.md#r9)."""
        row = self._lease.row
        if row is None or row.epoch != self.epoch:
            return False
        return self._lease.member in row.in_sync

    def commit(self) -> None:
        """Adopt the holder's commit position, as far as this node's own journal is durable
        (RULES.md#r12)."""
        if self.epoch:
            self._journal.commit(min(self._announced, self._journal.durable))

    def _note_committed(self, epoch: int, committed: int) -> None:
        self._announced_in = max(self._announced_in, (epoch, committed))
        if epoch == self.epoch:
            self._announced = max(self._announced, committed)
            self.highest_announced = max(self.highest_announced, committed)

    def _ack(self, peer: str) -> do.Action:
        journal, query_control = self._journal, self._query_control
        ack = say.Ack(
            self.epoch,
            self._lease.member.journal_id,
            journal.durable,
            self.headroom,
            query_control.warm(journal.committed),
            query_control.batches(),
            self.leaves,
        )
        return do.Send(peer, ack)
