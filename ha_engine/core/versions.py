"""For each query, the definition that the journal has put in force, and the record that began its
state (RULES.md#r23)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ha_engine.types import Application, Deployed, QueryBase, QueryVersion, Shadow


class Versions:
    """The versions of every query that an application record named, even if the application no
    longer has the query."""

    def __init__(self) -> None:
        self.application: str | None = None
        # The newest deployment, or None if each node has its application in a file (RULES.md#r36).
        self.deployed: Deployed | None = None
        self.of: dict[str, QueryVersion] = {}
        # The sequence of the record that began a query's state, or that continued the state under
        # changed code. The sequence names the checkpoint that fits.
        self.lineages: dict[str, int] = {}
        # Earlier lineages whose checkpoint may continue on this node, since this node wrote the
        # change. The checkpoint of the writer has all batches before the change. The checkpoint of
        # another node may lack some of these batches, which only the old code can make.
        self.earlier: dict[str, tuple[int, ...]] = {}
        # Queries whose state continues under changed code, each with its last mark before the
        # change. Only a checkpoint has such a state, since the old code made the batches before the
        # change.
        self.carried_on: dict[str, int] = {}
        # By query, the last mark before its newest change. One node may have made batches up to
        # this mark with the old code, and another node with the new code.
        self._changed_after: dict[str, int] = {}
        # By query, the numbers of partitions of the present state, each with the mark after which
        # it holds (RULES.md#r35). Before the first of these marks, the config has the number.
        self.partitions: dict[str, tuple[tuple[int, int], ...]] = {}
        # By query, the shadow that made the present state, whose checkpoint this node may have
        # (RULES.md#r38).
        self.adopting: dict[str, Shadow] = {}
        # By query, the last mark of the base, which does not name all earlier changes.
        self._base_through: dict[str, int] = {}

    def changes(self, version: QueryVersion) -> bool:
        """Whether an application record with ``version`` brings other code or a new state."""
        before = self.of.get(version.query)
        return before is None or version.reset or before.digest != version.digest

    def promotes(self, version: QueryVersion) -> bool:
        """Whether an application record with ``version`` puts a shadow in the query's place."""
        before = self.of.get(version.query)
        return before is not None and version.promoted != before.promoted

    def pending_promotion(self, query: str) -> Shadow | None:
        """The shadow that the newest deployment puts in the query's place, until an application
        record has done so."""
        shadow = None if self.deployed is None else self.deployed.promoted
        if shadow is None or shadow.query != query:
            return None
        version = self.of.get(query)
        return None if version is None or version.promoted == shadow.number else shadow

    def rescales(self, version: QueryVersion) -> bool:
        """Whether an application record with ``version`` keeps the state, and changes the number of
        its partitions."""
        before = self.of.get(version.query)
        return before is not None and not version.reset and before.partitions != version.partitions

    def apply(
        self,
        sequence: int,
        application: Application,
        last_mark: Callable[[str], int],
        *,
        mine: bool,
    ) -> Iterator[QueryVersion]:
        """Apply the application record with this sequence, and yield the versions that start with
        an empty state.

        ``mine`` is True if this node wrote the record.
        """
        self.application = application.digest
        for version in application.queries:
            name, before = version.query, self.of.get(version.query)
            if self.rescales(version):
                self._rescale(version, last_mark(name))
            begins = before is None or version.reset
            if begins or self.promotes(version):
                # One code made the whole state of a shadow, on each node from the same mark on.
                self.lineages[name] = sequence
                self._changed_after[name] = last_mark(name)
                self.carried_on.pop(name, None)
                self.earlier.pop(name, None)
                self.adopting.pop(name, None)
                if begins:
                    self.partitions.pop(name, None)
                    self._rescale(version, 0)
                    yield version
                elif (shadow := self.pending_promotion(name)) is not None:
                    self.adopting[name] = shadow
            elif before is not None and before.digest != version.digest:
                self.adopting.pop(name, None)
                self.carried_on[name] = self._changed_after[name] = last_mark(name)
                before_that = self.earlier.get(name, ())
                self.earlier[name] = (self.lineages[name], *before_that) if mine else ()
                self.lineages[name] = sequence
            self.of[name] = replace(version, reset=False)

    @property
    def rescaled(self) -> set[str]:
        """The queries whose present state has had another number of partitions."""
        return {name for name, counts in self.partitions.items() if counts[-1][0] > 0}

    def _rescale(self, version: QueryVersion, after: int) -> None:
        if version.partitions is not None:
            before = self.partitions.get(version.query, ())
            self.partitions[version.query] = (*before, (after, version.partitions))

    def may_be_of_other_code(self, query: str, number: int) -> bool:
        """Whether this node may have made batch ``number`` with the code before the newest change.

        The answer is certain only for a batch whose mark is after the base.
        """
        return 0 < number <= self._changed_after.get(query, 0)

    def may_differ(self, query: str, number: int) -> bool:
        """Whether two nodes may have made batch ``number`` with different code.

        No batch of the base is compared any more, since its digests were compared when the nodes
        made it.
        """
        in_base = number <= self._base_through.get(query, 0)
        return in_base or self.may_be_of_other_code(query, number)

    def states_of(self, query: str) -> tuple[int, ...]:
        """The lineage of the query's state, then the earlier lineages whose checkpoint may continue
        on this node."""
        return (self.lineages[query], *self.earlier.get(query, ()))

    def load_base(self, base: QueryBase) -> None:
        """Load from the base what the trimmed records said about a query."""
        query = base.version.query
        self.of[query], self.lineages[query] = base.version, base.lineage
        self._base_through[query] = base.last.number
        self.partitions.pop(query, None)
        self._rescale(base.version, 0)
        if base.carried_on is not None:
            self.carried_on[query] = self._changed_after[query] = base.carried_on
