"""Adapters through which sync, the query process, the status and operators use core and driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from ha_engine.api.prometheus import NodeMetrics
from ha_engine.api.status import Executors, Progress, StartStep
from ha_engine.connectors.kafka.log import ends_of
from ha_engine.core import Core, QueryState
from ha_engine.core import inputs as on
from ha_engine.core.queries import ON_CHANGE_MISSING
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.node.driver import Driver
from ha_engine.receive.log_history import LogHistory
from ha_engine.stats.counters import NodeCounters
from ha_engine.sync import Hello, Report
from ha_engine.types import SHADOW_SIGN, Extent, Position
from ha_engine.v1 import local_pb2 as pb

PENDING_BYTES_MAX = 32 << 20
"""The sync stage stops reading a link while the journal's writer has more bytes than this to write.
Then gRPC's flow-control window fills, and the peer stops sending until the disk has caught up."""


class SyncOwner:
    """Connects the sync stage to the driver and the journal's writer."""

    def __init__(
        self,
        driver: Driver,
        writer: JournalWriter,
        hello: Hello,
        report: Callable[[], Report],
    ) -> None:
        self._driver, self._writer, self._hello = driver, writer, hello
        self.report = report

    def hello(self) -> Hello:
        return replace(self._hello, group_id=self._driver.core.group_id or "")

    def committed(self) -> int:
        return self._driver.core.journal.committed

    def handle(self, event: on.Input) -> None:
        self._driver.handle(event)

    async def wait_for_space(self) -> None:
        await self._writer.wait_for_space(PENDING_BYTES_MAX)

    def fail(self, error: BaseException) -> None:
        self._driver.fail(error)


@dataclass(frozen=True, slots=True)
class LocalAnswers:
    """Answers the questions of the query process, and of its executors, from the core and the
    journal."""

    core: Core
    journal: Journal
    logs: LogHistory

    @property
    def group_id(self) -> str | None:
        return self.core.group_id

    def has(self, position: Position) -> bool:
        return self.core.journal.has(position)

    def incarnation(self) -> str | None:
        return self.core.query_control.process.incarnation

    def skipped(self, query: str, number: int) -> bool:
        # A shadow reads the batches of its live query.
        return (query.partition(SHADOW_SIGN)[0], number) in self.core.deployment.skips.known

    def may_admit(self, query: str, lineage: str) -> bool:
        journal_id = self.core.identity.journal_id
        return self.core.deployment.may_admit(query, lineage, journal_id)

    def may_be_of_other_code(self, query: str, number: int) -> bool:
        return self.core.deployment.versions.may_be_of_other_code(query, number)

    def lacks_mark_after(self, query: str, number: int) -> bool:
        return self.core.deployment.lacks_mark_after(query, number)

    def lacks_records_from(self, first: int) -> bool:
        return first < self.journal.first

    def log_ends(self, stream: str, sequence: int) -> str | None:
        self.logs.forget_before(self.journal.first)
        offset = self.logs.at(stream, sequence)
        return None if offset is None else ends_of(offset)

    def locate(self, first: int, last: int) -> list[Extent]:
        return self.journal.locate(first, last)


log = structlog.get_logger(__name__)


class QueryObserver:
    """Keeps the reports of the query process: the newest batch of each query, the last step of the
    process's start, and its executors."""

    def __init__(
        self, metrics: NodeMetrics, counters: NodeCounters, clock: Callable[[], float]
    ) -> None:
        self._metrics, self._counters, self._clock = metrics, counters, clock
        self.progress: dict[str, Progress] = {}
        # By query, the newest batch whose skipped records are counted.
        self._counted_through: dict[str, int] = {}
        self.step: StartStep | None = None
        self.executors: Executors | None = None

    def stepped(self, incarnation: str, step: str, seconds_ago: float) -> None:
        """Note that the query process ``incarnation`` began a step of its start ``seconds_ago``."""
        log.info("query process step", step=step, incarnation=incarnation)
        self.step = StartStep(incarnation, step, self._clock() - seconds_ago)

    def progressed(self, query: str, update: pb.QueryProgress) -> None:
        before = self.progress.get(query, Progress())
        self.progress[query] = Progress(
            update.number,
            update.input_rows,
            update.duration_ms,
            update.watermark,
            update.late_rows,
            update.state_rows,
            update.state_bytes,
            before.dropped_rows + update.late_rows,
            *self._invalid(query, update),
            update.state_partitions,
            update.skew,
        )
        if SHADOW_SIGN not in query:
            self._metrics.observe_batch(query, update.duration_ms / 1000)

    def saw_executors(self, report: pb.ReportExecutorsRequest) -> None:
        self.executors = Executors(
            report.incarnation,
            report.application,
            report.live,
            report.wanted,
            report.master_connected,
        )

    def _invalid(self, query: str, update: pb.QueryProgress) -> tuple[int, str]:
        """The count and the first place of skipped records. A repeated batch counts none again."""
        before = self.progress.get(query, Progress())
        through = self._counted_through.get(query, 0)
        self._counted_through[query] = max(through, update.number)
        if not update.invalid or update.number <= through:
            return before.invalid_records, before.invalid_at
        one = update.invalid[0]
        at = f"stream {one.stream}: partition {one.partition}, offset {one.offset}: {one.problem}"
        return before.invalid_records + sum(each.records for each in update.invalid), at

    def orphaned(self) -> None:
        self._counters.orphans += 1


@dataclass(frozen=True, slots=True)
class OperatorRequests:
    """Requests of operators. Each method returns the reason for its refusal, or an empty string if
    it has accepted the request. ``no_rescale`` is the reason why no query can be rescaled."""

    core: Core
    handle: Callable[[on.Input], None]
    no_rescale: str = ""

    def switch_over(self, to: str | None, by: str) -> str:
        refusal = self.core.why_no_switchover(to)
        if refusal is None:
            self.handle(on.SwitchoverAsked(to, by))
        return refusal or ""

    def skip(self, query: str, by: str) -> str:
        if SHADOW_SIGN in query:
            live = query.partition(SHADOW_SIGN)[0]
            return f"{query} runs the batches of query {live}; retry it, or discard it"
        refusal = self._why_not(query, "skip", needs_active=True)
        if not refusal:
            self.handle(on.SkipAsked(query, by))
        return refusal

    def retry(self, query: str) -> str:
        refusal = self._why_not(query, "retry", needs_active=False)
        if not refusal:
            self.handle(on.RetryAsked(query))
        return refusal

    def rescale(self, query: str, partitions: int) -> str:
        deployment = self.core.deployment
        refusal = self.core.why_no_order() or self.no_rescale
        refusal = refusal or deployment.why_not_rescaled(query) or ""
        if not refusal:
            self.handle(on.RescaleAsked(query, partitions))
        return refusal

    def _why_not(self, query: str, what: str, *, needs_active: bool) -> str:
        shadow = self.core.deployment.shadow
        if shadow is not None and query == shadow.name:
            life = shadow.life
        else:
            life = self.core.deployment.lives[query]
        if life.state is not QueryState.FAILED:
            return f"query {query} has not failed; there is nothing to {what}"
        if needs_active and (refusal := self.core.why_no_order()):
            return refusal
        if life.failure is not None and life.failure.reason == ON_CHANGE_MISSING:
            return f"a {what} does not help query {query}: {ON_CHANGE_MISSING}"
        return ""
