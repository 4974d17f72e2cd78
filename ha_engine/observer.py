"""What the local socket tells of the query process, for metrics and the status page."""

from __future__ import annotations

from ha_engine.api.status import Progress
from ha_engine.metrics import NodeMetrics
from ha_engine.tally import Tally
from ha_engine.v1 import local_pb2 as pb


class QueryObserver:
    """Spark's word on each query's newest batch, in ``progress``."""

    def __init__(self, metrics: NodeMetrics, tally: Tally) -> None:
        self._metrics, self._tally = metrics, tally
        self.progress: dict[str, Progress] = {}

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
