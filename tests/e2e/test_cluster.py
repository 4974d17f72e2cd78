"""The report of either node about both: /v1/cluster and ``ha-engine status``. Without Spark."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.e2e.without_spark import APPLICATION, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 60


@pytest.fixture(scope="module")
def running(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("cluster")
    with running_pair(Pair(home, APPLICATION, module_database, NodeWithoutSpark)) as pair:
        yield pair


@pytest.fixture
def pair(running: Pair) -> Pair:
    """One pair for all tests of the module: a test that silences a node brings it back."""
    wait_until(lambda: _both_see_each_other(running), within=PATIENCE, every=0.1)
    return running


def cluster(node: NodeUnderTest) -> dict[str, Any]:
    found: dict[str, Any] = node.http.get("/v1/cluster").json()
    return found


def _both_see_each_other(pair: Pair) -> bool:
    statuses = [node.status() for node in pair.nodes.values()]
    if not all(status and status["protected"] for status in statuses):
        return False
    seen = [cluster(node)["nodes"] for node in pair.nodes.values()]
    return all({node["role"] for node in one.values()} == {"active", "passive"} for one in seen)


def test_each_node_reports_on_both(pair: Pair) -> None:
    active = pair.active()
    assert active is not None
    passive = pair.other(active)
    answer = active.send("events", [{"id": 1, "text": "one"}, {"id": 2, "text": "two"}])
    sequence = answer.json()["position"]["sequence"]
    for asked in (active, passive):
        wait_until(
            lambda asked=asked: all(
                node["journal"]["durable"] >= sequence for node in cluster(asked)["nodes"].values()
            ),
            within=PATIENCE,
        )
        seen = cluster(asked)
        assert (seen["node"], seen["active"], seen["protected"]) == (asked.name, active.name, True)
        assert {member["node"] for member in seen["lease"]["in_sync"]} == {"node-a", "node-b"}
        assert seen["lease"]["holder"] == active.name
        mine, theirs = seen["nodes"][active.name], seen["nodes"][passive.name]
        assert (mine["role"], mine["in_sync"], mine["rejoin"]) == ("active", True, None)
        assert (mine["url"], theirs["url"]) == (active.url, passive.url)
        assert (theirs["role"], theirs["in_sync"], theirs["lag_records"]) == ("passive", True, 0)
        # The journal of the peer is in sync, and no Spark has started.
        assert theirs["warm"] is False
        assert theirs["rejoin"]["stage"] == "starting Spark"
        assert theirs["queries"]["copies"]["batch"] == 0
    shown = {node: node.http.get("/metrics").text for node in (active, passive)}
    for node, text in shown.items():
        own = f'{{group="test",node="{node.name}"}} 1.0'
        assert f"ha_engine_in_sync{own}" in text
        assert f"ha_engine_protected{own}" in text
    assert 'reason="acquired",role="promoting"} 1.0' in shown[active]
    to_passive = f'{{group="test",node="{active.name}",peer="{passive.name}"}} 0.0'
    for name in ("peer_lag_events", "peer_lag_seconds", "sync_in_flight_bytes"):
        assert f"ha_engine_{name}{to_passive}" in shown[active]
    # No query reads the events: their lag counts from their arrival.
    queries = [
        node.http.get("/v1/status").json()["queries"]["copies"] for node in pair.nodes.values()
    ]
    assert all(query["lag_seconds"] > 0 and query["backlog_events"] == 2 for query in queries)
    assert 'reason="in_sync",role="passive"} 1.0' in shown[passive]


def test_status_of_either_node_prints_both_as_a_table_and_as_json(pair: Pair) -> None:
    shown = pair.a.command("status", environ={"COLUMNS": "160"})
    assert (shown.code, shown.err) == (0, "")
    rows = [line for line in shown.out.splitlines() if line.startswith("│ node-")]
    assert len(rows) == 2
    assert {"active", "passive"} == {word for row in rows for word in row.split() if "ive" in word}
    assert ", protected" in shown.out
    as_json = json.loads(pair.b.command("status", "-f", "json").out)
    assert as_json["node"] == "node-b"
    assert as_json["cluster"]["nodes"].keys() == {"node-a", "node-b"}


def test_silent_node_is_shown_as_not_answering(pair: Pair) -> None:
    active = pair.active()
    assert active is not None
    passive = pair.other(active)
    assert passive.process is not None
    # The node is stopped, not ended: its kernel still accepts connections.
    os.kill(passive.process.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not cluster(active)["nodes"][passive.name]["answers"], within=PATIENCE)
        wait_until(lambda: not cluster(active)["protected"], within=PATIENCE)
        shown = active.command("status", environ={"COLUMNS": "160"})
        row = next(line for line in shown.out.splitlines() if f"│ {passive.name}" in line)
        assert "no answer" in row
        assert "not protected" in shown.out
    finally:
        os.kill(passive.process.pid, signal.SIGCONT)
    wait_until(lambda: _both_see_each_other(pair), within=PATIENCE, every=0.1)


@pytest.mark.nightly("another test of this module silences a node")
def test_killed_node_is_shown_again_after_its_restart(pair: Pair) -> None:
    pair.b.kill_everything()
    # The node with the smaller id dials, whichever held the lease.
    wait_until(lambda: pair.active() is pair.a, within=PATIENCE)
    wait_until(lambda: not cluster(pair.a)["protected"], within=PATIENCE)

    def seen() -> dict[str, Any]:
        return dict(cluster(pair.a)["nodes"][pair.b.name])

    assert (seen()["answers"], seen()["role"]) == (False, None)
    # The node dials its peer at growing intervals.
    wait_until(lambda: seen()["unreachable"], within=PATIENCE)
    pair.b.start()
    wait_until(lambda: _both_see_each_other(pair), within=PATIENCE, every=0.1)


def test_reinitialised_passive_joins_with_a_new_journal(pair: Pair) -> None:
    active = pair.active()
    assert active is not None
    passive = pair.other(active)
    words = ("reinit", passive.name, "--yes", "--config", str(passive.config_path))
    refused = passive.command(*words)
    assert (refused.code, refused.err.startswith(f"ha-engine: {passive.name} still runs")) == (
        1,
        True,
    )
    before = cluster(active)["nodes"][passive.name]["journal"]["id"]
    passive.stop()
    assert active.send("events", [{"id": 1, "text": "x"}]).status_code == 200
    done = passive.command(*words)
    assert (done.code, done.err) == (0, "")
    passive.start()
    wait_until(lambda: _both_see_each_other(pair), within=PATIENCE, every=0.1)
    assert cluster(active)["nodes"][passive.name]["journal"]["id"] != before
    assert same_journal(pair)
