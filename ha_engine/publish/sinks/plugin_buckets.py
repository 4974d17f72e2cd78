"""A sink of a plug-in with ``buckets``, whose rows Spark's tasks deliver (RULES.md#r34).

The query process asks the node to admit a batch after every bucket has it, so the node delivers
nothing. It claims the buckets of a kind with a ledger of its own, or else moves the sink's one
ledger row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ClassVar, cast

import pyarrow as pa
from pydantic import BaseModel

from ha_engine.plugins import Claim, LedgerSinkPlugin, OutputBatch, SinkPlugin
from ha_engine.publish.sink import Deadline
from ha_engine.publish.sinks.plugin import PluginSink

CLAIMS_AT_ONCE = 8


class Buckets:
    """Implements ``plugins.LedgerSinkPlugin`` with an instance for each bucket.

    ``last_mark`` returns the query's newest mark in the journal. ``claim`` and ``close`` leave no
    connection open, since the tasks write.
    """

    Options: ClassVar[type[BaseModel]] = BaseModel
    guarantee: ClassVar[str] = "that of each bucket"

    def __init__(self, buckets: Sequence[SinkPlugin], last_mark: Callable[[], int]) -> None:
        self._buckets, self._last_mark = buckets, last_mark
        self._claim: Claim | None = None

    def prepare(self, schema: pa.Schema) -> None:
        """Ask one bucket whether it takes rows of ``schema``."""
        self._buckets[0].prepare(schema)

    def claim(self, claim: Claim) -> int:
        """Claim all buckets, and return the last batch that every bucket has.

        A bucket may have a batch that the journal does not have, because a forced failover gave it
        up. Then return the number of that batch, which must not be used again (RULES.md#r26).
        """
        with ThreadPoolExecutor(CLAIMS_AT_ONCE, thread_name_prefix="claim") as threads:
            last = list(threads.map(lambda bucket: _claimed(bucket, claim), self._buckets))
        self._claim = claim
        return min(last) if max(last) <= self._last_mark() else max(last)

    def deliver(self, batch: OutputBatch) -> None:
        """Do nothing if tasks have delivered the batch, which then has no columns.

        The first bucket gets the rows of a batch that was admitted before the query had buckets.
        """
        if not batch.read().column_names:
            return
        without_rows = replace(batch, rows=0)
        for bucket in self._buckets:
            if self._claim is None:  # the node has the ledger, which needs no batch without rows
                bucket.deliver(batch)
                return
            if cast(LedgerSinkPlugin, bucket).claim(self._claim) < batch.number:
                bucket.deliver(batch if bucket is self._buckets[0] else without_rows)
            bucket.close()

    def close(self) -> None:
        """Close all buckets."""
        for bucket in self._buckets:
            bucket.close()


def _claimed(bucket: SinkPlugin, claim: Claim) -> int:
    try:
        return cast(LedgerSinkPlugin, bucket).claim(claim)
    finally:
        bucket.close()


class BucketedPluginSink(PluginSink):
    """Implements ``publish.Sink``. Its plug-in is ``Buckets``."""

    _is_prepared = False
    _claimed = 0

    def is_ready(self, epoch: int) -> bool:
        """Whether tasks may write: the plug-in takes the rows, and ``epoch`` has claimed the
        sink."""
        return self._is_prepared and self._claimed == epoch

    def prepare(self, schema: pa.Schema) -> None:
        super().prepare(schema)
        self._is_prepared = True

    def claim(self, epoch: int, start_after: int, group_id: str, deadline: Deadline) -> int:
        self._claimed = 0  # a claim may end what a task of this epoch writes meanwhile
        through = super().claim(epoch, start_after, group_id, deadline)
        self._claimed = epoch
        return through
