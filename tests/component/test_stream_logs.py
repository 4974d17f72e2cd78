"""The questions of a node to the brokers of its streams' logs, without any broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ha_engine.connectors.kafka.offsets import Positions
from ha_engine.node import stream_logs
from ha_engine.node.stream_logs import StreamLogs
from ha_engine.query.application import load_application
from ha_engine.receive.log_history import LogHistory
from ha_engine.types import LOG, Events, Pulled
from tests.waiting import async_wait_until


def test_node_continues_while_no_broker_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_logs, "RETENTION_SECONDS", 0.01)
    log = {"type": "kafka", "brokers": ["127.0.0.1:1"], "topic": "t", "timeout": "100ms"}
    stream = {"schema": {"id": "int"}, "log": log}
    tree = {"name": "a", "streams": {"s": stream}, "queries": {"q": {"sql": "SELECT id FROM s"}}}
    (tmp_path / "app.yaml").write_text(json.dumps(tree))
    history, looks = LogHistory(), list[int]()
    offset = Positions("t", ("topic_id", "x"), [0], [-1]).text
    history.apply(1, Events("s", 0, 0, pulled=(Pulled(LOG, offset, 0),)))

    def first() -> int:
        looks.append(1)
        return 1

    async def watched() -> None:
        logs = StreamLogs(load_application(tmp_path / "app.yaml"), history, first)
        watch = asyncio.create_task(logs.watch())
        await async_wait_until(lambda: len(looks) > 2 or watch.done(), within=60)
        assert not watch.done()
        assert logs.headroom == {}
        watch.cancel()

    asyncio.run(watched())


def test_stream_that_is_in_both_places_refuses_no_events(tmp_path: Path) -> None:
    log = {"type": "kafka", "brokers": ["127.0.0.1:1"], "topic": "t"}
    streams = {
        name: {"schema": {"id": "int"}, "log": log | {"journal": both}}
        for name, both in (("moving", True), ("moved", False))
    }
    queries = {name: {"sql": f"SELECT id FROM {name}"} for name in streams}
    tree = {"name": "a", "streams": streams, "queries": queries}
    (tmp_path / "app.yaml").write_text(json.dumps(tree))
    logs = StreamLogs(load_application(tmp_path / "app.yaml"), LogHistory(), lambda: 1)
    assert list(logs.refusing) == ["moved"]
    assert list(logs.places) == ["moving", "moved"]
