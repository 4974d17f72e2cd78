"""Applications are deployed to a pair under load, refused, and rolled back. No query runs, only
the check of the active starts Spark."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from ha_engine.auth import digest_of, new_token
from ha_engine.client.token import TOKEN_VARIABLE
from tests.e2e.node_under_test import Ended, NodeUnderTest, running
from tests.e2e.pair import Pair, running_pair, same_journal, stored_events
from tests.e2e.steady_producer import SteadyProducer
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 60
TOKEN = new_token()
ACCESS = {"access": {"deploy": {"alice": digest_of(TOKEN)}}}
MORE = """
  texts:
    sql: SELECT text FROM events WHERE id > 1
    sinks: [{name: table, type: postgres, table: texts, auto_create: true}]
"""
OTHER = """
name: orders
streams:
  orders:
    schema: {id: int not null}
queries:
  orders: {sql: SELECT id FROM orders}
"""


class RestartedNode(NodeWithoutSpark):
    """A node process that starts again when it fails, as a supervisor lets it do."""

    _stopping = False

    def start(self) -> None:
        super().start()
        assert self.process is not None
        threading.Thread(target=self._restart, args=(self.process,), daemon=True).start()

    def _restart(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait() > 0 and not self._stopping:
            self.start()

    def stop(self, within: float = 40.0) -> int:
        self._stopping = True
        return super().stop(within)


def app(node: NodeUnderTest, *words: str) -> Ended:
    return node.command("app", *words, environ={TOKEN_VARIABLE: TOKEN})


def seconds_until_protected(pair: Pair) -> float:
    """Wait for the pair that has just been started, and return the seconds that it took."""
    began = time.monotonic()
    wait_until(pair.is_protected, within=PATIENCE, every=0.1)
    return time.monotonic() - began


def archives(pair: Pair) -> list[str | None]:
    """The id of the deployment that each node runs, or None."""
    return [_archive(node) for node in pair.nodes.values()]


def _archive(node: NodeUnderTest) -> str | None:
    try:
        found: str | None = node.http.get("/v1/application").json()["archive"]
    except httpx.HTTPError:
        return None
    return found


def order(pair: Pair, number: int) -> None:
    active = pair.active()
    assert active is not None
    assert active.send("orders", [{"id": number}]).status_code == 200


def origins(node: NodeUnderTest) -> dict[str, int]:
    """By application of a node, the deployment that brought it."""
    nodes = json.loads(app(node, "list", "--json").out)["nodes"]
    found = {one["name"]: one["deployment"]["number"] for one in nodes["node-a"]["applications"]}
    assert nodes["node-b"]["applications"] == nodes["node-a"]["applications"]
    return found


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Versions of an application: with one query, with two, with SQL that Spark refuses, and one
    that is not valid; and another application, also with a stream of the first."""
    texts = {
        "first": APPLICATION,
        "second": APPLICATION + MORE,
        "refused": (APPLICATION + MORE).replace("SELECT text", "SELECT txet"),
        "broken": APPLICATION.replace("streams:", "strams:"),
        "other": OTHER,
        "clashing": OTHER.replace("  orders:\n    schema", "  Events:\n    schema").replace(
            "FROM orders", "FROM Events"
        ),
    }
    paths = {name: tmp_path / f"{name}.yaml" for name in texts}
    for name, path in paths.items():
        path.write_text(texts[name])
    return paths


def test_pair_moves_to_a_deployed_application_under_load(
    node_database: str, tmp_path: Path, files: dict[str, Path]
) -> None:
    pair = Pair(tmp_path, APPLICATION, node_database, RestartedNode, **ROOM, **ACCESS)
    with running_pair(pair):
        started = seconds_until_protected(pair)
        with SteadyProducer(pair.urls, "events") as producer:
            assert "did you mean" in app(pair.a, "deploy", str(files["broken"])).err
            clash = "'Events' is in the applications copies and orders"
            assert clash in app(pair.a, "deploy", str(files["clashing"])).err
            assert archives(pair) == [None, None]
            done = app(pair.b, "deploy", str(files["other"]), "--json")
            assert (done.code, done.err) == (0, "")
            assert json.loads(done.out)["nodes"] == ["node-a", "node-b"]
            assert archives(pair) == [json.loads(done.out)["id"]] * 2
            assert list(origins(pair.a)) == ["copies", "orders"]
            wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        _require_whole(pair, producer, started)


