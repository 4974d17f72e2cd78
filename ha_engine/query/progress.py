"""Reports Spark's progress of each batch to the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import structlog
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from ha_engine.query.kafka_stream import OBSERVED
from ha_engine.query.offsets import mark_of
from ha_engine.query.reports import Reports
from ha_engine.v1 import local_pb2 as pb

log = structlog.get_logger(__name__)


class ProgressListener(StreamingQueryListener):  # type: ignore[misc]
    """Listens only to progress, since the runner's threads learn of a query's end earlier.

    ``skew`` takes the name and the run of a query whose batch has ended.
    """

    def __init__(
        self,
        reports: Reports,
        batch_ended: Callable[[], None],
        skew: Callable[[str, str], float],
    ) -> None:
        self._reports, self._batch_ended, self._skew = reports, batch_ended, skew

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = progress_of(event.progress)
        for one in progress.invalid:
            log.error(
                "invalid records skipped",
                query=event.progress.name,
                stream=one.stream,
                records=one.records,
                partition=one.partition,
                offset=one.offset,
                problem=one.problem,
            )
        if progress.number and event.progress.name:
            if progress.state_partitions:
                progress.skew = self._skew(event.progress.name, str(event.progress.runId))
            self._reports.progress(event.progress.name, progress)
            self._batch_ended()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


def progress_of(spark: StreamingQueryProgress) -> pb.QueryProgress:
    """Convert Spark's progress to a message, whose ``number`` is 0 if no batch has ended."""
    operators = spark.stateOperators
    return pb.QueryProgress(
        number=max((mark_of(source.endOffset) for source in spark.sources), default=0),
        input_rows=max(spark.numInputRows, 0),
        duration_ms=max(spark.batchDuration, 0),
        late_rows=sum(one.numRowsDroppedByWatermark for one in operators),
        state_rows=sum(one.numRowsTotal for one in operators),
        state_bytes=sum(one.memoryUsedBytes for one in operators),
        state_partitions=max((one.numShufflePartitions for one in operators), default=0),
        watermark=spark.eventTime.get("watermark", ""),
        invalid=list(_invalid(spark)),
    )


def _invalid(spark: StreamingQueryProgress) -> Iterator[pb.InvalidRecords]:
    for name, observed in sorted(spark.observedMetrics.items()):
        if name.startswith(OBSERVED) and observed.first is not None:
            yield pb.InvalidRecords(
                stream=name.removeprefix(OBSERVED),
                records=observed.records,
                partition=observed.first.partition,
                offset=observed.first.offset,
                problem=observed.first.problem,
            )
