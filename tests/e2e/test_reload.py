"""SIGHUP to ``ha-engine run``: the node process applies what it can, and reports the rest."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ha_engine.auth import digest_of, new_token
from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.without_spark import APPLICATION, no_spark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.rotates("files")]

PATIENCE = 60
DATABASE_AWAY = 503


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeUnderTest]:
    """Run a node that never becomes active: it reloads its config with or without a database."""
    monkeypatch.setenv("JAVA_HOME", str(no_spark(tmp_path)))
    node = NodeUnderTest(tmp_path, APPLICATION, "postgresql://nobody@127.0.0.1:1/nowhere")
    with running(node):
        wait_until(node.status, within=PATIENCE, every=0.1)
        yield node


def reload(node: NodeUnderTest, **sections: Any) -> dict[str, Any]:
    """Reload the config and return the report in the status."""
    before = told(node)
    node.reconfigure(**sections)
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)
    wait_until(lambda: told(node) != before, within=PATIENCE, every=0.1)
    return told(node)


def told(node: NodeUnderTest) -> dict[str, Any]:
    status = node.status()
    assert status is not None
    found: dict[str, Any] = status["config"]
    return found


def test_running_node_applies_the_reloadable_part_of_a_changed_config(node: NodeUnderTest) -> None:
    pid = node.pid_of("node")

    seen = reload(
        node,
        log={"level": "debug", "format": "json"},
        snapshot={"interval": "1s"},
        lease={"margin": "400ms"},
        journal={"min_free": "1000TiB"},
    )
    assert (seen["problems"], seen["needs_restart"]) == ([], ["lease.margin"])
    assert '"keys": ["lease.margin"]' in node.log_text()
    # The disk has no room under the new limit; existing loggers write in the new form.
    wait_until(lambda: (node.status() or {}).get("disk_headroom_ok") is False, within=PATIENCE)
    wait_until(lambda: "the disk has no room for events" in node.log_text(), within=PATIENCE)
    lines = [line for line in node.log_text().splitlines() if "the disk has no room" in line]
    assert json.loads(lines[-1])["process"] == "node"

    wrong = reload(node, log={"level": "loud"}, journal={"min_fre": "1MiB"})
    assert len(wrong["problems"]) == 2
    assert wrong["needs_restart"] == ["lease.margin"]
    for problem in wrong["problems"]:
        assert problem.partition(" (")[0].split(":")[0] in node.log_text()
    shown = node.command("status", environ={"COLUMNS": "900"}).out
    assert "not applied: " in shown
    assert "needs a restart: lease.margin" in shown

    assert node.pid_of("node") == pid


def test_tokens_change_without_a_restart(node: NodeUnderTest) -> None:
    def pause(token: str | None) -> int:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return node.http.post("/v1/pause", json={"reason": "a test"}, headers=headers).status_code

    def guarded() -> bool:
        described = node.http.get("/openapi.json").json()["paths"]["/v1/pause"]["post"]
        return "401" in described["responses"]

    assert (pause(None), guarded()) == (DATABASE_AWAY, False)
    old, new = new_token(), new_token()
    assert reload(node, access={"admin": {"alice": digest_of(old)}})["problems"] == []
    assert (pause(None), pause(new), pause(old), guarded()) == (401, 401, DATABASE_AWAY, True)
    assert reload(node, access={"admin": {"alice": digest_of(new)}})["problems"] == []
    assert (pause(old), pause(new)) == (401, DATABASE_AWAY)
