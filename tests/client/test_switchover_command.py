"""``ha-engine switchover`` waits until the other node is ready."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.responses import HTMLResponse
from typer.testing import CliRunner

from ha_engine.api.http import NodeView, application
from ha_engine.auth import OPEN
from ha_engine.cli.root import program
from ha_engine.errors import NodeUnreachable
from tests.client.serving import serving

RUNNER = CliRunner()
BEHIND = "the queries of node-b have not caught up"


class Active:
    """An active that refuses a number of times, then hands over at once."""

    def __init__(self) -> None:
        self.refusals, self.asked = 0, 0

    def switch_over(self, to: str | None, by: str) -> str:
        self.asked += 1
        return BEHIND if self.asked <= self.refusals else ""

    def status(self) -> dict[str, Any]:
        gone = self.asked > self.refusals
        lease = {"holder": "node-b" if gone else "node-a"}
        role = "passive" if gone else "active"
        return {"role": role, "active": None, "handover_to": "node-b", "lease": lease}


@pytest.fixture
def active() -> Active:
    return Active()


@contextmanager
def served(active: Active) -> Iterator[str]:
    view = NodeView(
        status=active.status,
        cluster=dict,
        exposition=lambda: b"",
        skip=lambda query, by: "",
        retry=lambda query: "",
        rescale=lambda query, partitions: "",
        alive=lambda: True,
        switchover=active.switch_over,
    )
    with serving(application(view, [], OPEN)) as url:
        yield url


@pytest.fixture
def url(active: Active) -> Iterator[str]:
    with served(active) as url:
        yield url


def test_switchover_retries_while_the_peer_is_a_batch_behind(url: str, active: Active) -> None:
    active.refusals = 3
    done = RUNNER.invoke(program(), ["switchover", "--url", url])
    assert (done.exit_code, active.asked) == (0, 4)
    assert done.output.startswith("node-b became the active")


def test_switchover_prints_the_new_active_as_data_for_programs(url: str, active: Active) -> None:
    told = json.loads(RUNNER.invoke(program(), ["switchover", "--url", url, "--json"]).stdout)
    assert told["active"] == "node-b"
    assert told["seconds"] > 0


def test_switchover_without_a_wait_reports_the_first_refusal(url: str, active: Active) -> None:
    active.refusals = 1
    done = RUNNER.invoke(program(), ["switchover", "--url", url, "--wait", "0"])
    assert active.asked == 1
    assert BEHIND in str(done.exception) + done.output
    assert done.exit_code == 1


class NamesItself(Active):
    """A passive that names its own address as the active's."""

    url = ""

    def status(self) -> dict[str, Any]:
        return {**super().status(), "active": self.url}


def test_node_that_names_itself_as_active_is_asked_only_once_more() -> None:
    passive = NamesItself()
    passive.refusals = 100
    with served(passive) as url:
        passive.url = url
        done = RUNNER.invoke(program(), ["switchover", "--url", url, "--wait", "0"])
    assert (done.exit_code, passive.asked) == (1, 2)


@pytest.mark.parametrize("command", [["status"], ["switchover"], ["snapshot", "now"]])
@pytest.mark.parametrize("status", [200, 503])
def test_server_that_is_no_node_is_named_by_its_url(command: list[str], status: int) -> None:
    async def balancer(scope: Any, receive: Any, send: Any) -> None:
        await HTMLResponse("<h1>no server is available</h1>", status)(scope, receive, send)

    with serving(balancer) as url:
        done = RUNNER.invoke(program(), [*command, "--url", url])
    assert isinstance(done.exception, NodeUnreachable)
    assert f"{url} answered {status}, but not like a node" in str(done.exception)


def test_malformed_url_is_reported() -> None:
    done = RUNNER.invoke(program(), ["status", "--url", "http://[::1"])
    assert isinstance(done.exception, NodeUnreachable)
