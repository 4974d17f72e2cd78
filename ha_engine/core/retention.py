"""Decide which records the journal may trim (RULES.md#r29).

The journal may trim the records that no query of this node needs, and no member that restores the
oldest kept revision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ha_engine.core import actions as do
from ha_engine.core.deployment import Deployment
from ha_engine.core.journal_state import JournalState
from ha_engine.types import Position

TRIM_EVERY_SECONDS = 10.0


class Retention:
    """``oldest_revision`` is the sequence of the oldest kept snapshot revision, or 0 while none
    exists."""

    def __init__(self, journal: JournalState, deployment: Deployment) -> None:
        self._journal, self._deployment = journal, deployment
        self.oldest_revision = self._newest = 0
        self._again_at = -math.inf
        self._trims = False

    def begin_epoch(self) -> None:
        """Forget the revisions of an earlier epoch, since the database may have lost them
        (RULES.md#r29)."""
        self.oldest_revision = self._newest = 0

    def revisions_are(self, places: tuple[tuple[Position, Position], ...]) -> None:
        """Note the snapshot revisions in the database.

        A revision of another history does not count (RULES.md#r28).
        """
        has = self._journal.has
        ours = [
            position.sequence for position, last_mark in places if has(position) and has(last_mark)
        ]
        self.oldest_revision, self._newest = min(ours, default=0), max(ours, default=0)

    @property
    def lacks_revision(self) -> bool:
        """Whether the journal is trimmed past every revision, so that no member could restore one
        and follow."""
        return self._newest < self._journal.base.sequence

    @property
    def begins(self) -> Position:
        """The position at which a member with an empty journal starts: the oldest revision, or the
        base if that is later."""
        return self._journal.position_at(max(self.oldest_revision, self._journal.base.sequence))

    def trim(self, now: float, retain_after: float) -> Iterator[do.Action]:
        """Trim the journal. Joining members need the records after ``retain_after``."""
        if now >= self.wake_at(retain_after):
            self._again_at, self._trims = now + TRIM_EVERY_SECONDS, True
            yield do.TrimJournal(self._journal.position_at(self._through(retain_after)))

    def wake_at(self, retain_after: float) -> float:
        """The moment at which ``trim`` has something to trim, if no input arrives before."""
        base = self._journal.base.sequence
        if self._trims or self.oldest_revision <= base or self._through(retain_after) <= base:
            return math.inf
        return self._again_at

    def _through(self, retain_after: float) -> int:
        if self.oldest_revision > self._journal.committed and self._deployment.stands_by:
            # This node has no state of its own, and its journal does not reach a revision's yet.
            return self._journal.base.sequence
        return int(
            min(
                self.oldest_revision, self._journal.committed, self._deployment.need(), retain_after
            )
        )

    def trimmed(self) -> None:
        self._trims = False
