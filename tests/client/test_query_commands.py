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
