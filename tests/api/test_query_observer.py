"""The count of records that queries skipped, over batches that Spark runs again."""

from __future__ import annotations

from ha_engine.api.prometheus import NodeMetrics
from ha_engine.node.adapters import QueryObserver
from ha_engine.stats.counters import NodeCounters
from ha_engine.v1 import local_pb2 as pb


def batch(number: int, *offsets: int) -> pb.QueryProgress:
    found = [
        pb.InvalidRecords(stream="s", records=2, partition=1, offset=offset, problem="no JSON")
        for offset in offsets
    ]
    return pb.QueryProgress(number=number, invalid=found)


def test_repeated_batches_count_no_skipped_record_again() -> None:
    observer = QueryObserver(NodeMetrics("g", "a", dict), NodeCounters(), lambda: 0.0)
    for number in (1, 2, 3, 1, 2, 3, 4):
        observer.progressed("q", batch(number, 10 * number) if number % 2 else batch(number))
    observer.progressed("other", batch(1, 5))
    seen = observer.progress["q"]
    assert seen.invalid_records == 4
    assert seen.invalid_at == "stream s: partition 1, offset 30: no JSON"
    assert observer.progress["other"].invalid_records == 2
