"""Which definition of each query the journal says is in force, and where its state began
(RULES.md#r23)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ha_engine.types import Application, QueryVersion


class Versions:
    """Of every query that an application record named, whether the application still has it."""

    def __init__(self) -> None:
        self.application: str | None = None
        self.of: dict[str, QueryVersion] = {}
        # The sequence of the record that began a query's state, or since which it goes on under
        # changed code; names the checkpoint that fits it.
        self.lineages: dict[str, int] = {}
        # Those before, whose checkpoint goes on here: this node wrote the change, so its own stands
        # where the change does. Another's may lack batches, which only the old code makes.
        self.earlier: dict[str, tuple[int, ...]] = {}
        # Queries whose state goes on under changed code, each with its last mark before the change:
        # only their checkpoint has that state, and only the old code made those batches.
        self.carried_on: dict[str, int] = {}

    def take(
        self,
        sequence: int,
        application: Application,
        last_mark: Callable[[str], int],
        *,
        mine: bool,
    ) -> Iterator[QueryVersion]:
        """Takes in the record ``sequence``, of this node or another; yields what starts with empty
        state."""
        self.application = application.digest
        for version in application.queries:
            name, before = version.query, self.of.get(version.query)
            if before is None or version.reset:
                self.lineages[name] = sequence
                self.carried_on.pop(name, None)
                self.earlier.pop(name, None)
                yield version
            elif before.digest != version.digest:
                self.carried_on[name] = last_mark(name)
                before_that = self.earlier.get(name, ())
                self.earlier[name] = (self.lineages[name], *before_that) if mine else ()
                self.lineages[name] = sequence
            self.of[name] = replace(version, reset=False)

    def states_of(self, query: str) -> tuple[int, ...]:
        """The lineage of its state, and those that go on as that here."""
        return (self.lineages[query], *self.earlier.get(query, ()))

    def stand_on(self, version: QueryVersion, lineage: int, carried_on: int | None) -> None:
        """What the records said that are no longer there."""
        self.of[version.query], self.lineages[version.query] = version, lineage
        if carried_on is not None:
            self.carried_on[version.query] = carried_on
