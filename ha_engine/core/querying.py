"""The queries' side of a node: one process, what runs in it, and what its batches come to.

The same on every node, whoever holds the lease. Which marks there are, ``tenure`` decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.barrier import are_finished
from ha_engine.core.deployment import Deployment
from ha_engine.core.digests import Digests
from ha_engine.core.process import QueryProcess
from ha_engine.types import Cut


@dataclass(frozen=True, slots=True)
class Broke:
    """A query or its process died while it ran ``in_flight``: batch numbers by query."""

    why: str
    in_flight: dict[str, int]


class Querying:
    """``owner`` names this node process in the incarnations that it starts."""

    def __init__(self, owner: str, deployment: Deployment) -> None:
        self.deployment, self.digests = deployment, Digests()
        self.process = QueryProcess(owner, deployment.restarts)
        self._wanted: Cut | None = None
        # What the batches of the one that is being taken came to.
        self._taking: tuple[tuple[str, int, str], ...] = ()

    def is_about_a_gone_query(self, event: on.Input) -> bool:
        """A query process that outlived a change of the application still speaks of what it ran."""
        match event:
            case (
                on.MarkWanted(query)
                | on.BatchAdmitted(query)
                | on.QueryFailed(query)
                | on.QueryRefused(query)
                | on.SkipAsked(query)
                | on.RetryAsked(query)
            ):
                return query not in self.deployment.marks
            case _:
                return False

    def hear(self, now: float, event: on.Input) -> Broke | None:
        match event:
            case on.MarkWanted():
                self.deployment.marks[event.query].asked(now, event.after)
            case on.BatchAdmitted():
                self.deployment.admitted(event)
                self.process.proved_itself()
            case on.QueryProcessAdopted():
                self.process.adopt(event.incarnation)
            case on.QueryProcessAttended():
                if self.process.attend(event.incarnation):
                    self.deployment.attended()
            case on.QueryProcessGone():
                return self._gone(now, event)
            case on.QueryFailed():
                return self._failed(now, event)
            case on.QueryRefused():
                self.deployment.lives[event.query].refused(event.reason)
            case on.RetryAsked():
                self.deployment.retry(event.query)
            case _:
                raise TypeError(f"no step for {event!r}")
        return None

    def _gone(self, now: float, event: on.QueryProcessGone) -> Broke | None:
        if not self.process.gone(now, event.incarnation, event.reason):
            return None
        in_flight = self.deployment.in_flight()
        self.deployment.process_died(now, event.reason)
        return Broke(f"the query process died: {event.reason}", in_flight)

    def _failed(self, now: float, event: on.QueryFailed) -> Broke:
        in_flight = self.deployment.in_flight()
        self.deployment.failed(now, event)
        return Broke(f"query {event.query} failed: {event.reason}", in_flight)

    def run(self, now: float, journal_id: str) -> Iterator[do.Action]:
        """Starts the process where none is, and the queries in one that asks for them."""
        incarnation = self.process.start(now)
        if incarnation is not None:
            yield do.StartQueryProcess(incarnation)
        if self.process.attended:
            yield from self.deployment.runs(now, journal_id)

    def capture(self, cut: Cut) -> None:
        """A snapshot that stands there is wanted of this node, once its queries are past it."""
        self._wanted = cut

    def captures(self) -> Iterator[do.Action]:
        cut = self._wanted
        if cut is None or not are_finished(self.deployment, cut.batches):
            return
        came_to = tuple((*batch, self.digests.mine(*batch) or "") for batch in cut.batches)
        if all(digest for *_, digest in came_to):
            self._wanted, self._taking = None, came_to
            yield do.TakeSnapshot(cut)

    def answer_of(
        self, epoch: int, event: on.SnapshotTaken | on.SnapshotFailed
    ) -> say.SnapshotAnswer:
        """What to tell the holder of ``epoch``, with what the batches came to here."""
        cut = event.cut
        if isinstance(event, on.SnapshotFailed):
            return say.SnapshotFailed(epoch, cut.request, event.reason)
        return say.SnapshotTaken(epoch, cut.request, event.draft, self._taking)

    def warm(self, committed: int) -> bool:
        """R10: the queries run, are as far as what is published, and no batch differed."""
        caught_up = self.deployment.caught_up(committed)
        return self.process.attended and not self.digests.differing and caught_up

    def batches(self) -> tuple[tuple[str, int], ...]:
        """How far each query that runs has come."""
        return self.deployment.progress() if self.process.attended else ()
