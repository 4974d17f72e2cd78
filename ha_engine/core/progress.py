"""The progress of one other member, as the holder sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ha_engine.core.deadlines import ahead
from ha_engine.core.messages import Ack
from ha_engine.types import ORIGIN, Member, Position

BATCHES_BEHIND_MAX = 4
"""A follower that is more than this many batches behind has to catch up. A follower usually is less
far behind, since it starts a batch as soon as it learns that the mark is committed."""

STUCK_AFTER_SECONDS = 60.0
"""A query makes no progress on a member if it ends no batch there for this many seconds. The limit
is long because Spark's first batch is slow."""


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """Times are in seconds.

    The holder removes a member from the in-sync list if it is silent or behind for
    ``sync_timeout``. The holder lists the backup once no other member has been listed for
    ``backup_after`` (RULES.md#r37).
    """

    heartbeat_interval: float
    sync_timeout: float
    backup_after: float = 30.0


class Stage(Enum):
    """In PROBE, the holder keeps asking where a member's journal ends.

    In REPLICATE, the holder sends records to the member.
    """

    PROBE = "probe"
    REPLICATE = "replicate"


class Peer:
    """One member during one epoch. A node that lost its disk returns with another journal.

    ``is_backup`` says whether the member is the group's backup (RULES.md#r37).
    """

    def __init__(
        self, name: str, now: float, *, connected: bool = True, is_backup: bool = False
    ) -> None:
        self.name, self.connected, self.is_backup = name, connected, is_backup
        self.last_message_at = self.advanced_at = now
        self.stage = Stage.PROBE
        self.journal_id: str | None = None
        # The sequence that each journal of the node has acked. The lease row may still list a lost
        # journal as in sync (RULES.md#i3).
        self._acked_through: dict[str, int] = {}
        # The sequence that a journal had acked before its disk went back (RULES.md#r8).
        self._acked_before: dict[str, int] = {}
        self.headroom, self.warm = True, False
        # RULES.md#r9: whether the member stops, and asks the holder to continue without it.
        self.leaves = False
        self.batches: dict[str, int] = {}
        # When each query last made progress on the member. For a query without an entry, the time
        # of the connection counts.
        self._batch_at: dict[str, float] = {}
        self._linked_at = now
        # Whether the member is catching up. A member begins to catch up when it connects or falls
        # far behind, and ends when it is warm.
        self.catches_up = False
        # RULES.md#r16: for each journal, when the holder sent the newest request that got a
        # promise.
        self._promised_at: dict[str, float] = {}
        # RULES.md#r29: the journal's end in the last ProbeReply, the sequence of the snapshot to
        # restore, the time of the last progress, and the time of the first need of this journal.
        self._replied_end: tuple[str, Position] | None = None
        self._begins_from: int | None = None
        self._progress_at = self._first_need_at = -math.inf

    @property
    def member(self) -> Member | None:
        return None if self.journal_id is None else Member(self.name, self.journal_id)

    @property
    def acked_through(self) -> int:
        """The sequence up to which the member has acked in this epoch, or 0 before its first ack.

        The acked sequence of one journal falls only if the disk goes back.
        """
        return self.acked_through_of(self.journal_id)

    def acked_through_of(self, journal_id: str | None) -> int:
        return 0 if journal_id is None else self._acked_through.get(journal_id, 0)

    def acked_before(self, journal_id: str) -> int:
        """The sequence that the journal had acked before its disk went back, or 0 if it never
        did."""
        return self._acked_before.get(journal_id, 0)

    def disk_went_back(self, journal_id: str, last: int) -> None:
        """Note that a journal which has acked later records has them up to ``last`` only
        (RULES.md#r8)."""
        acked = max(self.acked_before(journal_id), self.acked_through_of(journal_id))
        self._acked_before[journal_id], self._acked_through[journal_id] = acked, last

    def linked(self, now: float) -> None:
        self.connected, self.stage, self.last_message_at = True, Stage.PROBE, now
        self.leaves = False
        self.batches, self._batch_at, self._linked_at = {}, {}, now
        self.catches_up = True

    def unlinked(self) -> None:
        self.connected, self.stage, self.warm = False, Stage.PROBE, False

    def needs(self, now: float, patience: float) -> float:
        """The sequence after which the member still needs records.

        The result is infinite if the member has made no progress for ``patience`` seconds. The
        backup has ``patience`` seconds in all, since its link may always be too slow
        (RULES.md#r37).
        """
        if now >= self._waits_since + patience:
            return math.inf
        return self.acked_through if self._begins_from is None else self._begins_from

    @property
    def _waits_since(self) -> float:
        return self._first_need_at if self.is_backup else self._progress_at

    def replied(self, now: float, journal_id: str, last: Position) -> None:
        """Note where the member's journal ends.

        A member that reconnects at the same position makes no progress.
        """
        if self._replied_end is None or self._replied_end[0] != journal_id:
            self._first_need_at = now
        if (journal_id, last) != self._replied_end:
            self._replied_end, self._progress_at = (journal_id, last), now

    def begins(self, now: float, sequence: int) -> None:
        """Note that the member must restore a snapshot, the oldest of which is at ``sequence``."""
        if self._begins_from is None:
            self._first_need_at = now
        self._begins_from = sequence

    def follows(self, now: float, journal_id: str) -> None:
        """Note that the member's journal is a prefix of the holder's journal from now on.

        The member's acks count for the rest of this epoch.
        """
        self.journal_id, self._begins_from = journal_id, None
        self.stage, self.last_message_at, self.advanced_at = Stage.REPLICATE, now, now

    def acked(self, now: float, ack: Ack) -> None:
        if ack.journal_id != self.journal_id:
            return
        self.last_message_at = now
        if ack.durable > self.acked_through:
            self._acked_through[ack.journal_id] = ack.durable
            self.advanced_at = self._progress_at = now
        self.headroom, self.warm, self.leaves = ack.headroom, ack.warm, ack.leaves
        newest = dict(ack.batches)
        for query, _ in newest.items() ^ self.batches.items():
            self._batch_at[query] = now
        self.batches = newest
        self.catches_up = self.catches_up and not ack.warm

    def promised(self, journal_id: str, sent_at: float) -> None:
        self._promised_at[journal_id] = max(self.promised_at(journal_id), sent_at)

    def promised_at(self, journal_id: str) -> float:
        return self._promised_at.get(journal_id, -math.inf)

    def makes_progress(self, now: float, query: str) -> bool:
        """Whether ``query`` has ended a batch on the member lately, or may still be starting on the
        member."""
        return now < self._batch_at.get(query, self._linked_at) + STUCK_AFTER_SECONDS

    def note_behind(self, query: str, batch: int) -> None:
        """Note whether the member is far behind ``batch``, the holder's newest batch of
        ``query``."""
        far = self.batches.get(query, batch) < batch - BATCHES_BEHIND_MAX
        self.catches_up = self.catches_up or far

    def catching_up_at(self, query: str, batch: int) -> int | None:
        """The member's newest batch of ``query`` while it catches up with ``batch``, or None
        otherwise."""
        newest = self.batches.get(query, batch)
        return newest if self.catches_up and newest < batch - 1 else None

    def wake_at(self, now: float, patience: float) -> float:
        """The next moment at which time alone changes ``makes_progress`` or ``needs``."""
        stuck = (at + STUCK_AFTER_SECONDS for at in (self._linked_at, *self._batch_at.values()))
        return ahead(now, self._waits_since + patience, *stuck)


def common_end(
    mine: tuple[Position, ...],
    my_last: Position,
    theirs: tuple[Position, ...],
    their_last: Position,
) -> Position:
    """Compute the last position that both journals have, from the first positions of their epochs.

    Only one process writes the records of an epoch. Two journals that share a position therefore
    share all records before it (the log matching property of Raft, Ongaro and Ousterhout 2014,
    section 5.3).
    """
    shared = [start for start in mine if start in set(theirs)]
    if not shared:
        return ORIGIN
    newest = shared[-1]
    ends = (_end_of(newest, mine, my_last), _end_of(newest, theirs, their_last))
    return Position(newest.epoch, min(ends))


def _end_of(start: Position, starts: tuple[Position, ...], last: Position) -> int:
    later = [other.sequence for other in starts if other.sequence > start.sequence]
    return later[0] - 1 if later else last.sequence
