"""``/v1/history``, ``/v1/pause`` and ``/v1/resume``: the routes alone, and in a node process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from ha_engine.api.lease import lease_routes
from ha_engine.auth import OPEN
from ha_engine.cli.root import program
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.postgres.upgrade import upgrade
from ha_engine.types import Holder, LeaseRow, Member
from ha_engine.web.route import guarded
from tests.e2e.node_under_test import NodeUnderTest
from tests.waiting import wait_until

HELD = LeaseRow("g", Holder("node-a", "p"), 1, 1, (Member("node-a", "journal-a"),))
PATHS = [("GET", "/v1/history"), ("POST", "/v1/pause"), ("POST", "/v1/resume")]


def _store(url: str) -> PostgresLeaseStore:
    return PostgresLeaseStore(open_engine(url), "flights", 5.0, db_timeout=10)


async def _asked(store: PostgresLeaseStore, method: str, path: str, **more: Any) -> httpx.Response:
    transport = httpx.ASGITransport(guarded(lease_routes(store, "flights"), OPEN))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        return await client.request(method, path, **more)


async def test_history_returns_the_newest_changes(store: PostgresLeaseStore) -> None:
    empty = await _asked(store, "GET", "/v1/history")
    assert empty.json() == {"group": "flights", "history": []}
    store.create(HELD)
    store.compare_and_set(HELD, replace(HELD, epoch=2), reason="again")
    both = (await _asked(store, "GET", "/v1/history")).json()["history"]
    assert [(line["epoch"], line["node"], line["reason"]) for line in both] == [
        (2, "node-a", "again"),
        (1, "node-a", "first row of the group"),
    ]
    newest = await _asked(store, "GET", "/v1/history?limit=1")
    assert newest.json()["history"] == both[:1]


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "many", "", "9" * 5000, "٣"])
async def test_invalid_limit_of_the_history_is_refused(
    store: PostgresLeaseStore, limit: str
) -> None:
    answer = await _asked(store, "GET", "/v1/history", params={"limit": limit})
    assert answer.status_code == 400
    assert "1 to 1000" in answer.json()["error"]


async def test_pause_and_resume_return_the_new_state(store: PostgresLeaseStore) -> None:
    store.create(HELD)
    paused = {"group": "flights", "paused": True, "holder": "node-a", "epoch": 1, "version": 2}
    for _ in range(2):
        answer = await _asked(store, "POST", "/v1/pause")
        assert (answer.status_code, answer.json()) == (200, paused)
    assert store.read() == replace(HELD, version=2, paused=True)
    resumed = await _asked(store, "POST", "/v1/resume")
    assert resumed.json() == paused | {"paused": False, "version": 3}
    assert store.read() == replace(HELD, version=3)


async def test_pause_of_a_group_without_a_row_is_a_conflict(store: PostgresLeaseStore) -> None:
    answer = await _asked(store, "POST", "/v1/pause")
    assert answer.status_code == 409
    assert "no lease row of group flights" in answer.json()["error"]


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_unreachable_database_is_503_with_its_reason(method: str, path: str) -> None:
    with closing(_store("postgresql://someone:s3cret@127.0.0.1:1/nowhere")) as store:
        answer = await _asked(store, method, path)
    assert answer.status_code == 503
    assert "cannot be reached" in answer.json()["error"]
    assert "s3cret" not in answer.text


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_a_database_without_the_schema_is_503(
    database_url: str, method: str, path: str
) -> None:
    with closing(_store(database_url)) as store:
        answer = await _asked(store, method, path)
    assert answer.status_code == 503
    assert "ha-engine db init" in answer.json()["error"]


APPLICATION = """
name: nothing
streams:
  numbers:
    schema: {n: int}
queries:
  all:
    sql: "SELECT n FROM numbers"
"""


def _active(node: NodeUnderTest) -> bool:
    try:
        return node.http.get("/active").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def node(database_url: str, tmp_path: Path) -> Iterator[NodeUnderTest]:
    """Start a node process alone: without a supervisor no process starts Spark for it."""
    upgrade(open_engine(database_url))
    node = NodeUnderTest(tmp_path, APPLICATION, database_url)
    command = [sys.executable, "-m", "ha_engine.node", "--config", str(node.config_path)]
    with (
        (tmp_path / "node.log").open("ab") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            wait_until(lambda: process.poll() is not None or _active(node), within=60, every=0.1)
            yield node
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.slow
def test_paused_active_stays_active_and_reports_the_pause(node: NodeUnderTest) -> None:
    (line,) = node.http.get("/v1/history").json()["history"]
    assert (line["node"], line["epoch"]) == ("node-a", 1)
    assert node.http.post("/v1/pause").json()["paused"] is True

    def shown() -> dict[str, object]:
        lease: dict[str, object] = node.http.get("/v1/status").json()["lease"]
        return lease

    wait_until(lambda: shown()["paused"])
    status = CliRunner().invoke(program(), ["status", "--url", node.url])
    assert "paused: no node takes over until 'ha-engine resume'" in " ".join(status.output.split())
    version = shown()["version"]
    wait_until(lambda: shown()["version"] > version + 2)  # type: ignore[operator]
    assert _active(node)
    assert node.http.post("/v1/resume").json()["paused"] is False
    wait_until(lambda: not shown()["paused"])
