"""The progress of one other member, as the holder sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ha_engine.core.deadlines import ahead
from ha_engine.core.messages import Ack
from ha_engine.types import ORIGIN, Member, Position

BATCHES_BEHIND_MAX = 4
"""A follower further behind than that has to catch up. Ordinarily it is less far behind: it starts
a batch when it learns that the mark is committed, and needs as long for it as the holder."""

STUCK_AFTER_SECONDS = 60.0
"""A query without a new batch for so long makes no progress there. Spark's first batch is slow."""


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """Times in seconds. The holder removes a member that is silent or behind for
    ``sync_timeout``."""

    heartbeat_interval: float
    sync_timeout: float


class Stage(Enum):
    """PROBE: the holder keeps asking where its journal ends. REPLICATE: records flow to it."""

    PROBE = "probe"
    REPLICATE = "replicate"


class Peer:
    """One member under one epoch; a node that lost its disk returns with another journal."""

    def __init__(self, name: str, now: float, *, connected: bool) -> None:
        self.name, self.connected = name, connected
        self.last_message_at = self.advanced_at = now
        self.stage = Stage.PROBE
        self.journal_id: str | None = None
        # The sequence that each journal has acked. A journal that is gone may still be listed as in
        # sync (RULES.md#i3).
        self._acked_through: dict[str, int] = {}
        self.headroom, self.warm = True, False
        self.batches: dict[str, int] = {}
        # When each query last made progress. A query without an entry counts from the link.
        self._batch_at: dict[str, float] = {}
        self._linked_at = now
        # True from when the member falls far behind, or connects, until it is warm.
        self.catches_up = False
        # RULES.md#r16: for each journal, when the holder sent the newest request that it answered.
        self._promised_at: dict[str, float] = {}
        # RULES.md#r29: the last ProbeReply, the sequence of the snapshot to restore, and the time
        # of the last progress.
        self._replied_end: tuple[str, Position] | None = None
        self._begins_from: int | None = None
        self._progress_at = -math.inf

    @property
    def member(self) -> Member | None:
        return None if self.journal_id is None else Member(self.name, self.journal_id)

    @property
    def acked_through(self) -> int:
        """The sequence up to which the member has acked, 0 before its first ack under this epoch.

        It never falls for one journal.
        """
        return self.acked_through_of(self.journal_id)

    def acked_through_of(self, journal_id: str | None) -> int:
        return 0 if journal_id is None else self._acked_through.get(journal_id, 0)

    def linked(self, now: float) -> None:
        self.connected, self.stage, self.last_message_at = True, Stage.PROBE, now
        self.batches, self._batch_at, self._linked_at = {}, {}, now
        self.catches_up = True

    def unlinked(self) -> None:
        self.connected, self.stage, self.warm = False, Stage.PROBE, False

    def needs(self, now: float, patience: float) -> float:
        """The sequence after which it still needs records; infinite without progress for
        ``patience`` seconds."""
        if now >= self._progress_at + patience:
            return math.inf
        return self.acked_through if self._begins_from is None else self._begins_from

    def replied(self, now: float, journal_id: str, last: Position) -> None:
        """Note where its journal ends. A member that reconnects at the same position makes no
        progress."""
        if (journal_id, last) != self._replied_end:
            self._replied_end, self._progress_at = (journal_id, last), now

    def begins(self, sequence: int) -> None:
        """Note that it must restore a snapshot, the oldest of which is at ``sequence``."""
        self._begins_from = sequence

    def follows(self, now: float, journal_id: str) -> None:
        """Note that its journal is a prefix of ours from now on; its acks of this epoch count."""
        self.journal_id, self._begins_from = journal_id, None
        self.stage, self.last_message_at, self.advanced_at = Stage.REPLICATE, now, now

    def acked(self, now: float, ack: Ack) -> None:
        if ack.journal_id != self.journal_id:
            return
        self.last_message_at = now
        if ack.durable > self.acked_through:
            self._acked_through[ack.journal_id] = ack.durable
            self.advanced_at = self._progress_at = now
        self.headroom, self.warm = ack.headroom, ack.warm
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
        """Whether ``query`` ended a batch there lately, or may still be starting there."""
        return now < self._batch_at.get(query, self._linked_at) + STUCK_AFTER_SECONDS

    def note_behind(self, query: str, batch: int) -> None:
        """Note whether it is far behind ``batch``, which the holder has of ``query``."""
        far = self.batches.get(query, batch) < batch - BATCHES_BEHIND_MAX
        self.catches_up = self.catches_up or far

    def catching_up_at(self, query: str, batch: int) -> int | None:
        """Its newest batch of ``query`` while it catches up with ``batch``; None otherwise."""
        newest = self.batches.get(query, batch)
        return newest if self.catches_up and newest < batch - 1 else None

    def wake_at(self, now: float, patience: float) -> float:
        """When ``makes_progress`` or ``needs`` changes next by time alone."""
        stuck = (at + STUCK_AFTER_SECONDS for at in (self._linked_at, *self._batch_at.values()))
        return ahead(now, self._progress_at + patience, *stuck)


def common_end(
    mine: tuple[Position, ...],
    my_last: Position,
    theirs: tuple[Position, ...],
    their_last: Position,
) -> Position:
    """Compute the last position that both journals have, from the first positions of their epochs.

    One process writes an epoch, so two journals that share a position share all before it (the log
    matching property of Raft, Ongaro and Ousterhout 2014, section 5.3).
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
