"""``ha-engine failover --force`` over the real routes, before a real core whose active is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from typer.testing import CliRunner

from ha_engine.api.failover import failover_routes
from ha_engine.api.http import http_error
from ha_engine.auth import OPEN
from ha_engine.cli import main
from ha_engine.cli.root import program
from ha_engine.core import (
    Core,
    Deployment,
    HighWater,
    LeaseTiming,
    MarkLimits,
    NodeIdentity,
    RestartPolicy,
)
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core.inputs import Input
from ha_engine.types import DatabaseIdentity, Holder, LeaseRow, Member, Record, Role
from ha_engine.web.route import guarded
from tests.client.serving import serving

RUNNER = CliRunner()
DATABASE = DatabaseIdentity("1", "00000001")
TTL = 5.0


class Left:
    """The node b is alive and not in sync; a, which held the lease and was alone in sync, is
    gone."""

    def __init__(self) -> None:
        timing = LeaseTiming(ttl=TTL, renew_interval=1.0, margin=0.5)
        deployment = Deployment("app", (), MarkLimits(100, 0.0, 1.0, 3, 1000), RestartPolicy())
        identity = NodeIdentity("b", "p1", "jb", "g", "g", None, ("a",))
        self.core = Core(identity, timing, HighWater(), deployment)
        self.row = LeaseRow("g", Holder("a", "p1"), 3, 9, (Member("a", "ja"),))
        self.now = 0.0
        self.written: list[Record] = []
        self.backup_url: str | None = None
        self.handle(on.Tick())

    def cluster(self) -> dict[str, Any]:
        """The answer to GET /v1/cluster, with the backup c if it answers."""
        nodes: dict[str, Any] = {
            "a": {"answers": False, "url": None},
            "b": {"answers": True, "url": "http://127.0.0.1:1"},
            "c": {"answers": self.backup_url is not None, "url": self.backup_url},
        }
        return {"nodes": nodes}

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.handle(on.Tick())

    def handle(self, event: Input) -> None:
        for action in self.core.step(self.now, event):
            match action:
                case do.ReadLease():
                    self.handle(on.LeaseRead(self.row, DATABASE))
                case do.WriteLease(_, wanted):
                    self.row = wanted
                    self.handle(on.LeaseWritten(wanted, DATABASE))
                case do.AppendRecords(records):
                    self.written += records
                    self.handle(on.RecordsDurable(records[-1].position.sequence))
        if isinstance(event, on.FailoverForced):
            self.passes(0.05)


@pytest.fixture
def left() -> Left:
    return Left()


@pytest.fixture
def url(left: Left) -> Iterator[str]:
    async def status(_: Request) -> JSONResponse:
        return JSONResponse({"role": left.core.role.value})

    async def cluster(_: Request) -> JSONResponse:
        return JSONResponse(left.cluster())

    routes = [
        *failover_routes(left.core, left.handle),
        Route("/v1/status", status),
        Route("/v1/cluster", cluster),
    ]
    handlers = {HTTPException: http_error}
    with serving(guarded(routes, OPEN, handlers)) as served:
        yield served


def test_failover_without_force_is_a_usage_error_that_names_switchover() -> None:
    refused = RUNNER.invoke(program(), ["failover"])
    assert refused.exit_code == 2
    assert "switchover" in refused.output


def test_failover_names_the_possible_loss_before_a_refusal(url: str, left: Left) -> None:
    left.passes(2 * TTL)
    refused = RUNNER.invoke(program(), ["failover", "--force", "--yes", "--url", url])
    assert "the journal of this node ends at 0.0" in refused.stderr
    assert "all records committed in epoch 3 are on a" in refused.stderr
    assert "a may be active unseen" in str(refused.exception)
    assert left.core.role is Role.JOINING


def test_failover_is_refused_until_a_possible_active_had_its_ttl(url: str, left: Left) -> None:
    left.passes(TTL / 2)
    forced = ["failover", "--force", "--confirm-fenced", "a", "--yes", "--url", url]
    refused = RUNNER.invoke(program(), forced)
    assert "a may be active: wait until its lease has not been renewed for another 2.5 s" in str(
        refused.exception
    )


def test_failover_gives_up_nothing_without_a_confirmation(url: str, left: Left) -> None:
    left.passes(2 * TTL)
    asked = ["failover", "--force", "--confirm-fenced", "a", "--url", url]
    unanswered = RUNNER.invoke(program(), asked)
    assert unanswered.exit_code == 2
    assert "--yes" in unanswered.output
    assert left.core.role is Role.JOINING


def test_a_confirmed_failover_makes_the_node_the_active(url: str, left: Left) -> None:
    left.passes(2 * TTL)
    forced = [
        "failover",
        "--force",
        "--confirm-fenced",
        "a",
        "--yes",
        "--by",
        "alice",
        "--url",
        url,
    ]
    done = RUNNER.invoke(program(), forced)
    assert done.exit_code == 0, done.output
    assert "b became the active" in done.stdout
    assert left.core.role is Role.ACTIVE
    assert left.row.in_sync == (Member("b", "jb"),)
    assert (left.row.epoch, left.written[0].body.forced) == (4, True)  # type: ignore[union-attr]


@pytest.mark.parametrize(("ends", "exit_code"), [("0.0", 0), ("1.7", 1)])
def test_failover_is_refused_while_a_node_with_more_records_answers(
    url: str, left: Left, ends: str, exit_code: int
) -> None:
    """The backup may have records that a returned node lacks (RULES.md#r37)."""

    async def loss(_: Request) -> JSONResponse:
        return JSONResponse({"journal_ends": ends})

    left.passes(2 * TTL)
    forced = ["failover", "--force", "--confirm-fenced", "a", "--yes", "--url", url]
    with serving(guarded([Route("/v1/failover", loss)], OPEN, {})) as left.backup_url:
        done = RUNNER.invoke(program(), forced)
    assert done.exit_code == exit_code
    assert left.core.role is (Role.JOINING if exit_code else Role.ACTIVE)
    if exit_code:
        said = "c answers, and its journal ends at 1.7, later than that of b at 0.0"
        assert said in str(done.exception)


def test_active_refuses_a_second_failover(url: str, left: Left) -> None:
    left.passes(2 * TTL)
    body = {"force": True, "confirmed_fenced": ["a"]}
    assert httpx.post(f"{url}/v1/failover", json=body).status_code == 202
    again = httpx.post(f"{url}/v1/failover", json=body)
    assert (again.status_code, again.json()["error"]) == (409, "this node is the active")


@pytest.mark.parametrize("body", [{}, {"force": False}])
def test_request_without_force_is_refused_with_the_alternative(
    url: str, body: dict[str, bool]
) -> None:
    refused = httpx.post(f"{url}/v1/failover", json=body)
    assert refused.status_code == 400
    assert "/v1/switchover" in refused.json()["error"]


def test_failover_command_exits_with_the_code_of_its_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["failover", "--force", "--url", "http://127.0.0.1:1"])
    assert ended.value.code == 1
    assert "no node answers" in capsys.readouterr().err
