"""An observer in front of two HTTP servers that answer as nodes do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from ha_engine.auth import digest_of
from ha_engine.config.observer import ObserverConfig
from ha_engine.observer.asking import AskedNode
from ha_engine.observer.following import Following
from ha_engine.observer.routes import web_application
from ha_engine.observer.store import OutputStore
from tests.observer.published import QUERY, PublishingNode, rows_of
from tests.waiting import async_wait_until

NEVER: dict[str, Any] = {"watch": {"nodes": {"a": "http://a"}}}


class Watching:
    """An observer of ``nodes`` within this process, whose files are in ``directory``."""

    def __init__(self, directory: Path, nodes: dict[str, PublishingNode], rows: int = 1000) -> None:
        self._client = httpx.AsyncClient()
        self.store = OutputStore(directory, rows, 1 << 20)
        asked = [AskedNode(name, node.url, self._client, 0.3) for name, node in nodes.items()]
        self.following = Following(asked, self.store, 0.02)
        self.access: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Watching]:
        task = asyncio.create_task(self.following.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})
            await self.following.save()
            await self._client.aclose()

    async def get(self, path: str, **headers: str) -> httpx.Response:
        config = ObserverConfig.model_validate({**NEVER, "access": self.access})
        transport = httpx.ASGITransport(web_application(config, self.following))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path, headers=headers)

    def numbers(self) -> list[int]:
        return [batch.number for batch in self.store.batches(QUERY)]


@pytest.fixture
async def a(tmp_path: Path) -> AsyncIterator[PublishingNode]:
    async with PublishingNode(tmp_path / "a", batches_max=3).serving() as node:
        node.role, node.epoch = "active", 2
        yield node


@pytest.fixture
async def b(tmp_path: Path) -> AsyncIterator[PublishingNode]:
    async with PublishingNode(tmp_path / "b", batches_max=5).serving() as node:
        yield node


async def test_batches_come_once_and_in_order_from_either_node(
    a: PublishingNode, b: PublishingNode, tmp_path: Path
) -> None:
    a.publish(1, 2)
    async with Watching(tmp_path / "o", {"a": a, "b": b}).running() as observer:
        await async_wait_until(lambda: observer.numbers() == [1, 2])
        b.publish(1, 2, 3)  # which the active may publish a moment later
        await async_wait_until(lambda: observer.numbers() == [1, 2, 3])
        a.publish(3, 4)
        await async_wait_until(lambda: observer.numbers() == [1, 2, 3, 4])
        assert observer.store.progress[QUERY].missed == 0


async def test_only_batches_that_no_node_has_are_missed_and_they_are_named(
    a: PublishingNode, b: PublishingNode, tmp_path: Path
) -> None:
    a.publish(1)
    async with Watching(tmp_path / "o", {"a": a, "b": b}).running() as observer:
        await async_wait_until(lambda: observer.numbers() == [1])
    a.publish(2, 3, 4, 5, 6, 7, 8, 9)
    b.publish(2, 3, 4, 5, 6, 7, 8, 9)
    async with Watching(tmp_path / "o", {"a": a, "b": b}).running() as observer:
        await async_wait_until(lambda: observer.numbers() == [1, 5, 6, 7, 8, 9])
        told = (await observer.get("/v1/status")).json()["queries"][QUERY]
        assert (told["missed"], told["last_missed"], told["received"]) == (3, "2-4", 6)


async def test_an_observer_that_begins_has_missed_nothing(
    a: PublishingNode, tmp_path: Path
) -> None:
    a.publish(1, 2, 3, 4, 5)
    async with Watching(tmp_path / "o", {"a": a}).running() as observer:
        await async_wait_until(lambda: observer.numbers() == [3, 4, 5])
        assert observer.store.progress[QUERY].missed == 0


async def test_a_late_node_delays_neither_the_other_nor_the_answers(
    a: PublishingNode, b: PublishingNode, tmp_path: Path
) -> None:
    a.answers.clear()
    b.role = "active"
    b.publish(1)
    async with Watching(tmp_path / "o", {"a": a, "b": b}).running() as observer:
        await async_wait_until(lambda: observer.numbers() == [1])
        await async_wait_until(lambda: a.asked > 1)
        seen = (await observer.get("/v1/status")).json()["nodes"]
        assert (seen["a"]["answers"], seen["b"]["answers"]) == (False, True)
        assert seen["a"]["problem"] == "a did not answer in 0.3 s"
    a.answers.set()


async def test_the_last_state_remains_without_nodes_and_over_a_restart(
    tmp_path: Path,
) -> None:
    node = PublishingNode(tmp_path / "a")
    node.role = "active"
    async with node.serving():
        node.publish(1)
        async with Watching(tmp_path / "o", {"a": node}).running() as observer:
            await async_wait_until(lambda: observer.numbers() == [1])
            assert (await observer.get("/v1/output/delays")).json()["reaches_a_node"] is True
    stopped = time.time()
    observer = Watching(tmp_path / "o", {"a": node})
    observer.following.nodes[0].answered_at = stopped - 90
    async with observer.running():
        await async_wait_until(lambda: "does not answer" in observer.following.nodes[0].problem)
        cluster = await observer.get("/v1/cluster")
        assert cluster.json() == {"group": "g", "nodes": {}}
        assert int(cluster.headers["Age"]) >= 90
        status = await observer.get("/nodes/a/v1/status")
        assert status.json()["role"] == "active"
        output = (await observer.get("/v1/output/delays")).json()
        assert output["reaches_a_node"] is False
        assert output["age_seconds"] >= 90
        assert [row["batch"] for row in output["batches"][0]["rows"]] == [1, 1]
        async with node.serving():
            node.publish(2)
            await async_wait_until(lambda: observer.numbers() == [1, 2])


async def test_another_group_begins_with_no_output(a: PublishingNode, tmp_path: Path) -> None:
    a.publish(1)
    async with Watching(tmp_path / "o", {"a": a}).running() as observer:
        await async_wait_until(lambda: observer.numbers() == [1])
        a.group_id = "group-2"
        a.publish(2)
        await async_wait_until(lambda: observer.store.group_id == "group-2")
        await async_wait_until(lambda: observer.numbers() == [1, 2])
        assert observer.store.progress[QUERY].received == 2


async def test_rows_are_bounded_and_can_be_chosen(a: PublishingNode, tmp_path: Path) -> None:
    a.publish(1, 2, 3)
    async with Watching(tmp_path / "o", {"a": a}, rows=4).running() as observer:
        await async_wait_until(lambda: observer.numbers() == [2, 3])
        path = "/v1/output/delays"
        newest = (await observer.get(f"{path}?limit=1")).json()["batches"]
        assert [(one["number"], one["rows"]) for one in newest] == [
            (3, [{"batch": 3, "airport": "ORD"}])
        ]
        chosen = (await observer.get(f"{path}?airport=JFK&batch=2")).json()["batches"]
        assert [one["rows"] for one in chosen] == [[{"batch": 2, "airport": "JFK"}]]
        arrow = await observer.get(f"{path}?format=arrow&limit=2")
        with pa.ipc.open_file(arrow.content) as reader:
            assert reader.read_all().equals(rows_of(3).take([1, 0]))
        for bad, reason in (
            ("limit=0", "limit must be a number from 1 to 10000"),
            ("format=xml", "format is 'xml', and not one of json, arrow"),
            ("port=1", "there is no column 'port'; known: batch, airport"),
            ("batch=x", "batch=x is no value of type int64"),
        ):
            answer = await observer.get(f"{path}?{bad}")
            assert (answer.status_code, answer.json()["error"]) == (400, reason)
        assert (await observer.get("/v1/output/absent")).status_code == 404


async def test_readers_need_a_token_if_there_is_one(a: PublishingNode, tmp_path: Path) -> None:
    async with Watching(tmp_path / "o", {"a": a}).running() as observer:
        observer.access = {"read": {"dashboard": digest_of("secret")}}
        for path in ("/v1/status", "/v1/output/delays", "/nodes/a/v1/status", "/metrics"):
            assert (await observer.get(path)).status_code == 401
        assert (await observer.get("/liveness")).status_code == 200
        assert (await observer.get("/metrics", authorization="Bearer secret")).status_code == 200
        page = await observer.get("/")
        assert '<body data-observed="a">' in page.text


async def test_the_description_has_all_routes(a: PublishingNode, tmp_path: Path) -> None:
    async with Watching(tmp_path / "o", {"a": a}).running() as observer:
        told = (await observer.get("/openapi.json")).json()
    assert {"/v1/status", "/v1/cluster", "/v1/output/{query}"} <= set(told["paths"])


def test_a_damaged_state_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "output" / QUERY).mkdir(parents=True)
    (tmp_path / "output" / QUERY / "1.2.arrow").write_bytes(b"")
    (tmp_path / "state.json").write_text("{")
    assert OutputStore(tmp_path, 1, 1).batches(QUERY) == []
