"""For each query, the definition that the journal has put in force, and the record that began its
state (RULES.md#r23)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

from ha_engine.types import Application, QueryVersion


class Versions:
    """The versions of every query that an application record named, even if the application no
    longer has the query."""

    def __init__(self) -> None:
        self.application: str | None = None
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
        # By query: for each reset of its state, the batches after the reset whose marks are before
        # it. The old code may have made them on a node other than the writer of the reset.
        self._made_anew: dict[str, list[range]] = defaultdict(list)

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
            if before is None or version.reset:
                self.lineages[name] = sequence
                planned = range(version.first.number + 1, last_mark(name) + 1)
                self._made_anew[name].append(planned)
                self.carried_on.pop(name, None)
                self.earlier.pop(name, None)
                yield version
            elif before.digest != version.digest:
                self.carried_on[name] = last_mark(name)
                before_that = self.earlier.get(name, ())
                self.earlier[name] = (self.lineages[name], *before_that) if mine else ()
                self.lineages[name] = sequence
            self.of[name] = replace(version, reset=False)

    def makes_anew(self, query: str, number: int) -> bool:
        """Whether a node may have a batch ``number`` that code from before a reset of the query's
        state made. The code in force makes that batch again."""
        return any(number in planned for planned in self._made_anew.get(query, ()))

    def states_of(self, query: str) -> tuple[int, ...]:
        """The lineage of the query's state, then the earlier lineages whose checkpoint may continue
        on this node."""
        return (self.lineages[query], *self.earlier.get(query, ()))

    def load_base(self, version: QueryVersion, lineage: int, carried_on: int | None) -> None:
        """Load from the base what the trimmed records said about a query."""
        self.of[version.query], self.lineages[version.query] = version, lineage
        if carried_on is not None:
            self.carried_on[version.query] = carried_on
