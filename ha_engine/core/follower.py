"""The other side of the link: what a member that is not the holder does with what it hears.

It keeps its journal a prefix of the holder's: says where it stands, takes records in, confirms what
is durable, and has cut off what the holder does not have. What one message leads to is one run of
actions, and at worst the verdict that the two journals do not belong together.
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
"""From a restore that failed to the next try; a snapshot takes about as long."""


class Follower:
    """Whom this journal is a prefix of: the holder of ``epoch``, 0 while of nobody's."""

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
        self.leader: str | None = None
        # The epoch of the newest word of a holder, and when it came.
        self._heard: tuple[int, float] | None = None
        # A cut was asked for; nothing is heard and nothing acquired until this process ends.
        self.cutting = False
        # RULES.md#r26: committed records are to be given up, and nothing may run on what came from
        # them.
        self.giving_up = False
        # RULES.md#r30: the edge says when the disk is nearly full.
        self.room = True
        self._restore_again_at = -math.inf
        self._not_restored: str | None = None
        # The highest sequence that the holder called committed (RULES.md#r12), and that any ever
        # did.
        self._committed = self.told_committed = 0

    def end(self) -> None:
        self.epoch, self.leader, self.giving_up = 0, None, False
        self._not_restored = None
        self._query_control.forget_wish()

    def silent_since(self, epoch: int) -> float | None:
        """When the holder of ``epoch`` was last heard; None if it never was."""
        if self._heard is None or self._heard[0] != epoch:
            return None
        return self._heard[1]

    def heard_within(self, now: float, seconds: float) -> bool:
        """Whether somebody spoke as a holder in the last ``seconds``."""
        return self._heard is not None and now - self._heard[1] < seconds

    def lost(self, now: float, peer: str) -> None:
        if self.leader == peer:
            self.end()
            self._lease.again_at_once(now)

    # -- words -------------------------------------------------------------------------------------

    def hear(self, now: float, peer: str, message: say.Message) -> Iterator[Outcome]:
        """``message`` is of an epoch that is not below any that this node knows of
        (RULES.md#i14)."""
        self.leader, self._heard = peer, (message.epoch, now)
        match message:
            case say.Probe():
                yield self._stand(peer, message.epoch)
            case say.Follow():
                yield from self._follow(now, peer, message)
            case say.Records():
                yield from self._take(message)
            case say.Committed(epoch, committed):
                self._note_committed(epoch, committed)
            case say.Heartbeat():
                yield from self._beat(now, peer, message)
            case say.TakeSnapshot(epoch, cut) if epoch == self.epoch:
                self._query_control.capture(epoch, cut)
            case say.Released():
                self._lease.again_at_once(now)
            case say.BatchDigest(epoch, query, number, digest) if epoch == self.epoch:
                if not self._query_control.digests.note_theirs(query, number, digest):
                    yield do.ReportDifference(query, number)

    def _stand(self, peer: str, epoch: int) -> do.Action:
        journal, journal_id = self._journal, self._lease.member.journal_id
        standing = say.Standing(epoch, journal_id, journal.last, journal.committed, journal.epochs)
        return do.Tell(peer, standing)

    def _follow(self, now: float, peer: str, message: say.Follow) -> Iterator[Outcome]:
        if message.journal_id != self._lease.member.journal_id:
            return
        if self.epoch != message.epoch or message.by_snapshot:
            if message.match != self._journal.last or message.by_snapshot:
                # An answer to where we stood before says nothing about what came since
                # (RULES.md#i14).
                if message.stood == self._journal.last:
                    yield from self._cut(now, message, peer)
                return
            # RULES.md#i8: our journal is a prefix of that holder's from here on, and no other's.
            # What was committed to an earlier one, an operator may have given up since
            # (RULES.md#r26).
            self.epoch, self._committed = message.epoch, self._journal.committed
            self._query_control.forget_wish()
            if self._lease.row is not None:
                yield from self._lease_client.bind(self._lease.row.group_id)
            self._lease.again_at_once(now)
        # 1. A holder has this journal given up, for which the query process must end first. 2. The
        # next holder goes on behind it as it is: nothing is given up, and the queries run again.
        self.giving_up, self._not_restored = False, None
        yield self._ack(peer)

    def waits(self) -> Iterator[Outcome]:
        """What this node waits for, beyond what the row says of it."""
        if self._not_restored is not None:
            yield Wait(self._not_restored)

    def bind(self) -> Iterator[do.Action]:
        """RULES.md#r6: the row names the group of the holder whose journal ours is a prefix of."""
        row = self._lease.row
        if row is not None and self.epoch == row.epoch > 0:
            yield from self._lease_client.bind(row.group_id)

    def _cut(self, now: float, message: say.Follow, leader: str) -> Iterator[Outcome]:
        """RULES.md#i8, RULES.md#r8: only once the row was read without us, and never below what is
        committed, unless an operator gave that up (RULES.md#r26)."""
        lease, row, match = self._lease, self._lease.row, message.match
        out = row is not None and row.epoch == lease.high_water.epoch
        if not out or not lease.read_once or lease.member in (row.in_sync if row else ()):
            lease.again_at_once(now)
        elif match.sequence < self._journal.committed and not message.forced:
            yield Stop(
                f"{leader} does not have what is committed here behind {match}: the two journals "
                "are of different histories; keep the right one, and reinit the other node"
            )
        elif message.by_snapshot or (message.forced and self._journal.base > ORIGIN):
            # State that began before the base cannot be built from a journal that is cut.
            if now >= self._restore_again_at:
                why = f"the records behind {match} are no longer kept"
                given_up = match if message.forced else None
                self.giving_up = True
                restore = do.Restore(History(message.begins, message.epochs), why, given_up)
                yield from self._alone(restore, why)
        elif match < self._journal.last:
            why = f"{leader} became active with a journal up to {match}"
            # What is committed here a process that was started again does not know for certain.
            self.giving_up = message.forced
            yield from self._alone(do.CutJournal(match, why, set_aside=self.giving_up), why)

    def _alone(self, change: do.CutJournal | do.Restore, why: str) -> Iterator[do.Action]:
        """``change``, and first an end to what runs on that which it takes away."""
        incarnation = self._query_control.process.incarnation
        if self.giving_up and incarnation is not None:
            yield do.StopQueryProcess(incarnation, why)
            return
        self.cutting = True
        yield change

    def restore_failed(self, now: float, reason: str) -> Iterator[Outcome]:
        """Everything is as it was; the holder can take a snapshot that is of more use. Until then
        Spark stays away from what is to be given up: it would be ended by the next try."""
        self.cutting = False
        self._not_restored = f"no snapshot was restored: {reason}"
        yield from self.waits()
        self._restore_again_at = now + RESTORE_AGAIN_SECONDS
        if self.leader is not None:
            epoch = self._lease.high_water.epoch
            yield do.Tell(self.leader, say.SnapshotLacking(epoch, reason))

    def _take(self, message: say.Records) -> Iterator[do.Action]:
        self._note_committed(message.epoch, message.committed)
        records = self._fresh(message, self._journal.last)
        for record in records:
            self._journal.take(record)
            if isinstance(record.body, EpochStart) and record.body.forced:
                self._query_control.digests.history_was_given_up()
        if records:
            # They continue our journal: a Follow that said otherwise was of an earlier moment.
            self.giving_up, self._not_restored = False, None
            yield do.AppendRecords(records)

    def _fresh(self, message: say.Records, last: Position) -> tuple[Record, ...]:
        """The records that continue our journal; none after a gap (RULES.md#i8) or from another
        holder."""
        if message.epoch != self.epoch or message.previous.sequence > last.sequence:
            return ()
        return tuple(r for r in message.records if r.position.sequence > last.sequence)

    def _beat(self, now: float, peer: str, message: say.Heartbeat) -> Iterator[do.Action]:
        self._note_committed(message.epoch, message.committed)
        self.retention.kept = message.kept
        if message.request and self._lease.promise(now, message.epoch):
            mine = self._lease.member.journal_id
            yield do.Tell(peer, say.Promise(message.epoch, message.request, mine))
        if self.epoch == message.epoch:
            yield self._ack(peer)

    def report(self, event: on.SnapshotTaken | on.SnapshotFailed) -> Iterator[do.Action]:
        """A snapshot that a holder asked this member for; an older one's request means nothing."""
        answer = self._query_control.answer_of(event)
        if self.epoch and self.leader is not None and answer is not None:
            yield do.Tell(self.leader, answer)

    # -- how far we are ----------------------------------------------------------------------------

    def confirm(self) -> Iterator[do.Action]:
        """More of our journal is on the disk."""
        if self.epoch and self.leader is not None:
            yield self._ack(self.leader)

    def commit(self) -> None:
        """A follower takes the holder's word for what is committed, as far as it has it
        (RULES.md#r12)."""
        if self.epoch:
            heard = min(self._committed, self._journal.durable)
            self._journal.committed = max(self._journal.committed, heard)

    def _note_committed(self, epoch: int, committed: int) -> None:
        if epoch == self.epoch:
            self._committed = max(self._committed, committed)
            self.told_committed = max(self.told_committed, committed)

    def _ack(self, peer: str) -> do.Action:
        journal, query_control = self._journal, self._query_control
        ack = say.Ack(
            self.epoch,
            self._lease.member.journal_id,
            journal.durable,
            self.room,
            query_control.warm(journal.committed),
            query_control.batches(),
        )
        return do.Tell(peer, ack)
