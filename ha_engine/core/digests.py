"""The digests of micro-batches on this node and on the holder of the lease (RULES.md#i6)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from ha_engine.core import messages as say

DIGESTS_KEPT = 1024


class Digests:
    """The digests of the newest DIGESTS_KEPT batches.

    The digest of this node or that of the holder may arrive first. Batches for which ``may_differ``
    is True are neither compared nor sent.
    """

    def __init__(self, may_differ: Callable[[str, int], bool]) -> None:
        self.may_differ = may_differ
        self._mine: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._theirs: OrderedDict[tuple[str, int], str] = OrderedDict()
        # RULES.md#r10: for each query, the first batch whose digests differed. This node keeps the
        # entry until it rebuilds its state.
        self.differing: dict[str, int] = {}

    def note_mine(self, query: str, number: int, digest: str) -> bool:
        """Note a digest of this node.

        Return False if the holder's digest of the same batch differs.
        """
        return self._note(self._mine, self._theirs, (query, number), digest)

    def note_theirs(self, query: str, number: int, digest: str) -> bool:
        return self._note(self._theirs, self._mine, (query, number), digest)

    def mine(self, query: str, number: int) -> str | None:
        """This node's digest of the batch, or None if it is not known yet or forgotten."""
        return self._mine.get((query, number))

    def history_was_given_up(self) -> None:
        """Forget the holder's digests, since an operator gave up their batches (RULES.md#r26).

        The new holder plans other batches with the same numbers.
        """
        self._theirs.clear()

    def as_messages(self, epoch: int) -> Iterator[say.BatchDigest]:
        """All digests of this node as BatchDigest messages, for the holder of ``epoch`` to send."""
        for (query, number), digest in self._mine.items():
            if not self.may_differ(query, number):
                yield say.BatchDigest(epoch, query, number, digest)

    def _note(
        self,
        to: OrderedDict[tuple[str, int], str],
        other: OrderedDict[tuple[str, int], str],
        batch: tuple[str, int],
        digest: str,
    ) -> bool:
        if to.get(batch) == digest:
            return True  # the holder sends them again to a member that rejoins
        to[batch] = digest
        if len(to) > DIGESTS_KEPT:
            to.popitem(last=False)
        equal = other.get(batch, digest) == digest or self.may_differ(*batch)
        if not equal:
            self.differing.setdefault(*batch)
        return equal
