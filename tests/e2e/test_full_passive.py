"""A passive whose disk is nearly full stops the producers and nothing else (RULES.md#r30). Without
Spark."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.pair import Pair
from tests.e2e.without_spark import APPLICATION, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.rotates("files")]

PATIENCE = 60
MIB = 1 << 20


def send(node: NodeUnderTest) -> httpx.Response:
    return node.send("events", [{"id": 1, "text": "x"}])


def test_active_answers_429_while_its_passive_is_full_and_keeps_it_in_sync(
    node_database: str, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, APPLICATION, node_database, NodeWithoutSpark)
    # The limit is half a GiB below the free space, so that a file of one GiB crosses it on b alone.
    min_free = shutil.disk_usage(tmp_path).free // MIB - 512
    pair.b.reconfigure(journal={"min_free": f"{min_free}MiB"})
    with running(pair.a), running_after(pair.a, pair.b):
        wait_until(lambda: _protected(pair.a), within=PATIENCE, every=0.1)
        assert send(pair.a).status_code == 200
        big = tmp_path / "big"
        _take(big, 1024 * MIB)
        wait_until(lambda: send(pair.a).status_code == 429, within=PATIENCE, every=0.1)
        refused = send(pair.a)
        assert "the disk of node-b" in refused.json()["error"]
        assert int(refused.headers["Retry-After"]) > 0
        peer = (pair.a.status() or {})["peers"]["node-b"]
        assert (peer["disk_headroom_ok"], peer["connected"]) == (False, True)
        assert _protected(pair.a)
        shown = pair.a.command("status", environ={"COLUMNS": "160"}).out
        assert "node-b: " in shown
        assert "its disk has no room for events" in shown
        big.unlink()
        wait_until(lambda: send(pair.a).status_code == 200, within=PATIENCE, every=0.1)
        assert _protected(pair.a)
    assert "the disk has no room for events" in pair.b.log_text()


@contextlib.contextmanager
def running_after(first: NodeUnderTest, second: NodeUnderTest) -> Iterator[None]:
    first.wait_active(PATIENCE)
    with running(second):
        yield


def _protected(node: NodeUnderTest) -> bool:
    status = node.status()
    return bool(status and status["protected"])


def _take(file: Path, size: int) -> None:
    with file.open("wb") as opened:
        os.posix_fallocate(opened.fileno(), 0, size)
