"""The follower's side of replication: how a member that is not the holder handles its messages.

A follower keeps its journal a prefix of the holder's. It reports where its journal ends, appends
the holder's records, and acks what is durable. It truncates records that the holder does not have.
If the two journals have different histories, the node stops.
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
"""The pause after a failed restore; the holder needs about as long for a snapshot."""


class Follower:
    """A follower of the holder of ``epoch``; ``epoch`` is 0 while it follows nobody."""

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
        # The epoch of the newest message from a holder, and when it arrived.
        self._last_message: tuple[int, float] | None = None
        # The journal is being truncated or restored. The node ignores holders and acquires nothing
        # until its process ends or the restore fails.
        self.replacing_journal = False
        # RULES.md#r26: committed records are to be given up, or a snapshot replaces the journal. No
        # query may run on state that was made from these records.
        self.giving_up = False
        # RULES.md#r30: False while the disk is nearly full; the input HeadroomChanged sets it.
        self.headroom = True
        self._restore_again_at = -math.inf
        self._not_restored: str | None = None
        # The highest sequence that this holder called committed (RULES.md#r12), and the highest
        # that any holder did.
        self._announced = self.highest_announced = 0

    def end(self) -> None:
        self.epoch, self.holder, self.giving_up = 0, None, False
        self._not_restored = None
        self._query_control.drop_snapshot_request()

    def silent_since(self, epoch: int) -> float | None:
        """When the last message of the holder of ``epoch`` arrived.

        None if none did, or if a message of another epoch came later.
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
        """Handle a holder's message. Its epoch is not below any that this node knows
        (RULES.md#i14)."""
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
                # An answer to an older ProbeReply says nothing about later records (RULES.md#i14).
                answers_the_newest = message.replied_end == self._journal.last
                if answers_the_newest:
                    yield from self._make_prefix(now, message, peer)
                return
            # RULES.md#i8: our journal is a prefix of this holder's from now on, and of no other's.
            # Start from our own commit position. What an earlier holder called committed, an
            # operator may have given up since (RULES.md#r26).
            self.epoch, self._announced = message.epoch, self._journal.committed
            self._query_control.drop_snapshot_request()
            if self._lease.row is not None:
                yield from self._lease_client.bind(self._lease.row.group_id)
            self._lease.ask_at_once(now)
        # 1. A holder requires that this node give up records, and the query process must end first.
        # 2. Before that, the next holder continues this journal as it is. Nothing is given up, and
        # the queries run again.
        self.giving_up, self._not_restored = False, None
        yield self._ack(peer)

    def explain_wait(self) -> Iterator[Outcome]:
        """Report a failed restore, so that status shows it in place of the reason from the row."""
        if self._not_restored is not None:
            yield Wait(self._not_restored)

    def bind(self) -> Iterator[do.Action]:
        """Bind the journal to the row's group, if the row's holder is the one that it follows
        (RULES.md#r6)."""
        row = self._lease.row
        if row is not None and self.epoch == row.epoch > 0:
            yield from self._lease_client.bind(row.group_id)

    def _make_prefix(self, now: float, message: say.Follow, holder: str) -> Iterator[Outcome]:
        """Cut the journal to the holder's, or restore a snapshot (RULES.md#i8, RULES.md#r8).

        Do so only after a read of the row that does not list this node. Never remove committed
        records unless an operator gave them up (RULES.md#r26).
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
            # The base covers trimmed records, so no replay of a truncated journal rebuilds older
            # state.
            if now >= self._restore_again_at:
                reason = f"the active has trimmed the records after {shared_end}"
                given_up = shared_end if message.forced else None
                self.giving_up = True
                restore = do.Restore(History(message.begins, message.epochs), reason, given_up)
                yield from self._replace_journal(restore, reason)
        elif shared_end < self._journal.last:
            reason = f"{holder} became active with a journal that ends at {shared_end}"
            # A restarted process does not know its commit position for certain. So a forced
            # truncation always counts as one of committed records.
            self.giving_up = message.forced
            yield from self._replace_journal(
                do.TruncateJournal(shared_end, reason, set_aside=self.giving_up), reason
            )

    def _replace_journal(
        self, change: do.TruncateJournal | do.Restore, reason: str
    ) -> Iterator[do.Action]:
        """Make ``change``. First end the query process, if its state is made from what goes."""
        incarnation = self._query_control.process.incarnation
        if self.giving_up and incarnation is not None:
            yield do.StopQueryProcess(incarnation, reason)
            return
        self.replacing_journal = True
        yield change

    def restore_failed(self, now: float, reason: str) -> Iterator[Outcome]:
        """Note a failed restore, which left everything as it was.

        Ask the holder for a snapshot that this node can use. Until then Spark does not start on the
        records that are to be given up, since the next try would end it.
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
            # These records continue our journal, so a Follow that asked to truncate is out of date.
            self.giving_up, self._not_restored = False, None
            yield do.AppendRecords(records)

    def _new_records(self, message: say.Records, last: Position) -> tuple[Record, ...]:
        """The records that continue our journal; none after a gap (RULES.md#i8) or from another
        holder."""
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
        """Answer a holder's request for a snapshot; a request of an earlier holder is void."""
        answer = self._query_control.answer_of(event)
        if self.epoch and self.holder is not None and answer is not None:
            yield do.Send(self.holder, answer)

    # -- how far we are ----------------------------------------------------------------------------

    def ack_durable(self) -> Iterator[do.Action]:
        """Ack to the holder, since more of the journal is durable."""
        if self.epoch and self.holder is not None:
            yield self._ack(self.holder)

    def commit(self) -> None:
        """Take over the holder's commit position, as far as our own journal is durable
        (RULES.md#r12)."""
        if self.epoch:
            self._journal.commit(min(self._announced, self._journal.durable))

    def _note_committed(self, epoch: int, committed: int) -> None:
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
        )
        return do.Send(peer, ack)
