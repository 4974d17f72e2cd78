"""``ha-engine query skip`` and ``retry`` over the real routes, before a node that answers them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from ha_engine.api.http import NodeView, application
from ha_engine.auth import OPEN
from ha_engine.cli.status import query_app
from ha_engine.errors import EngineError
from ha_engine.types import STATE_PARTITIONS_MAX
from tests.client.serving import serving

RUNNER = CliRunner()


class FailedNode:
    """A node whose query delays is FAILED; it records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.refusal = ""

    def skip(self, query: str, by: str) -> str:
        self.asked.append(("skip", query, by))
        return self.refusal

    def retry(self, query: str) -> str:
        self.asked.append(("retry", query))
        return self.refusal

    def rescale(self, query: str, partitions: int) -> str:
        self.asked.append(("rescale", query, str(partitions)))
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
        rescale=node.rescale,
        alive=lambda: True,
        switchover=lambda to, by: "",
    )
    with serving(application(view, [], OPEN)) as served:
        yield served


def test_retry_sends_the_query_to_the_node(url: str, node: FailedNode) -> None:
    done = RUNNER.invoke(query_app, ["retry", "delays", "--url", url])
    assert (done.exit_code, done.output) == (0, "delays tries its batch again\n")
    assert node.asked == [("retry", "delays")]


def test_name_of_a_query_cannot_reach_another_path(url: str, node: FailedNode) -> None:
    refused = RUNNER.invoke(query_app, ["retry", "../pause?", "--url", url])
    assert refused.exit_code != 0
    assert node.asked == []


def test_skip_sends_the_name_of_the_operator(url: str, node: FailedNode) -> None:
    done = RUNNER.invoke(query_app, ["skip", "delays", "--by", "alice", "--url", url])
    assert done.exit_code == 0
    assert node.asked == [("skip", "delays", "alice")]


@pytest.mark.parametrize("command", ["skip", "retry"])
def test_command_fails_with_the_reason_of_the_node(
    url: str, node: FailedNode, command: str
) -> None:
    node.refusal = "query delays has not failed"
    refused = RUNNER.invoke(query_app, [command, "delays", "--url", url])
    assert str(refused.exception) == "query delays has not failed"


@pytest.mark.parametrize("command", ["skip", "retry"])
def test_error_names_an_unknown_query(url: str, node: FailedNode, command: str) -> None:
    refused = RUNNER.invoke(query_app, [command, "storms", "--url", url])
    assert str(refused.exception) == "no query named storms"
    assert node.asked == []


def test_rescale_sends_the_number_of_partitions(url: str, node: FailedNode) -> None:
    done = RUNNER.invoke(query_app, ["rescale", "delays", "--partitions", "16", "--url", url])
    assert done.exit_code == 0
    assert node.asked == [("rescale", "delays", "16")]


def test_rescale_shows_why_the_node_refuses(url: str, node: FailedNode) -> None:
    node.refusal = "this node is not active; ask the active"
    done = RUNNER.invoke(query_app, ["rescale", "delays", "--partitions", "16", "--url", url])
    assert isinstance(done.exception, EngineError)
    assert str(done.exception) == node.refusal


def test_rescale_refuses_more_partitions_than_a_state_may_have(url: str, node: FailedNode) -> None:
    many = str(STATE_PARTITIONS_MAX + 1)
    done = RUNNER.invoke(query_app, ["rescale", "delays", "--partitions", many, "--url", url])
    assert done.exit_code != 0
    assert node.asked == []
