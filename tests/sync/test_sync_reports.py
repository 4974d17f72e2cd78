"""The report of a node: it sends one at once and each second; the peer forgets it with the link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ha_engine.sync import QueryReport
from ha_engine.sync.codec import MalformedFrame
from ha_engine.sync.report import QUERIES_MAX, TEXT_MAX, from_sync_frame, to_sync_frame
from tests.sync.pair import SyncNode
from tests.sync.proxy import Proxy
from tests.waiting import async_wait_until

QUERY = QueryReport("delays", "failed", 7, 6, 5, 3)


async def test_each_node_has_the_newest_report_of_its_peer(
    pair: tuple[SyncNode, SyncNode],
) -> None:
    a, b = pair
    await async_wait_until(lambda: "node-b" in a.sync.reports() and "node-a" in b.sync.reports())
    assert a.sync.reports()["node-b"][1] == b.report()
    b.reason = "something new"
    await async_wait_until(lambda: a.sync.reports()["node-b"][1].reason == "something new")
    age, _ = a.sync.reports()["node-b"]
    assert 0 <= age < 5
    assert a.heard() == []


async def test_report_is_forgotten_with_its_link(
    pair: tuple[SyncNode, SyncNode], proxy: Proxy
) -> None:
    a, b = pair
    await async_wait_until(lambda: "node-b" in a.sync.reports())
    await b.stop()
    await async_wait_until(lambda: not a.connected("node-b"))
    assert a.sync.reports() == {}


async def test_hello_of_each_node_lasts_as_long_as_its_link(
    pair: tuple[SyncNode, SyncNode],
) -> None:
    a, b = pair
    await async_wait_until(lambda: a.connected("node-b"))
    assert a.sync.hellos() == {"node-a": a.said, "node-b": b.said}
    assert a.sync.silent_seconds() == {}
    await b.stop()
    await async_wait_until(lambda: not a.connected("node-b"))
    assert a.sync.hellos() == {"node-a": a.said}
    assert 0 <= a.sync.silent_seconds()["node-b"] < 5


async def test_report_survives_a_round_trip_with_long_reasons_shortened(
    pair: tuple[SyncNode, SyncNode],
) -> None:
    shadow = replace(QUERY, query="delays~4")
    report = replace(
        pair[0].report(), queries=(QUERY,), headroom=False, suspended=True, shadow=shadow
    )
    assert from_sync_frame(to_sync_frame(report).report) == report
    long = replace(report, reason="x" * (TEXT_MAX + 1))
    assert from_sync_frame(to_sync_frame(long).report).reason == "x" * TEXT_MAX


async def test_report_above_the_size_limit_is_malformed(
    pair: tuple[SyncNode, SyncNode],
) -> None:
    frame = to_sync_frame(replace(pair[0].report(), queries=(QUERY,)))
    frame.report.queries.extend([frame.report.queries[0]] * QUERIES_MAX)
    with pytest.raises(MalformedFrame):
        from_sync_frame(frame.report)
    frame = to_sync_frame(pair[0].report())
    frame.report.role = "x" * (TEXT_MAX + 1)
    with pytest.raises(MalformedFrame):
        from_sync_frame(frame.report)
