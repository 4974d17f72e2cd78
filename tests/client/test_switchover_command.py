"""``ha-engine switchover`` waits for a moment at which the other node is ready."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from ha_engine.access import OPEN
from ha_engine.api.http import NodeView, application
from ha_engine.cli import root
from tests.client.serving import serving

RUNNER = CliRunner()
BEHIND = "the queries of node-b have not caught up"


class Active:
    """Refuses so many times, then hands over at once."""

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


@pytest.fixture
def url(active: Active) -> Iterator[str]:
    view = NodeView(
        status=active.status,
        cluster=dict,
        exposition=lambda: b"",
        skip=lambda query, by: "",
        retry=lambda query: "",
        alive=lambda: True,
        switchover=active.switch_over,
    )
    with serving(application(view, [], OPEN)) as served:
        yield served


def test_it_asks_again_while_the_other_is_a_batch_behind(url: str, active: Active) -> None:
    active.refusals = 3
    done = RUNNER.invoke(root, ["switchover", "--url", url])
    assert (done.exit_code, active.asked) == (0, 4)
    assert done.output.startswith("node-b is the active since")


def test_programs_get_the_new_active_as_data(url: str, active: Active) -> None:
    told = json.loads(RUNNER.invoke(root, ["switchover", "--url", url, "--json"]).stdout)
    assert told["active"] == "node-b"
    assert told["seconds"] > 0


def test_without_patience_the_first_refusal_is_told(url: str, active: Active) -> None:
    active.refusals = 1
    done = RUNNER.invoke(root, ["switchover", "--url", url, "--wait", "0"])
    assert active.asked == 1
    assert BEHIND in str(done.exception) + done.output
    assert done.exit_code == 1
