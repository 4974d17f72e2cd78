"""``ha-engine doctor`` beside two running nodes, and after one of them has died. Without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair
from tests.e2e.without_spark import APPLICATION, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.rotates("files")]

Findings = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def pair(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("doctor")
    with running_pair(Pair(home, APPLICATION, module_database, NodeWithoutSpark)) as pair:
        wait_until(pair.is_protected, within=60)
        yield pair


def doctor(node: NodeUnderTest) -> tuple[int, Findings]:
    """Return the exit code of the command and its findings by check."""
    command = [sys.executable, "-m", "ha_engine", "doctor", "--config", str(node.config_path)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, {one["check"]: one for one in json.loads(done.stdout)}


def in_state(findings: Findings, state: str) -> dict[str, str]:
    return {name: one["text"] for name, one in findings.items() if one["state"] == state}


def links(pair: Pair) -> dict[str, Any]:
    return {name: node.status()["peers"] for name, node in pair.nodes.items()}  # type: ignore[index]


def test_nothing_fails_beside_two_healthy_nodes_and_they_keep_their_link(pair: Pair) -> None:
    active = pair.active()
    assert active is not None
    active.send("events", [{"id": 1, "text": "one"}])
    for node in pair.nodes.values():
        code, findings = doctor(node)
        peer = pair.other(node).name
        assert (code, in_state(findings, "failed")) == (0, {})
        assert in_state(findings, "skipped").keys() <= {"clock/synchronised"}
        ok = in_state(findings, "ok")
        assert ok[f"peer/{peer}/event_sync"].endswith(" fits this node")
        assert ok[f"peer/{peer}/http"] == f"{peer} answers at {pair.other(node).url}"
        assert ok[f"peer/{peer}/reaches_us"] == f"{peer} gets reports from this node"
        assert ok["port/http.listen"].startswith("this host's node (process ")
        assert ok["port/event_sync.listen"].startswith("this host's node (process ")
        assert "every checksum fits" in ok["journal"]
    assert all(peer["connected"] for peers in links(pair).values() for peer in peers.values())
    assert "peer lost" not in (active.directory / "node.log").read_text()


def test_a_changed_application_and_a_dead_peer_are_named(pair: Pair) -> None:
    peer = pair.b
    pair.a.application_path.write_text(APPLICATION.replace("SELECT id, text", "SELECT id"))
    code, findings = doctor(pair.a)
    assert code == 1
    (reason,) = in_state(findings, "failed").values()
    assert reason.startswith("node-b runs the application ")
    assert "give both the same application" in findings["peer/node-b/event_sync"]["remedy"]
    pair.a.application_path.write_text(APPLICATION)
    peer.kill_everything()
    code, findings = doctor(pair.a)
    assert "no node listens on" in in_state(findings, "warning")["peer/node-b/event_sync"]
    for check in ("http", "reaches_us"):
        assert findings[f"peer/node-b/{check}"]["state"] == "skipped"
    peer.start()
    wait_until(pair.is_protected, within=60)
