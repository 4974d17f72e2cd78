"""The other side of the link: what a member that is not the holder does with what it hears.

It holds whom this node follows, and compares the digests of batches. It keeps no journal: ``core``
appends the records that ``fresh`` lets through.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from ha_engine.core import messages as say
from ha_engine.types import Position, Record

DIGESTS_KEPT = 1024


class Following:
    """Whom this journal is a prefix of: the holder of ``epoch``, 0 while of nobody's."""

    def __init__(self) -> None:
        self.epoch = 0
        self.leader: str | None = None
        self.heard_at = -math.inf
        # The highest sequence that the holder called committed (R12).
        self.committed = 0

    def heard(self, now: float, leader: str) -> None:
        self.leader, self.heard_at = leader, now

    def begin(self, epoch: int) -> None:
        """I8: our journal is a prefix of that holder's from here on."""
        self.epoch = epoch

    def end(self) -> None:
        self.epoch, self.leader = 0, None

    def lost(self, peer: str) -> bool:
        """Whether the link that went was the one to the leader."""
        return self.leader == peer

    def fresh(self, message: say.Records, last: Position) -> tuple[Record, ...]:
        """The records that continue our journal; none after a gap (I8) or from another holder."""
        if message.epoch != self.epoch or message.previous.sequence > last.sequence:
            return ()
        return tuple(r for r in message.records if r.position.sequence > last.sequence)

    def told_committed(self, epoch: int, committed: int) -> None:
        if epoch == self.epoch:
            self.committed = max(self.committed, committed)


class Digests:
    """What batches came to, here and on the holder (I6). Each may come first."""

    def __init__(self) -> None:
        self._mine: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._theirs: OrderedDict[tuple[str, int], str] = OrderedDict()
        # R10: stays until the state is built anew.
        self.differing: dict[str, int] = {}

    def note_mine(self, query: str, number: int, digest: str) -> bool:
        """False when the holder's batch came out differently."""
        return self._note(self._mine, self._theirs, (query, number), digest)

    def note_theirs(self, query: str, number: int, digest: str) -> bool:
        return self._note(self._theirs, self._mine, (query, number), digest)

    def _note(
        self,
        to: OrderedDict[tuple[str, int], str],
        other: OrderedDict[tuple[str, int], str],
        batch: tuple[str, int],
        digest: str,
    ) -> bool:
        to[batch] = digest
        if len(to) > DIGESTS_KEPT:
            to.popitem(last=False)
        equal = other.get(batch, digest) == digest
        if not equal:
            self.differing.setdefault(*batch)
        return equal
