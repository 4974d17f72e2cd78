"""What the query process reports, for the log, metrics and the status page."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from ha_engine.api.prometheus import NodeMetrics
from ha_engine.api.status import Progress, StartStep
from ha_engine.stats.counters import Tally
from ha_engine.v1 import local_pb2 as pb

log = structlog.get_logger(__name__)


class QueryObserver:
    """Spark's word on each query's newest batch, in ``progress``; what it does now, in ``step``."""

    def __init__(self, metrics: NodeMetrics, tally: Tally, clock: Callable[[], float]) -> None:
        self._metrics, self._tally, self._clock = metrics, tally, clock
        self.progress: dict[str, Progress] = {}
        self.step: StartStep | None = None

    def stepped(self, incarnation: str, step: str, seconds_ago: float) -> None:
        """The query process ``incarnation`` reached a step of its start."""
        log.info("query process step", step=step, incarnation=incarnation)
        self.step = StartStep(incarnation, step, self._clock() - seconds_ago)

    def progressed(self, query: str, told: pb.QueryProgress) -> None:
        before = self.progress.get(query, Progress())
        self.progress[query] = Progress(
            told.number,
            told.input_rows,
            told.duration_ms,
            told.watermark,
            told.dropped_by_watermark,
            told.state_rows,
            told.state_bytes,
            before.dropped_rows + told.dropped_by_watermark,
        )
        self._metrics.observe_batch(query, told.duration_ms / 1000)

    def orphaned(self) -> None:
        self._tally.orphans += 1
