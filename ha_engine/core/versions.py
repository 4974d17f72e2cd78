"""Which definition of each query the journal says is in force, and where its state began (R23)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ha_engine.types import Application, QueryVersion


class Versions:
    """Of every query that an application record named, whether the application still has it."""

    def __init__(self) -> None:
        self.application: str | None = None
        self.of: dict[str, QueryVersion] = {}
        # The sequence of the record that began a query's state; names the checkpoint that fits it.
        self.lineages: dict[str, int] = {}
        # Queries whose state goes on under changed code, each with its last mark before the change:
        # only their checkpoint has that state, and only the old code made those batches.
        self.carried_on: dict[str, int] = {}

    def take(
        self, sequence: int, application: Application, last_mark: Callable[[str], int]
    ) -> Iterator[QueryVersion]:
        """Takes in the record ``sequence``; yields what starts with empty state."""
        self.application = application.digest
        for version in application.queries:
            name, before = version.query, self.of.get(version.query)
            if before is None or version.reset:
                self.lineages[name] = sequence
                self.carried_on.pop(name, None)
                yield version
            elif before.digest != version.digest:
                self.carried_on[name] = last_mark(name)
            self.of[name] = replace(version, reset=False)

    def stand_on(self, version: QueryVersion, lineage: int, carried_on: int | None) -> None:
        """What the records said that are no longer there."""
        self.of[version.query], self.lineages[version.query] = version, lineage
        if carried_on is not None:
            self.carried_on[version.query] = carried_on
