"""``ha-engine query skip`` and ``retry`` over the real routes, before a node that answers them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from ha_engine.api.http import NodeView, application
from ha_engine.auth import OPEN
from ha_engine.cli.status import query_app
from tests.client.serving import serving

RUNNER = CliRunner()


class FailedNode:
    """Its query delays has FAILED; what it is asked for is noted."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.refusal = ""

    def skip(self, query: str, by: str) -> str:
        self.asked.append(("skip", query, by))
        return self.refusal

    def retry(self, query: str) -> str:
        self.asked.append(("retry", query))
        return self.refusal


@pytest.fixture
def node() -> FailedNode:
    return FailedNode()


@pytest.fixture
def url(node: FailedNode) -> Iterator[str]:
    view = NodeView(
        status=lambda: {"queries": {"delays": {}}},
        cluster=dict,
        exposition=lambda: b"",
        skip=node.skip,
        retry=node.retry,
        alive=lambda: True,
        switchover=lambda to, by: "",
    )
    with serving(application(view, [], OPEN)) as served:
        yield served


def test_retry_asks_the_node_for_that_query(url: str, node: FailedNode) -> None:
    done = RUNNER.invoke(query_app, ["retry", "delays", "--url", url])
    assert (done.exit_code, done.output) == (0, "delays tries its batch again\n")
    assert node.asked == [("retry", "delays")]


def test_skip_says_who_decided(url: str, node: FailedNode) -> None:
    done = RUNNER.invoke(query_app, ["skip", "delays", "--by", "alice", "--url", url])
    assert done.exit_code == 0
    assert node.asked == [("skip", "delays", "alice")]


@pytest.mark.parametrize("command", ["skip", "retry"])
def test_the_nodes_reason_is_the_commands_error(url: str, node: FailedNode, command: str) -> None:
    node.refusal = "query delays has not failed"
    refused = RUNNER.invoke(query_app, [command, "delays", "--url", url])
    assert str(refused.exception) == "query delays has not failed"


@pytest.mark.parametrize("command", ["skip", "retry"])
def test_a_query_that_is_not_there_is_named(url: str, node: FailedNode, command: str) -> None:
    refused = RUNNER.invoke(query_app, [command, "storms", "--url", url])
    assert str(refused.exception) == "no query named storms"
    assert node.asked == []
