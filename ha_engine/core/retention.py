"""Which records the journal may let go of (RULES.md#r29): those that no query here needs, and
nobody who begins from the oldest revision."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ha_engine.core import actions as do
from ha_engine.core.deployment import Deployment
from ha_engine.core.journal_state import JournalState
from ha_engine.types import Position

TRIM_EVERY_SECONDS = 10.0


class Retention:
    """``kept`` is the sequence that the oldest kept revision stands at, 0 while there is none."""

    def __init__(self, journal: JournalState, deployment: Deployment) -> None:
        self._journal, self._deployment = journal, deployment
        self.kept = self._newest = 0
        self._again_at = -math.inf
        self._trims = False

    def begin_epoch(self) -> None:
        """RULES.md#r29: what an earlier epoch knew of revisions, the database may have lost
        since."""
        self.kept = self._newest = 0

    def revisions_are(self, places: tuple[tuple[Position, Position], ...]) -> None:
        """One that stands on another history is of no use to anybody (RULES.md#r28)."""
        has = self._journal.has
        ours = [position.sequence for position, written in places if has(position) and has(written)]
        self.kept, self._newest = min(ours, default=0), max(ours, default=0)

    @property
    def lacks_revision(self) -> bool:
        """Whether nobody could begin from a snapshot and follow this journal from there."""
        return self._newest < self._journal.base.sequence

    @property
    def begins(self) -> Position:
        """Where who has nothing begins: at the oldest revision, or where the journal does."""
        return self._journal.position_at(max(self.kept, self._journal.base.sequence))

    def trim(self, now: float, hold: float) -> Iterator[do.Action]:
        """``hold``: who catches up with this node needs what lies behind that sequence."""
        if now >= self.wake_at(hold):
            self._again_at, self._trims = now + TRIM_EVERY_SECONDS, True
            yield do.TrimJournal(self._journal.position_at(self._through(hold)))

    def wake_at(self, hold: float) -> float:
        """When ``trim`` has something to trim, if nothing but time goes on."""
        base = self._journal.base.sequence
        if self._trims or self.kept <= base or self._through(hold) <= base:
            return math.inf
        return self._again_at

    def _through(self, hold: float) -> int:
        return int(min(self.kept, self._journal.committed, self._deployment.need(), hold))

    def trimmed(self) -> None:
        self._trims = False
