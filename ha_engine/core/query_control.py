"""Control the queries of a node: the query process, the queries in it, and their batches.

Active and passive nodes control their queries in the same way. Only ``term``, on the active, plans
marks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.barrier import are_finished
from ha_engine.core.deployment import Deployment
from ha_engine.core.digests import Digests
from ha_engine.core.process import QueryProcessState
from ha_engine.types import SHADOW_SIGN, Position, SnapshotPlace

ShadowInput = on.MarkWanted | on.BatchAdmitted | on.QueryFailed | on.QueryRefused | on.RetryAsked


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The death of a query or of the query process. ``in_flight`` has the batch number that each
    query was running. A member that has all batches of ``needed`` may take over.

    The digest of a batch in flight may never arrive, so this node gives up the requested snapshot
    of ``place``.
    """

    reason: str
    in_flight: dict[str, int]
    needed: dict[str, int]
    place: SnapshotPlace | None = None


@dataclass(frozen=True, slots=True)
class _SnapshotRequest:
    """A snapshot that the holder of ``epoch`` requested.

    ``digests`` has the digests of the last batches that the snapshot contains.
    """

    epoch: int
    place: SnapshotPlace
    digests: tuple[tuple[str, int, str], ...] = ()


class QueryControl:
    """The queries of this node.

    ``owner`` identifies this node process in the names of its incarnations. ``journal_id`` is a
    part of each lineage.
    """

    def __init__(self, owner: str, journal_id: str, deployment: Deployment) -> None:
        self.deployment, self._journal_id = deployment, journal_id
        self.digests = Digests(may_differ=deployment.versions.may_differ)
        self.process = QueryProcessState(owner, deployment.restarts)
        # The snapshot request that is not begun yet, and the request that was begun last.
        self._wanted: _SnapshotRequest | None = None
        self._taking: _SnapshotRequest | None = None

    def names_removed_query(self, event: on.Input) -> bool:
        """Whether ``event`` names a query that the application no longer has.

        A query process that outlived a change of the application still reports on such queries.
        """
        match event:
            case (
                on.MarkWanted(query)
                | on.BatchAdmitted(query)
                | on.OutboxRestored(query)
                | on.QueryFailed(query)
                | on.QueryRefused(query)
                | on.QueryHalted(query)
                | on.SkipAsked(query)
                | on.RetryAsked(query)
                | on.RescaleAsked(query)
            ):
                return query not in self.deployment.marks and not self._is_of_shadow(event)
            case on.BatchDigested(query):
                # Nobody compares the digests of shadows.
                return SHADOW_SIGN in query
            case _:
                return False

    def _is_of_shadow(self, event: on.Input) -> bool:
        """Whether ``event`` says something of the shadow that a shadow can do."""
        shadow = self.deployment.shadow
        if shadow is None or not isinstance(event, ShadowInput | on.QueryHalted):
            return False
        return event.query == shadow.name

    def handle(self, now: float, event: on.Input) -> Breakdown | None:
        if self._is_of_shadow(event) and isinstance(event, ShadowInput):
            self._on_shadow(now, event)
            return None
        match event:
            case on.MarkWanted(query, after, lineage):
                # A former version gets no mark, since Spark is about to stop it.
                if self._is_present(query, lineage):
                    self.deployment.marks[query].asked(now, after)
            case on.BatchAdmitted(query, lineage=lineage):
                self.deployment.admitted(event, passed=self._is_present(query, lineage))
                self.process.proved_itself()
            case on.OutboxRestored(query, left):
                self.deployment.marks[query].outbox_restored(left)
            case on.QueryProcessAdopted():
                self.process.adopt(event.incarnation)
            case on.QueryProcessAttended():
                if self.process.connect(event.incarnation):
                    self.deployment.process_connected()
            case on.QueryProcessGone():
                return self._ended(now, event)
            case on.QueryFailed(query, lineage=lineage):
                return self._failed(now, event) if self._is_present(query, lineage) else None
            case on.QueryRefused(query, reason, lineage):
                if self._is_present(query, lineage):
                    self.deployment.lives[query].refused(reason)
            case on.QueryHalted(query):
                self.deployment.halted(query)
            case on.RetryAsked():
                self.deployment.retry(event.query)
            case _:
                raise TypeError(f"no step for {event!r}")
        return None

    def _on_shadow(self, now: float, event: ShadowInput) -> None:
        """Note what the query process or an operator says of the shadow, which moves no lease."""
        shadow = self.deployment.shadow
        assert shadow is not None
        match event:
            case on.MarkWanted(_, after, lineage):
                if lineage == shadow.lineage(self._journal_id):
                    shadow.asked(after)
            case on.BatchAdmitted(_, number, _, size):
                shadow.note_admitted(number, size)
            case on.QueryFailed(_, number, reason, lineage):
                if lineage == shadow.lineage(self._journal_id):
                    self.deployment.shadow_failed(now, number, reason)
            case on.QueryRefused(_, reason):
                shadow.life.refused(reason)
            case on.RetryAsked():
                shadow.retry()

    def _ended(self, now: float, event: on.QueryProcessGone) -> Breakdown | None:
        if not self.process.ended(now, event.incarnation, event.reason):
            return None
        in_flight, needed = self.deployment.in_flight(), self.deployment.needed_of_successor()
        self.deployment.process_died(now, event.reason, by_host=event.by_host)
        reason = f"the query process died: {event.reason}"
        return Breakdown(reason, in_flight, needed, self._give_up())

    def _failed(self, now: float, event: on.QueryFailed) -> Breakdown:
        in_flight = self.deployment.in_flight()
        self.deployment.failed(now, event)
        reason = f"query {event.query} failed: {event.reason}"
        return Breakdown(reason, in_flight, in_flight, self._give_up())

    def _give_up(self) -> SnapshotPlace | None:
        request, self._wanted = self._wanted, None
        if request is None:
            return None
        self._taking = request
        return request.place

    def answers(self, committed: int) -> Iterator[do.AnswerMark]:
        for mark in self.deployment.answers(committed):
            yield do.AnswerMark(mark, self._lineage(mark.query))
        shadow = self.deployment.shadow
        if shadow is not None and (next_one := shadow.answer()) is not None:
            yield do.AnswerMark(next_one, shadow.lineage(self._journal_id))

    def _is_present(self, query: str, lineage: str | None) -> bool:
        """Whether ``lineage`` is that of the query that this node shall run.

        None is the lineage of a batch from a snapshot, which is only restored for the present
        version.
        """
        if self.deployment.must_not_run(query):
            return False
        return lineage is None or lineage == self._lineage(query)

    def _lineage(self, query: str) -> str:
        """The lineage of the query's state, as in the RunQuery that starts the query."""
        return f"{self._journal_id}:{self.deployment.lineage(query)}"

    def run(
        self, now: float, committed: int, epochs: tuple[Position, ...], *, starts: bool = True
    ) -> Iterator[do.Action]:
        """Start the query process if none runs, and start the queries once that process asks for
        them.

        ``epochs`` has the first position of each epoch of the journal. Without ``starts`` no query
        process is started.
        """
        incarnation = self.process.start(now) if starts else None
        if incarnation is not None:
            yield do.StartQueryProcess(incarnation)
        if self.process.connected:
            yield from self.deployment.halts()
            yield from self.deployment.runs(now, committed, self._journal_id, epochs)

    def wake_at(self, committed: int, *, starts: bool = True) -> float:
        """The moment at which ``run`` has something to start, if no input arrives before."""
        queries = self.deployment.wake_at(committed) if self.process.connected else math.inf
        return min(self.process.wake_at if starts else math.inf, queries)

    def request_snapshot(self, epoch: int, place: SnapshotPlace) -> None:
        """Note a request for a snapshot at ``place``.

        The snapshot begins once the queries have finished the batches of that place.
        """
        self._wanted = _SnapshotRequest(epoch, place)

    def drop_snapshot_request(self) -> None:
        """Drop the pending snapshot request, whose holder is gone or was replaced by another."""
        self._wanted = None

    def begin_snapshot(self) -> Iterator[do.Action]:
        request = self._wanted
        if request is None or not are_finished(self.deployment, request.place.batches):
            return
        digests = tuple(
            (*batch, self.digests.mine(*batch) or "") for batch in request.place.batches
        )
        if all(digest for *_, digest in digests):
            self._wanted, self._taking = None, replace(request, digests=digests)
            yield do.TakeSnapshot(request.place)

    def answer_of(self, event: on.SnapshotTaken | on.SnapshotFailed) -> say.SnapshotAnswer | None:
        """The answer to the holder that requested the snapshot, or None if a newer request was
        begun."""
        request = self._taking
        if request is None or request.place != event.place:
            return None
        epoch, number = request.epoch, request.place.request
        if isinstance(event, on.SnapshotFailed):
            return say.SnapshotFailed(epoch, number, event.reason)
        return say.SnapshotTaken(epoch, number, event.draft, request.digests)

    def warm(self, committed: int) -> bool:
        """Whether all queries run and keep up with the published batches, and no digest of a batch
        differed (RULES.md#r10)."""
        caught_up = self.deployment.caught_up(committed)
        return self.process.connected and not self.digests.differing and caught_up

    def batches(self) -> tuple[tuple[str, int], ...]:
        """The newest batch of each query that runs."""
        return self.deployment.progress() if self.process.connected else ()
