"""What batches came to, here and on the holder (RULES.md#i6)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from ha_engine.core import messages as say

DIGESTS_KEPT = 1024


class Digests:
    """A bounded number of batches; either side's digest may come first."""

    def __init__(self) -> None:
        self._mine: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._theirs: OrderedDict[tuple[str, int], str] = OrderedDict()
        # RULES.md#r10: stays until the state is built anew.
        self.differing: dict[str, int] = {}

    def note_mine(self, query: str, number: int, digest: str) -> bool:
        """False when the holder's batch came out differently."""
        return self._note(self._mine, self._theirs, (query, number), digest)

    def note_theirs(self, query: str, number: int, digest: str) -> bool:
        return self._note(self._theirs, self._mine, (query, number), digest)

    def mine(self, query: str, number: int) -> str | None:
        """What that batch came to here, if that is still known."""
        return self._mine.get((query, number))

    def history_was_given_up(self) -> None:
        """RULES.md#r26: what the batches came to that an operator gave up says nothing about those
        that get their numbers."""
        self._theirs.clear()

    def known_here(self, epoch: int) -> Iterator[say.BatchDigest]:
        """All of this node's own, as the words in which the holder of ``epoch`` tells them."""
        for (query, number), digest in self._mine.items():
            yield say.BatchDigest(epoch, query, number, digest)

    def _note(
        self,
        to: OrderedDict[tuple[str, int], str],
        other: OrderedDict[tuple[str, int], str],
        batch: tuple[str, int],
        digest: str,
    ) -> bool:
        if to.get(batch) == digest:
            return True  # told again, to a member that joins again
        to[batch] = digest
        if len(to) > DIGESTS_KEPT:
            to.popitem(last=False)
        equal = other.get(batch, digest) == digest
        if not equal:
            self.differing.setdefault(*batch)
        return equal
