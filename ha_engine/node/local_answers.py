"""What the node's side of the local socket asks about the present."""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.core import Core
from ha_engine.journal import Journal
from ha_engine.types import Extent


@dataclass(frozen=True, slots=True)
class LocalAnswers:
    """All of it known to the core or the journal."""

    core: Core
    journal: Journal

    def incarnation(self) -> str | None:
        return self.core.query_control.process.incarnation

    def skipped(self, query: str, number: int) -> bool:
        return (query, number) in self.core.deployment.skips.known

    def was_made_by_other_code(self, query: str, number: int) -> bool:
        return self.core.deployment.was_made_by_other_code(query, number)

    def locate(self, first: int, last: int) -> list[Extent]:
        return self.journal.locate(first, last)
