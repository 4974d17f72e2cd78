"""The deployed application as the journal records it: versions, marks, batches, failures, skips.

``Deployment`` applies every record about queries, at start and at run time alike. The methods of
``Deployment`` return the bodies of new records, or actions. ``core`` decides when to append these
records and perform these actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core.marks import MarkLimits, QueryMarks
from ha_engine.core.queries import (
    ON_CHANGE_MISSING,
    QueryLife,
    QueryPlan,
    QueryState,
    RestartPolicy,
)
from ha_engine.core.shadow import BEHIND_MAX, ShadowLimits, ShadowQuery
from ha_engine.core.skips import Skips
from ha_engine.core.versions import Versions
from ha_engine.types import (
    SHADOW_SIGN,
    Application,
    Base,
    Deployed,
    EpochStart,
    Events,
    Mark,
    Position,
    Published,
    QueryVersion,
    Record,
    Shadow,
    Skip,
)


class Deployment:
    """The queries of one node.

    ``marks`` and ``lives`` have one entry for each query of the application. ``archive`` names the
    deployment from which this process loaded the application, as ``Deployed.runs`` does, or is None
    if it loaded a file that the config names. ``shadow`` is the shadow that runs beside a query,
    and no part of ``marks`` and ``lives``.
    """

    def __init__(
        self,
        digest: str,
        plans: tuple[QueryPlan, ...],
        limits: MarkLimits,
        restarts: RestartPolicy,
        archive: str | None = None,
        shadow: tuple[Shadow, str] | None = None,
        shadow_limits: ShadowLimits | None = None,
    ) -> None:
        self.digest, self._archive = digest, archive
        self.plans = {plan.name: plan for plan in plans}
        self.restarts = restarts
        self.marks = {
            plan.name: QueryMarks(plan.name, plan.streams, plan.sinks, limits) for plan in plans
        }
        self.lives = {plan.name: QueryLife(plan.name, restarts, warm=plan.warm) for plan in plans}
        self.shadow: ShadowQuery | None = None
        if shadow is not None:
            record, changed = shadow
            live, bounds = self.marks[record.query], shadow_limits or ShadowLimits()
            self.shadow = ShadowQuery(record, changed, live, restarts, bounds)
        # The queries that only the active runs, the queries that the query process must stop, and
        # those that it has not reported as stopped yet.
        self._warm = [plan.name for plan in plans if plan.warm]
        self._to_halt: list[str] = []
        self._halting: set[str] = set()
        self.versions = Versions()
        self.skips = Skips()
        # The newest mark of each query that the deployed application does not have.
        self.marks_of_others: dict[str, Mark] = {}
        # The sequence of the newest record that is neither a mark nor a published record.
        self.newest_input = 0
        # The sequence of the newest application record, which names the definitions in force.
        self.changed_at = 0
        # The sequence of the newest record that deployed an application.
        self._deployed_at = 0
        # Whether a forced failover gave up the record of the deployment that this process runs.
        self._was_given_up = False
        # The sequence up to which the journal is trimmed.
        self._trimmed_through = 0
        self._reported: dict[tuple[str, str], int] = {}
        self._trimmed: dict[str, int] = {}

    # -- what records and the outbox say -----------------------------------------------------------

    def apply(self, record: Record, *, mine: bool) -> None:
        """Apply one record.

        ``mine`` is True if this node wrote the record as the holder of the lease.
        """
        sequence = record.position.sequence
        if not isinstance(record.body, Mark | Published):
            self.newest_input = sequence
        match record.body:
            case Events() as events:
                for marks in self.marks.values():
                    marks.apply_events(sequence, events)
                if self.shadow is not None:
                    self.shadow.apply_events(sequence, events)
            case Mark() as mark if mark.query in self.marks:
                self.marks[mark.query].apply_mark(sequence, mark)
            case Mark() as mark:
                self.marks_of_others[mark.query] = mark
            case Published() as published if published.query in self.marks:
                self.marks[published.query].apply_published(sequence, published)
            case Skip(query, number):
                self.skips.apply(sequence, query, number)
                self._forget_skips(query)
            case EpochStart(_, _, forced) if forced:
                for marks in self.marks.values():
                    marks.history_was_given_up()
            case Application() as application:
                self._apply_application(sequence, application, mine=mine)
            case Deployed() as deployed:
                self.versions.deployed, self._deployed_at = deployed, sequence

    def _apply_application(self, sequence: int, application: Application, *, mine: bool) -> None:
        self.changed_at = sequence
        for version in application.queries:
            promotes = self.versions.promotes(version)
            changes = self.versions.changes(version) or promotes
            if version.query in self.marks and (changes or self.versions.rescales(version)):
                # What runs now is a former version, which must get no mark after the change.
                self.marks[version.query].ended()
                self.lives[version.query].superseded()
                if not changes:
                    self._halt([version.query])
                if promotes:
                    self.marks[version.query].continue_shadow(version.first)
        for version in self.versions.apply(sequence, application, self._last_mark, mine=mine):
            if version.query in self.marks:
                self.marks[version.query].restart_at(version.first)
                self._forget_skips(version.query)

    def lineage(self, query: str) -> int | None:
        """The record that began the query's state, or that continued it under changed code. It is
        None while no record names the query."""
        return self.versions.lineages.get(query)

    def _last_mark(self, query: str) -> int:
        return self.marks[query].last.number if query in self.marks else 0

    def restore_admitted(self, query: str, number: int, rows: int, size: int) -> None:
        if query in self.marks:
            self.marks[query].restore_admitted(number, rows, size)

    # -- records that are no longer there ----------------------------------------------------------

    def load_base(self, base: Base) -> None:
        """Load the base, which replaces the trimmed records of the journal."""
        self.versions.application, self.skips = base.application, Skips(base.skips)
        self.versions.deployed = base.deployed
        self._trimmed_through = base.position.sequence
        for one in base.queries:
            name = one.version.query
            self.versions.load_base(one)
            if name in self.marks:
                self.marks[name].load_base(one)
            else:
                self.marks_of_others[name] = one.last

    def need(self) -> int:
        """The lowest sequence after which some query still needs records (RULES.md#r28)."""
        of_queries = min(map(self._need, self.marks), default=self._trimmed_through)
        return of_queries if self.shadow is None else int(min(of_queries, self.shadow.need()))

    def _need(self, name: str) -> int:
        on_standby = self.lives[name].state is QueryState.STANDBY
        return self.marks[name].need_on_standby if on_standby else self.marks[name].need

    def forget_through(self, sequence: int) -> None:
        """Forget the marks and skips in the records up to ``sequence``, which the journal has
        trimmed."""
        self._trimmed_through = max(self._trimmed_through, sequence)
        for name, marks in self.marks.items():
            marks.forget_through(sequence)
            self._forget_skips(name)

    def _forget_skips(self, query: str) -> None:
        if query in self.marks:
            self.skips.forget(query, self.marks[query].kept_after.number)

    # -- the application record --------------------------------------------------------------------

    def change(self, committed: int) -> Application | None:
        """The application record that puts this application in force, or None if it is in force
        already (RULES.md#r23).

        It is None too if this process runs another application than the one that is deployed, since
        it leaves at once (RULES.md#r36).
        """
        if self.is_superseded(max(committed, self._deployed_at)):
            return None
        versions = tuple(self._next_version(plan, committed) for plan in self.plans.values())
        in_force = all(self.versions.of.get(v.query) == v for v in versions)
        application = self.versions.application
        if application == self.digest and in_force:
            return None
        return Application(self.digest, versions)

    @property
    def _deployed_archive(self) -> str | None:
        deployed = self.versions.deployed
        return None if deployed is None else deployed.runs

    def archive_at(self, committed: int) -> str | None:
        """The id of the archive with the application that every node should run, or None for the
        application of its file. The journal of an active decides. Another journal without a
        deployment says nothing about it: the node may lack the record."""
        known = self.versions.deployed is not None and self._deployed_at <= committed
        if known:
            return self._deployed_archive
        return None if self._was_given_up else self._archive

    @property
    def lacks_deployment(self) -> bool:
        """Whether this process runs a deployed application, and its journal has no deployment."""
        return self._archive is not None and self.versions.deployed is None

    def is_superseded(self, committed: int) -> bool:
        """Whether a committed record deploys another application than the one that this process
        runs (RULES.md#r36)."""
        return self._archive != self.archive_at(committed)

    def deploy(self, event: on.DeployAsked, committed: int) -> Deployed | None:
        """The record that deploys an application, begins a shadow or promotes one, or None while
        that is not possible."""
        before = self.versions.deployed
        number = 1 if before is None else before.number + 1
        shadow, promoted = None, None if before is None else before.promoted
        if self.promoting is not None:
            return None
        if event.shadow is not None:
            query, archive_id, archive = event.shadow
            if query not in self.marks:
                return None
            shadow = Shadow(query, number, self.marks[query].last, archive_id, archive)
        if event.promotes is not None:
            if before is None or before.shadow is None or before.shadow.name != event.promotes:
                return None
            if self.why_not_promoted(committed) is not None:
                return None
            promoted = replace(before.shadow, id="", archive="")
        return Deployed(
            number,
            event.id,
            event.name,
            event.by,
            event.at_us,
            event.archive,
            event.on_change,
            shadow,
            promoted,
        )

    # -- shadows -----------------------------------------------------------------------------------

    @property
    def promoting(self) -> str | None:
        """The query whose shadow shall take its place, until an application record has done so."""
        deployed = self.versions.deployed
        if deployed is None or deployed.promoted is None:
            return None
        query = deployed.promoted.query
        return None if self.versions.pending_promotion(query) is None else query

    def why_not_promoted(self, committed: int) -> str | None:
        """The reason why the shadow must not take the place of its query now, or None."""
        shadow = self.shadow
        if shadow is None or not self._has_shadow_at(committed):
            return "no shadow runs on this node"
        name, state = shadow.name, shadow.life.state
        if state is not QueryState.RUNNING:
            return f"shadow {name} is {state.value} on this node"
        if shadow.behind > BEHIND_MAX:
            return f"shadow {name} is {shadow.behind} batches behind its live query"
        live = self.marks[shadow.record.query]
        if live.sinks and live.published_committed(committed) < shadow.record.first.number:
            return (
                f"a sink of query {shadow.record.query} still lacks batches from before the shadow "
                "began"
            )
        return None

    def may_admit(self, query: str, lineage: str, journal_id: str) -> bool:
        """Whether the node admits a batch of this run of a query.

        Once a node runs the application of a promotion, only the run that continues the shadow may
        add to the outbox of its query. A run of the code before, or of a shadow that ended, may
        still go on in the query process (RULES.md#r38).
        """
        if SHADOW_SIGN in query:
            shadow = self.shadow
            return (
                shadow is not None
                and query == shadow.name
                and lineage == shadow.lineage(journal_id)
                and shadow.life.state is not QueryState.FAILED
            )
        if self.awaits_promotion(query):
            return False
        adopts = query in self.versions.adopting
        return not adopts or lineage == f"{journal_id}:{self.lineage(query)}"

    @property
    def runs_newest(self) -> bool:
        """Whether this process runs the newest deployment of its journal."""
        return self.versions.deployed is not None and self._archive == self._deployed_archive

    def _has_shadow_at(self, committed: int) -> bool:
        """Whether a committed record says that the shadow of this process runs. A forced failover
        may have given that record up."""
        return self.runs_newest and self._deployed_at <= committed

    def awaits_promotion(self, query: str) -> bool:
        """Whether this process runs the application of a promotion that is not in force yet, so
        that no run of the code before may go on."""
        return query == self.promoting and self.runs_newest

    def undecided(self, plans: Iterable[QueryPlan]) -> list[str]:
        """The queries of ``plans`` that change without an ``on_change``, although they have a
        state."""
        return [plan.name for plan in plans if plan.on_change is None and self._changes_state(plan)]

    def stranded(self, plans: Iterable[QueryPlan]) -> list[str]:
        """The queries of ``plans`` that change and shall keep a state which only the active has.
        Another node continues after a deployment (RULES.md#r36)."""
        of = self.versions.of
        return [
            plan.name
            for plan in plans
            if plan.warm and plan.on_change == "keep" and plan.name in of
            if of[plan.name].digest != plan.digest
        ]

    def _changes_state(self, plan: QueryPlan) -> bool:
        now = self.versions.of.get(plan.name)
        if now is None or now.digest == plan.digest or plan.name not in self.marks:
            return False
        return not self._lacks_events(plan.name) and not self._may_begin_again(plan.name)

    def _may_begin_again(self, query: str) -> bool:
        """Whether the query never ran a batch, for example because Spark refused it, so that
        ``on_change`` has no state to keep or to begin again."""
        has_run = self.marks[query].may_have_run(since=self.versions.lineages[query])
        return self._can_rebuild(query) and not has_run

    def _next_version(self, plan: QueryPlan, committed: int) -> QueryVersion:
        now = self.versions.of.get(plan.name)
        if now is None:
            through = 0 if self.versions.application is None else committed
            return self._begun(plan, Mark(plan.name, 0, through), reset=False)
        marks = self.marks[plan.name]
        if self._lacks_events(plan.name):
            first = Mark(plan.name, marks.last.number, committed)
            return self._begun(plan, first)
        promoted = self.versions.pending_promotion(plan.name)
        if promoted is not None:
            number, first = promoted.number, promoted.first
            return replace(now, digest=plan.digest, first=first, promoted=number)
        if now.digest == plan.digest:
            return now
        if self._may_begin_again(plan.name):
            return self._begun(plan, now.first)
        if plan.on_change == "keep":
            return replace(now, digest=plan.digest)
        if plan.on_change == "reset":
            first = marks.reset_after(committed, self._trimmed_through)
            return self._begun(plan, first)
        if plan.on_change == "backfill":
            return self._begun(plan, marks.backfill_after(self._trimmed_through))
        self.lives[plan.name].refused(ON_CHANGE_MISSING)
        return now

    def _begun(self, plan: QueryPlan, first: Mark, *, reset: bool = True) -> QueryVersion:
        """A version whose state begins after ``first``."""
        deployed = self.versions.deployed
        shadow = None if deployed is None else deployed.promoted
        promoted = shadow.number if shadow is not None and shadow.query == plan.name else None
        return QueryVersion(plan.name, plan.digest, first, reset, plan.partitions, promoted)

    def rescale(self, query: str, partitions: int) -> Application | None:
        """The application record that gives a query's state another number of partitions, or None
        if the state has that number (RULES.md#r35)."""
        of, digest = self.versions.of, self.versions.application
        if digest is None or query not in of or of[query].partitions == partitions:
            return None
        if self.why_not_rescaled(query) is not None:
            return None
        rescaled = {**of, query: replace(of[query], partitions=partitions)}
        return Application(digest, tuple(rescaled[name] for name in self.plans if name in rescaled))

    def why_not_rescaled(self, query: str) -> str | None:
        """The reason why the number of a query's partitions must stay, or None. The state of a
        shadow has the number with which it began (RULES.md#r38)."""
        deployed = self.versions.deployed
        shadow = None if deployed is None else deployed.shadow
        if shadow is not None and query in (shadow.query, shadow.name):
            return (
                f"a shadow runs beside query {shadow.query}; promote or discard it before you "
                "rescale the query"
            )
        if query == self.promoting:
            return f"the shadow of query {query} takes its place now; try again later"
        return None

    # -- marks and batches -------------------------------------------------------------------------

    def next_marks(
        self,
        now: float,
        committed: int,
        slowest: Callable[[str, int], int | None],
        starting: Callable[[str], bool],
        barrier: int | None = None,
    ) -> Iterator[Mark]:
        """Plan the next mark of each running query for which a mark is due.

        ``slowest(query, batch)`` returns the lowest batch of a member that is catching up with
        ``batch``, or None. ``starting(query)`` says whether a member has not reported a batch of
        the query yet. ``barrier`` is a sequence at which every query must end one batch.
        """
        for name, marks in self._running():
            behind = slowest(name, marks.admitted)
            late = name not in self._warm and starting(name)
            mark = marks.plan(now, committed, behind, starting=late, barrier=barrier)
            if mark is not None:
                yield mark

    def next_mark_at(
        self,
        committed: int,
        slowest: Callable[[str, int], int | None],
        starting: Callable[[str], bool],
        barrier: int | None = None,
    ) -> float:
        """The moment at which ``next_marks`` has a mark, if no input arrives before.

        The arguments are those of ``next_marks``.
        """
        return min(
            (
                marks.wake_at(
                    committed,
                    slowest(name, marks.admitted),
                    starting=name not in self._warm and starting(name),
                    barrier=barrier,
                )
                for name, marks in self._running()
            ),
            default=math.inf,
        )

    def _running(self) -> Iterator[tuple[str, QueryMarks]]:
        for name, marks in self.marks.items():
            if self.lives[name].state is QueryState.RUNNING:
                yield name, marks

    def running_at(self) -> dict[str, int]:
        """For each running query, the newest batch that its outbox has admitted."""
        return {name: marks.admitted for name, marks in self._running()}

    def published_in_given_up_history(self) -> Iterator[Published]:
        """The published records for batch numbers that a sink already has from a history that was
        given up (RULES.md#r26).

        The outbox drops its own batches with these numbers without publishing them.
        """
        for marks in self.marks.values():
            yield from marks.published_in_given_up_history()

    def answers(self, committed: int) -> Iterator[Mark]:
        for marks in self.marks.values():
            mark = marks.answer(committed)
            if mark is not None:
                yield mark

    def admitted(self, event: on.BatchAdmitted, *, passed: bool) -> None:
        """Note an admitted batch. ``passed`` says whether the present version of the query has
        passed it."""
        marks = self.marks[event.query]
        marks.note_admitted(event.number, event.rows, event.size)
        if passed:
            marks.note_passed(event.number)
        self.lives[event.query].advanced()

    def published(self, event: on.SinkPublished) -> Published | None:
        """The published record to append for a sink, or None if the journal already records its
        batch or a higher one."""
        if event.query not in self.marks:
            return None
        self.marks[event.query].ledger_answered(event.sink, event.batch)
        if event.batch > self.marks[event.query].last.number:
            # RULES.md#i7: another history wrote the batch in this ledger, so the ledger does not
            # prove what this history has published.
            return None
        key = (event.query, event.sink)
        known = max(self._reported.get(key, 0), self.marks[event.query].published[event.sink])
        if event.batch <= known:
            return None
        self._reported[key] = event.batch
        return Published(event.query, event.sink, event.batch)

    def trims(self, committed: int) -> Iterator[do.TrimOutbox]:
        """Remove from the outbox the batches that all sinks have by committed records
        (RULES.md#r25)."""
        for name, marks in self.marks.items():
            # A follower may run a batch after the active has published it. The outbox trims only
            # batches that are admitted on this node.
            through = min(marks.published_committed(committed), marks.admitted)
            if through > self._trimmed.get(name, 0):
                self._trimmed[name] = through
                marks.outbox.trim(through)
                yield do.TrimOutbox(name, through)
            passed = marks.skip_numbers() if self.changed_at <= committed else None
            if passed is not None:
                yield do.TrimOutbox(name, passed)
        if self.shadow is not None:
            live = self.marks[self.shadow.record.query]
            yield from self.shadow.trims(live.published_committed(committed))

    def in_flight(self) -> dict[str, int]:
        """The batch that each query runs now, for the queries that run one."""
        found = ((name, marks.in_flight) for name, marks in self.marks.items())
        return {name: number for name, number in found if number is not None}

    def needed_of_successor(self) -> dict[str, int]:
        """The batches in flight that a member must have before the lease moves to it after a death
        of the query process now (RULES.md#r22).

        No other member has the batch of a query that only the active runs. Such a batch counts from
        its second death on this node.
        """
        return {
            name: number
            for name, number in self.in_flight().items()
            if name not in self._warm or self.lives[name].died_in(number)
        }

    def is_past(self, batches: dict[str, int]) -> bool:
        return all(self.marks[name].admitted >= number for name, number in batches.items())

    def progress(self) -> tuple[tuple[str, int], ...]:
        """For each running query, the newest batch that its process has reported as admitted or
        finished."""
        highest = ((name, marks.passed) for name, marks in self.marks.items())
        return tuple((name, passed) for name, passed in highest if passed is not None)

    def caught_up(self, committed: int) -> bool:
        """Whether every query that this node runs is at most one batch behind the newest published
        batch (RULES.md#r10).

        One batch is allowed: both nodes run a batch at the same time, and the holder may finish it
        first.
        """
        return all(
            self.lives[name].state is QueryState.RUNNING
            and marks.passed is not None
            and marks.passed + 1 >= marks.published_committed(committed)
            for name, marks in self.marks.items()
            if self.lives[name].state is not QueryState.STANDBY
        )

    def backlog_events(self, stream: str | None = None) -> int:
        """The number of events that are in no batch yet, for the slowest query that is not FAILED,
        or for the slowest of those that read ``stream``."""
        return max(
            (
                marks.events_pending
                for name, marks in self.marks.items()
                if self.lives[name].state is not QueryState.FAILED
                if stream is None or stream in marks.streams
            ),
            default=0,
        )

    def unfinished(self, queries: Iterable[str]) -> list[str]:
        """The queries of these that have events in no batch yet, or a batch that a sink lacks."""
        return [
            name for name in queries if name in self.marks and not self.marks[name].all_published
        ]

    # -- life of the queries -----------------------------------------------------------------------

    @property
    def has_warm(self) -> bool:
        """Whether only the active runs some query."""
        return bool(self._warm)

    @property
    def stands_by(self) -> bool:
        """Whether only another node runs some query now."""
        return any(self.lives[name].state is QueryState.STANDBY for name in self._warm)

    def take_over(self) -> None:
        """Let this node, which is the active now, run every query (RULES.md#r33)."""
        self._was_given_up = self.lacks_deployment
        for name in self._warm:
            self.lives[name].take_over()

    def stand_by(self) -> None:
        """Stop the queries that only the active runs."""
        for name in self._warm:
            self.marks[name].ended()
            self.lives[name].stand_by()
        self._halt(self._warm)

    def _halt(self, queries: Collection[str]) -> None:
        self._to_halt += [name for name in queries if name not in self._halting]
        self._halting.update(queries)

    def must_not_run(self, query: str) -> bool:
        """Whether the query process runs the query only because it has not stopped it yet."""
        if self.awaits_promotion(query):
            return True
        return query in self._halting or self.lives[query].state is QueryState.STANDBY

    def halted(self, query: str) -> None:
        self._halting.discard(query)

    def halts(self) -> Iterator[do.HaltQuery]:
        """The queries that the query process must stop; each is returned once."""
        halts, self._to_halt = self._to_halt, []
        yield from map(do.HaltQuery, halts)

    def runs(
        self, now: float, committed: int, journal_id: str, epochs: tuple[Position, ...]
    ) -> Iterator[do.RunQuery]:
        """Start each waiting query whose version in the journal is that of the deployed
        application.

        ``epochs`` has the first position of each epoch of the journal.

        No query starts before its application record is committed. A failover could discard an
        uncommitted record, but the checkpoint would keep the lineage of that record.
        """
        for name, life in self._ready(committed):
            if life.runnable(now):
                life.started(self.versions.lineages[name])
                lineage, *earlier = (f"{journal_id}:{one}" for one in self.versions.states_of(name))
                digest, lost = self.plans[name].digest, not self._can_rebuild(name)
                initial = self.marks[name].initial
                takeover = self._takeover(name, committed, epochs) if name in self._warm else None
                partitions = self.versions.partitions.get(name, ())
                adopts = None
                if (shadow := self.versions.adopting.get(name)) is not None:
                    adopts = shadow.name, f"{journal_id}:{shadow.lineage}"
                yield do.RunQuery(
                    name,
                    lineage,
                    initial,
                    lost,
                    digest,
                    tuple(earlier),
                    takeover,
                    partitions,
                    adopts=adopts,
                )
        yield from self._runs_shadow(now, committed, journal_id)

    def _runs_shadow(self, now: float, committed: int, journal_id: str) -> Iterator[do.RunQuery]:
        shadow = self.shadow
        if shadow is None or shadow.name in self._halting or not self._has_shadow_at(committed):
            return
        reason = shadow.exceeds()
        if reason is not None and shadow.life.state is not QueryState.FAILED:
            if shadow.life.state is QueryState.RUNNING:
                self._halt([shadow.name])
            shadow.life.refused(reason)
        version = self.versions.of.get(shadow.record.query)
        if version is not None and self.changed_at <= committed:
            yield from shadow.run(now, journal_id, self._trimmed_through, version.partitions)

    def _takeover(self, name: str, committed: int, epochs: tuple[Position, ...]) -> do.Takeover:
        marks = self.marks[name]
        shared = tuple(marks.shared(epochs, committed, self._trimmed_through))
        return do.Takeover(epochs[-1].epoch, marks.published_committed(committed), shared)

    def wake_at(self, committed: int) -> float:
        """The moment at which ``runs`` has a query to start, if no input arrives before."""
        of_queries = min((life.wake_at for _, life in self._ready(committed)), default=math.inf)
        shadow = self.shadow
        if shadow is None or shadow.name in self._halting or not self._has_shadow_at(committed):
            return of_queries
        in_force = shadow.record.query in self.versions.of and self.changed_at <= committed
        return min(of_queries, shadow.life.wake_at) if in_force else of_queries

    def _ready(self, committed: int) -> Iterator[tuple[str, QueryLife]]:
        for name, life in self.lives.items() if self.changed_at <= committed else ():
            waits = self.marks[name].waits_for_outbox or name in self._halting
            if self._is_current(name) and not waits:
                yield name, life

    def _can_rebuild(self, name: str) -> bool:
        """Whether a replay can rebuild the query's state.

        The journal must have all records of the state, and a single version of the code must have
        made it.
        """
        began = self.marks[name].initial.through
        return name not in self.versions.carried_on and began >= self._trimmed_through

    def _is_current(self, name: str) -> bool:
        version, digest = self.versions.of.get(name), self.plans[name].digest
        return version is not None and version.digest == digest and not self._lacks_events(name)

    def _lacks_events(self, name: str) -> bool:
        """Whether the journal trimmed events that the query lacks, because the application did not
        have the query then."""
        return self.marks[name].last.through < self._trimmed_through

    def process_connected(self) -> None:
        """Set every running query to WAITING, since a query process asks which queries to start.

        An earlier node process may have left it with queries of its own time as the active.
        """
        for life in self.lives.values():
            life.superseded()
        self._to_halt, self._halting = [], set()
        # A rescaled query may still run with the former number of partitions.
        halted = {*self._warm, *self.versions.rescaled}
        self._halt([name for name in self.marks if name in halted])
        if self.shadow is not None:
            self.shadow.connected()

    def process_died(self, now: float, reason: str, *, by_host: bool) -> None:
        self._to_halt, self._halting = [], set()
        if self.shadow is not None and self.shadow.died(now, reason):
            by_host = True
        for name, life in self.lives.items():
            marks = self.marks[name]
            life.process_died(now, marks.in_flight, reason, by_host=by_host)
            marks.ended()

    def failed(self, now: float, event: on.QueryFailed) -> None:
        self.marks[event.query].ended()
        life = self.lives[event.query]
        if event.by_host:
            life.failed_by_host(now, event.number, event.reason)
        else:
            life.failed(now, event.number, event.reason)

    def shadow_failed(self, now: float, number: int, reason: str) -> None:
        if self.shadow is not None:
            self.shadow.failed(now, number, reason, self._trimmed_through)

    def lacks_mark_after(self, query: str, number: int) -> bool:
        """Whether the journal no longer has the mark that follows mark ``number``."""
        marks = self.marks.get(query.partition(SHADOW_SIGN)[0])
        return marks is not None and number < marks.kept_after.number

    def skip(self, event: on.SkipAsked) -> Skip | None:
        """The skip record for the batch at which a query became FAILED (RULES.md#i15).

        The query runs again once the skip record is committed (RULES.md#i5). The query runs again
        at once if it failed before any batch, or at a batch that is skipped or in the outbox
        already, unless that batch may be of the code before a change.
        """
        life, failure = self.lives[event.query], self.lives[event.query].failure
        if failure is None or not self._may_revive(event.query):
            return None
        skipped = (event.query, failure.number) in self.skips.known
        admitted = failure.number <= self.marks[event.query].admitted
        by_this_code = not self.versions.may_be_of_other_code(event.query, failure.number)
        if skipped or (admitted and by_this_code):
            life.revive()
            return None
        return Skip(event.query, failure.number, event.by, failure.reason)

    def retry(self, query: str) -> None:
        """Let a FAILED query run again, with the same batch.

        A retry needs no record, since it changes no batch.
        """
        if self._may_revive(query):
            self.lives[query].revive()

    def _may_revive(self, query: str) -> bool:
        failed = self.lives[query].state is QueryState.FAILED
        return failed and self._is_current(query) and not self.skips.pending(query)

    def revive_skipped(self, committed: int) -> None:
        """Let each FAILED query run again whose skip record is committed.

        Spark's input must not depend on a skip record that a failover could discard (RULES.md#i5).
        """
        for query in self.skips.committed(committed):
            life = self.lives.get(query)
            if life is not None and life.state is QueryState.FAILED:
                life.revive()
