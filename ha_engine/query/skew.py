"""How unevenly a query's rows are divided among the partitions of its state.

Spark reports no rows per partition of a state. But one task works on each partition, and Spark's
driver keeps how many rows each task got by a shuffle.
"""

from __future__ import annotations

import math
import time
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

LOOK_SECONDS = 10.0
"""A look asks the JVM some twenty times, so it is not taken after each batch."""
JOBS_LOOKED_AT = 4
"""The number of newest jobs in a look. The driver keeps a thousand, and those of empty batches read
no rows."""
_UNKNOWN = 0.0


class SkewWatch:
    """Looks at the tasks of recent batches, at most once in LOOK_SECONDS for each query."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._look_at: dict[str, float] = {}
        self._found: dict[str, float] = {}

    def of(self, query: str, run_id: str) -> float:
        """The rows of the busiest task divided by the mean of all tasks, or 0 if it is not known.

        The tasks are those that read most rows of a shuffle, in one of the newest jobs of the run
        ``run_id`` of ``query``. A look that finds none keeps the result of the look before.
        """
        now = time.monotonic()
        if now >= self._look_at.get(query, -math.inf):
            self._look_at[query] = now + LOOK_SECONDS
            try:
                found = self._look(run_id)
            except Py4JError:  # Spark has forgotten a job or a stage meanwhile
                found = _UNKNOWN
            self._found[query] = found or self._found.get(query, _UNKNOWN)
        return self._found[query]

    def _look(self, run_id: str) -> float:
        context = self._spark._jsparkSession.sparkContext()
        store = context.statusStore()
        # Spark runs the jobs of a query in a group that is named after the run.
        jobs = sorted(context.statusTracker().getJobIdsForGroup(run_id), reverse=True)
        for job in jobs[:JOBS_LOOKED_AT]:
            ids = store.job(job).stageIds()
            stages = [store.lastStageAttempt(ids.apply(at)) for at in range(ids.size())]
            ended = [stage for stage in stages if stage.status().toString() == "COMPLETE"]
            busiest = max(ended, key=lambda stage: stage.shuffleReadRecords(), default=None)
            if busiest is not None and busiest.shuffleReadRecords():
                return self._skew_of(store, busiest)
        return _UNKNOWN

    def _skew_of(self, store: Any, stage: Any) -> float:
        gateway = self._spark.sparkContext._gateway
        quantiles = gateway.new_array(gateway.jvm.double, 1)
        quantiles[0] = 1.0
        tasks = store.taskSummary(stage.stageId(), stage.attemptId(), quantiles)
        if not tasks.isDefined():
            return _UNKNOWN
        most = float(tasks.get().shuffleReadMetrics().readRecords().apply(0))
        return most * float(stage.numTasks()) / float(stage.shuffleReadRecords())
