"""How far one other member has come, as the holder sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ha_engine.core.deadlines import ahead
from ha_engine.core.messages import Ack
from ha_engine.types import ORIGIN, Member, Position

BATCHES_BEHIND_MAX = 4
"""More than a follower is behind in the ordinary course: it starts a batch when it hears that its
mark is committed, and takes as long for it as the holder."""

STUCK_AFTER_SECONDS = 60.0
"""Without a batch for so long, a query does not get on there. Spark's first one is slow."""


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """In seconds. A member that is silent or behind for ``sync_timeout`` leaves in-sync."""

    heartbeat_interval: float
    sync_timeout: float


class Stage(Enum):
    """PROBE: asked where it stands, again and again. REPLICATE: records flow to it."""

    PROBE = "probe"
    REPLICATE = "replicate"


class Peer:
    """One member under one epoch; a node that lost its disk comes back with another journal."""

    def __init__(self, name: str, now: float, *, connected: bool) -> None:
        self.name, self.connected = name, connected
        self.heard_at = self.advanced_at = now
        self.stage = Stage.PROBE
        self.journal_id: str | None = None
        # What each journal has acked, also one that is gone and still listed as in sync
        # (RULES.md#i3).
        self._matches: dict[str, int] = {}
        self.room, self.warm = True, False
        self.batches: dict[str, int] = {}
        # When each query was seen to get on; before that, since the link.
        self._batch_at: dict[str, float] = {}
        self._linked_at = now
        # From when it has fallen far behind until it is warm again.
        self.catches_up = False
        # RULES.md#r16: by journal, when the request was sent that it answered last.
        self._promised_at: dict[str, float] = {}
        # RULES.md#r29: what it stood on last, where it begins from a snapshot, and since when no
        # further.
        self._stood: tuple[str, Position] | None = None
        self._begins_from: int | None = None
        self._gets_on_at = -math.inf

    @property
    def member(self) -> Member | None:
        return None if self.journal_id is None else Member(self.name, self.journal_id)

    @property
    def match(self) -> int:
        """Durable there under this epoch; never falls for one journal."""
        return self.match_of(self.journal_id)

    def match_of(self, journal_id: str | None) -> int:
        return 0 if journal_id is None else self._matches.get(journal_id, 0)

    def linked(self, now: float) -> None:
        self.connected, self.stage, self.heard_at = True, Stage.PROBE, now
        self.batches, self._batch_at, self._linked_at = {}, {}, now
        self.catches_up = True

    def unlinked(self) -> None:
        self.connected, self.stage, self.warm = False, Stage.PROBE, False

    def needs(self, now: float, patience: float) -> float:
        """The sequence behind which it still needs records, while it gets on."""
        if now >= self._gets_on_at + patience:
            return math.inf
        return self.match if self._begins_from is None else self._begins_from

    def stands(self, now: float, journal_id: str, last: Position) -> None:
        """Who comes back again and again, and no further, does not get on."""
        if (journal_id, last) != self._stood:
            self._stood, self._gets_on_at = (journal_id, last), now

    def begins(self, sequence: int) -> None:
        """It was told to begin from a snapshot, the oldest of which stands there."""
        self._begins_from = sequence

    def follows(self, now: float, journal_id: str) -> None:
        """Its journal is a prefix of ours from here on; what it acked under this epoch stays."""
        self.journal_id, self._begins_from = journal_id, None
        self.stage, self.heard_at, self.advanced_at = Stage.REPLICATE, now, now

    def acked(self, now: float, ack: Ack) -> None:
        if ack.journal_id != self.journal_id:
            return
        self.heard_at = now
        if ack.durable > self.match:
            self._matches[ack.journal_id] = ack.durable
            self.advanced_at = self._gets_on_at = now
        self.room, self.warm = ack.room, ack.warm
        come_to = dict(ack.batches)
        for query, _ in come_to.items() ^ self.batches.items():
            self._batch_at[query] = now
        self.batches = come_to
        self.catches_up = self.catches_up and not ack.warm

    def promised(self, journal_id: str, sent_at: float) -> None:
        self._promised_at[journal_id] = max(self.promised_at(journal_id), sent_at)

    def promised_at(self, journal_id: str) -> float:
        return self._promised_at.get(journal_id, -math.inf)

    def gets_on(self, now: float, query: str) -> bool:
        """Whether ``query`` ended a batch there lately, or may still be starting."""
        return now < self._batch_at.get(query, self._linked_at) + STUCK_AFTER_SECONDS

    def note_behind(self, query: str, batch: int) -> None:
        """The holder has ``batch`` of ``query``."""
        far = self.batches.get(query, batch) < batch - BATCHES_BEHIND_MAX
        self.catches_up = self.catches_up or far

    def catching_up_at(self, query: str, batch: int) -> int | None:
        """The batch of ``query`` that it has come to, while it has some to catch up with."""
        come_to = self.batches.get(query, batch)
        return come_to if self.catches_up and come_to < batch - 1 else None

    def wake_at(self, now: float, patience: float) -> float:
        """When ``gets_on`` or ``needs`` changes, if nothing but time goes on."""
        stuck = (at + STUCK_AFTER_SECONDS for at in (self._linked_at, *self._batch_at.values()))
        return ahead(now, self._gets_on_at + patience, *stuck)


def common_prefix(
    mine: tuple[Position, ...],
    my_last: Position,
    theirs: tuple[Position, ...],
    their_last: Position,
) -> Position:
    """The last position that both journals have, from the first positions of their epochs.

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
