"""``ha-engine query compare``, ``promote`` and ``discard`` over the real routes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ha_engine.api.http import NodeView, application
from ha_engine.api.shadows import Comparison, shadow_routes
from ha_engine.auth import Access, Right, digest_of
from ha_engine.cli.query import query_app
from ha_engine.client.token import TOKEN_VARIABLE
from ha_engine.errors import DeploymentRefused
from ha_engine.outbox import Outbox
from ha_engine.outbox.published import PublishedBatches
from ha_engine.types import Deployed, Mark, Shadow
from tests.client.serving import serving
from tests.core.world import World
from tests.publish.test_outbox_of_shadows import add

SHADOW = Shadow("delays", 4, Mark("delays", 2, 0), "v2", "v2")
BEGUN = Deployed(4, "v1", "flights", "alice", 1, "v1", None, SHADOW)


class Orders:
    """Notes the orders of an operator, and refuses them."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str, str]] = []

    async def promote(self, query: str, by: str) -> Deployed:
        self.given.append(("promote", query, by))
        raise DeploymentRefused("shadow delays~4 is 9 batches behind its live query")

    async def discard(self, query: str, by: str) -> Deployed:
        self.given.append(("discard", query, by))
        raise DeploymentRefused("query delays has no shadow; deploy one with --shadow")


def no_order(*_: Any) -> str:
    return "no"


@pytest.fixture
def orders() -> Orders:
    return Orders()


@pytest.fixture
def url(tmp_path: Path, orders: Orders) -> Iterator[str]:
    """A node that runs a shadow, whose batches 3 to 5 are in its outbox."""
    # As the active, the node would end a deployment that its journal lacks.
    world, outbox = World(automatic=()), Outbox.open(tmp_path / "outbox")
    world.disk.deployed = BEGUN
    world.start()
    add(outbox, tmp_path / "outbox", "delays", 1, 2, 3, 4, 5, 6)
    outbox.begin_shadow(SHADOW.name)
    outbox.set_outbox_floor(SHADOW.name, 2)
    add(outbox, tmp_path / "outbox", SHADOW.name, 3, 4, 5)
    world.core.deployment.marks["delays"].admitted = 6
    for number in (3, 4, 5):
        world.core.deployment.shadow.note_admitted(number, 100)
    published = PublishedBatches(tmp_path / "published", 0, 0)
    view = NodeView(dict, dict, bytes, no_order, no_order, no_order, lambda: True, no_order)
    routes = shadow_routes(world.core, Comparison(world.core, outbox, published), orders)
    access = Access.of({Right.DEPLOY: {"alice": digest_of("secret")}})
    with serving(application(view, routes, access)) as served:
        yield served


def run(*words: str) -> Any:
    return CliRunner().invoke(query_app, words, env={TOKEN_VARIABLE: "secret"})


def test_comparison_shows_rows_that_only_one_output_has(url: str) -> None:
    done = run("compare", "delays", "--url", url, "--batches", "2", "--rows", "1", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert [one["number"] for one in found["batches"]] == [5, 4]
    assert found["total"] == {
        "number": 2, "live": 2, "shadow": 2, "only_live": 2, "only_shadow": 2
    }  # fmt: skip
    assert found["live_rows"] == [{"by": "delays", "n": 5}]
    assert found["shadow_rows"] == [{"by": "delays~4", "n": 5}]
    assert (found["live_batch"], found["shadow_batch"]) == (6, 5)
    shown = run("compare", "delays", "--url", url).output
    assert "the shadow is at batch 5, and the live query at batch 6" in shown
    assert "only shadow: {'by': 'delays~4', 'n': 5}" in shown
    assert "all" in shown


def test_query_without_a_shadow_has_no_comparison(url: str) -> None:
    done = run("compare", "storms", "--url", url)
    assert done.exit_code != 0
    assert "query storms has no shadow on this node" in str(done.exception or done.output)


@pytest.mark.parametrize(
    ("order", "reason"),
    [("promote", "9 batches behind"), ("discard", "deploy one with --shadow")],
)
def test_refusal_of_an_order_is_shown(url: str, orders: Orders, order: str, reason: str) -> None:
    done = run(order, "delays", "--url", url, "--by", "bob")
    assert done.exit_code != 0
    assert reason in str(done.exception or done.output)
    assert orders.given == [(order, "delays", "bob")]


def test_orders_and_comparisons_need_a_token_for_deployments(url: str, orders: Orders) -> None:
    for order in ("compare", "promote", "discard"):
        done = CliRunner().invoke(query_app, [order, "delays", "--url", url])
        assert "needs a token for deploy" in str(done.exception or done.output)
    assert orders.given == []