@pytest.mark.nightly("test_pair_moves_to_a_deployed_application_under_load adds an application")
def test_applications_come_change_and_go_while_another_takes_events(
    node_database: str, tmp_path: Path, files: dict[str, Path]
) -> None:
    pair = Pair(tmp_path, APPLICATION, node_database, RestartedNode, **ROOM, **ACCESS)
    with running_pair(pair):
        started = seconds_until_protected(pair)
        with SteadyProducer(pair.urls, "events") as producer:

            def changed(*words: str) -> None:
                done = app(pair.b, *words, "--by", "alice")
                assert (done.code, done.err) == (0, "")
                wait_until(pair.is_protected, within=PATIENCE, every=0.1)

            changed("deploy", str(files["other"]))
            assert origins(pair.a) == {"copies": 1, "orders": 1}
            changed("deploy", str(files["second"]))
            assert origins(pair.b) == {"copies": 2, "orders": 1}
            assert app(pair.a, "diff", str(files["other"])).code == 0
            assert app(pair.a, "diff", str(files["first"])).code == 1

            order(pair, 1)
            assert "give --discard" in app(pair.a, "remove", "orders").err
            assert "no application 'texts'" in app(pair.a, "remove", "texts").err
            changed("remove", "orders", "--discard")
            assert origins(pair.a) == {"copies": 2}
            assert (
                pair.a.http.post("/v1/streams/orders/events", json=[{"id": 2}]).status_code == 404
            )
            assert "the only application" in app(pair.a, "remove", "copies").err

            changed("rollback")
            assert origins(pair.b) == {"copies": 2, "orders": 4}
            shown = app(pair.a, "list").out.splitlines()
            assert [line.split()[:4] for line in shown[1:]] == [
                [node, *words]
                for node in ("node-a", "node-b")
                for words in (["copies", "events", "copies,"], ["orders", "orders", "orders"])
            ]
            active = pair.active()
            assert active is not None
            stale = active.http.post(
                "/v1/application/orders/remove?expected=3",
                headers={"Authorization": f"Bearer {TOKEN}"},
            )
            assert (stale.status_code, "newest deployment is 4" in stale.text) == (409, True)
            order(pair, 3)
            only = "deploy", str(files["first"]), "--only"
            assert "removes orders, whose sinks do not" in app(pair.a, *only).err
            changed(*only, "--discard")
            assert origins(pair.a) == {"copies": 5}
        _require_whole(pair, producer, started)


@pytest.mark.nightly("test_pair_moves_to_a_deployed_application_under_load deploys once")
def test_deployments_are_refused_compared_and_rolled_back_under_load(
    node_database: str, tmp_path: Path, files: dict[str, Path]
) -> None:
    pair = Pair(tmp_path, APPLICATION, node_database, RestartedNode, **ROOM, **ACCESS)
    with running_pair(pair):
        started = seconds_until_protected(pair)
        with SteadyProducer(pair.urls, "events") as producer:
            for name in ("first", "second"):
                assert app(pair.b, "deploy", str(files[name])).code == 0
                wait_until(pair.is_protected, within=PATIENCE, every=0.1)
            present = archives(pair)

            refused = app(pair.a, "deploy", str(files["refused"]))
            assert refused.code != 0
            assert "query texts" in refused.err
            assert "txet" in refused.err
            assert archives(pair) == present

            assert app(pair.a, "diff", str(files["second"])).code == 0
            difference = app(pair.b, "diff", str(files["first"]), "--json")
            assert difference.code == 1
            assert "-  texts:" in json.loads(difference.out)["diff"]

            assert app(pair.a, "rollback").code == 0
            history = json.loads(app(pair.b, "history", "--json").out)["history"]
            assert [one["number"] for one in history] == [3, 2, 1]
            assert [history[0]["id"]] * 2 == [history[2]["id"]] * 2 == archives(pair) != present
            wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        _require_whole(pair, producer, started)


def _require_whole(pair: Pair, producer: SteadyProducer, started: float) -> None:
    """Require that no ack waited for the restart of a node, which takes about ``started`` seconds,
    and that each node has each acked event once."""
    assert producer.longest < started
    assert same_journal(pair)
    for node in pair.nodes.values():
        assert node.stop() == 0
    for node in pair.nodes.values():
        stored = (one.rows for one in stored_events(node) if one.stream == "events")
        assert sum(stored) == producer.acked > 0


def test_a_deployment_without_a_token_is_refused(node_database: str, tmp_path: Path) -> None:
    node = RestartedNode(tmp_path, APPLICATION, node_database, **ROOM)
    with running(node):
        node.wait_active(PATIENCE)
        assert "token for deploy" in app(node, "deploy", str(node.application_path)).err


@pytest.mark.nightly("tests/core/test_rollout.py has a group with an absent member")
def test_an_absent_node_moves_to_the_deployed_application_when_it_returns(
    node_database: str, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, APPLICATION, node_database, RestartedNode, **ROOM, **ACCESS)
    with running(pair.a):
        pair.a.wait_active(PATIENCE)
        file = str(pair.a.application_path)
        assert "node-b is not connected" in app(pair.a, "deploy", file).err
        done = app(pair.a, "deploy", file, "--allow-absent", "--json")
        assert json.loads(done.out)["absent"] == ["node-b"]
        with running(pair.b):
            wait_until(lambda: archives(pair)[1] is not None, within=PATIENCE, every=0.2)
            wait_until(pair.is_protected, within=PATIENCE, every=0.1)
            assert len(set(archives(pair))) == 1
