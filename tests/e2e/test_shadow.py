"""A changed query runs in shadow beside the live one of a pair under load, and takes its place.

Only the check of the active starts Spark. The queries count events in a state of their own, so each
row in the sink shows which code made it and from which state.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text

from ha_engine.client.token import TOKEN_VARIABLE
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair
from tests.e2e.steady_producer import SteadyProducer
from tests.e2e.test_deploy import ACCESS, PATIENCE, TOKEN, app
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.rotates("files")]

APPLICATION = """
name: counts
streams:
  events:
    schema: {id: int not null, text: string}
queries:
  counts:
    sql: SELECT id, concat('v1 ', text) AS text FROM events
    sinks:
      - {name: table, type: postgres, table: counts, auto_create: true}
"""


class CountingNode(NodeUnderTest):
    """A node whose query process is the one of ``counting``."""

    program = ("-m", "tests.e2e.counted")
    signs: Mapping[str, str] = {**NodeUnderTest.signs, "query": r"tests\.e2e\.counting"}


def query(node: NodeUnderTest, *words: str) -> Any:
    """The answer of ``ha-engine query`` with these words in JSON."""
    done = node.command("query", *words, "--json", environ={TOKEN_VARIABLE: TOKEN})
    assert done.code == 0, done.err
    return json.loads(done.out)


def shadows(pair: Pair) -> list[dict[str, Any] | None]:
    """The shadow of each node, as its status shows it."""
    return [(node.status() or {}).get("shadow") for node in pair.nodes.values()]


def keep_up(pair: Pair) -> bool:
    found = [one for one in shadows(pair) if one is not None]
    running = [one for one in found if one["state"] == "running" and one["batch"] > 1]
    return len(running) == 2 and all(one["behind_batches"] <= 1 for one in running)


def rows(pair: Pair) -> list[tuple[int, str, int]]:
    """The rows in the sink by id: the version that made each, and its number since the state
    began."""
    url = pair.a.changed_config()["database"]["url"]
    with create_engine(url).connect() as connection:
        found = connection.execute(text("SELECT id, text FROM counts ORDER BY id")).all()
    return [(id, *_parts(shown)) for id, shown in found]


def _parts(shown: str) -> tuple[str, int]:
    version, number = shown.split()
    return version, int(number)


def require_whole(pair: Pair, acked: int, *versions: str) -> None:
    """Require each event once, in order of versions, and a state of each version that missed no
    event."""
    wait_until(lambda: len(rows(pair)) >= acked, within=PATIENCE, every=0.2)
    found = rows(pair)
    assert [id for id, _, _ in found] == list(range(acked))
    assert list(dict.fromkeys(version for _, version, _ in found)) == list(versions)
    for version in versions:
        offsets = {number - id for id, of, number in found if of == version}
        assert len(offsets) == 1, (version, sorted(offsets))


@pytest.fixture
def pair(node_database: str, tmp_path: Path) -> Pair:
    return Pair(tmp_path, APPLICATION, node_database, CountingNode, **ACCESS)


def begin(pair: Pair, tmp_path: Path, version: str) -> None:
    """Run ``version`` of the query in shadow, on both nodes."""
    path = tmp_path / "changed.yaml"
    path.write_text(APPLICATION.replace("v1", version))
    done = app(pair.a, "deploy", "--shadow", str(path))
    assert (done.code, done.err) == (0, "")


def wait_for_more(producer: SteadyProducer, events: int = 50) -> None:
    count = producer.acked
    wait_until(lambda: producer.acked > count + events, within=PATIENCE, every=0.1)


def require_no_shadow(pair: Pair) -> None:
    assert shadows(pair) == [None, None]
    for node in pair.nodes.values():
        assert not list((node.data_dir / "outbox").glob("*~*"))
        assert "a batch differs" not in node.log_text()


@contextlib.contextmanager
def loaded(pair: Pair, *versions: str) -> Iterator[SteadyProducer]:
    """Run the pair under load; afterwards the output must be that of these versions, and no shadow
    may be left."""
    with running_pair(pair):
        pair.wait_protected()
        with SteadyProducer(pair.urls, "events") as producer:
            wait_for_more(producer)
            yield producer
        require_whole(pair, producer.acked, *versions)
        require_no_shadow(pair)


def deployments(pair: Pair) -> set[int]:
    """The numbers of the deployments that the journals of the nodes have."""
    found = [node.http.get("/v1/application").json()["deployed"] for node in pair.nodes.values()]
    return {one["number"] for one in found if one is not None}


def test_a_promoted_shadow_continues_the_output_of_its_query_under_load(
    pair: Pair, tmp_path: Path
) -> None:
    with loaded(pair, "v1", "v2") as producer:
        begin(pair, tmp_path, "v2")
        wait_until(lambda: keep_up(pair), within=PATIENCE, every=0.2)
        found = query(pair.b, "compare", "counts")
        assert found["total"]["live"] == found["total"]["shadow"] == found["total"]["only_live"]
        pair.wait_protected()
        wait_until(lambda: keep_up(pair), within=PATIENCE, every=0.2)
        query(pair.a, "promote", "counts")
        wait_for_more(producer)


@pytest.mark.nightly("test_a_promoted_shadow_continues_the_output_of_its_query_under_load")
def test_kills_of_the_active_beside_a_shadow_and_in_its_promotion_lose_and_double_nothing(
    pair: Pair, tmp_path: Path
) -> None:
    with loaded(pair, "v1", "v2") as producer:
        begin(pair, tmp_path, "v2")
        _kill(pair, pair.wait_protected())
        wait_for_more(producer)
        pair.wait_protected()
        wait_until(lambda: keep_up(pair), within=PATIENCE, every=0.2)
        active = pair.wait_protected()
        begun = max(deployments(pair))
        promoting = threading.Thread(target=query, args=(active, "promote", "counts"))
        promoting.start()
        wait_until(lambda: begun + 1 in _known(active), within=PATIENCE, every=0.02)
        _kill(pair, active)
        promoting.join()
        pair.wait_protected()
        wait_for_more(producer)
        _kill(pair, pair.wait_protected())
        pair.wait_protected()
        wait_for_more(producer)


def _known(node: NodeUnderTest) -> set[int]:
    try:
        found = node.http.get("/v1/application").json()["deployed"]
    except httpx.HTTPError:
        return set()
    return set() if found is None else {found["number"]}


def _kill(pair: Pair, node: NodeUnderTest) -> None:
    """Kill all processes of a node, and start it again."""
    node.kill_everything()
    node.start()
    wait_until(lambda: node.status() is not None, within=PATIENCE, every=0.1)


@pytest.mark.nightly("tests/core/test_shadow.py has a shadow that kills the query process")
def test_a_shadow_that_fails_stops_nothing_and_is_discarded(pair: Pair, tmp_path: Path) -> None:
    with loaded(pair, "v1") as producer:
        begin(pair, tmp_path, "v2 fails")
        wait_until(lambda: _failed(pair), within=PATIENCE, every=0.2)
        pair.wait_protected()
        assert "died beside the shadow" in query(pair.a, "compare", "counts")["note"]
        refused = app(pair.a, "deploy", str(pair.a.application_path))
        assert "a shadow runs beside query counts" in refused.err
        query(pair.b, "discard", "counts")
        wait_for_more(producer)
        pair.wait_protected()
    for node in pair.nodes.values():
        assert not list((node.data_dir / "checkpoints").glob("*~*"))


def _failed(pair: Pair) -> bool:
    return all(one is not None and one["state"] == "failed" for one in shadows(pair))
