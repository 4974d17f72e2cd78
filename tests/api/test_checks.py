"""The lag that a load balancer may require of a passive beside its role."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ha_engine.api.http import NodeView, application
from ha_engine.auth import OPEN

PASSIVE: dict[str, Any] = {
    "role": "passive",
    "epoch": 3,
    "reason": "in sync",
    "suspended": False,
    "disk_late": False,
    "queries": {},
}


async def asked(path: str, lag: int | None, **status: Any) -> httpx.Response:
    cluster = {"node": "b", "nodes": {"b": {"lag_records": lag}}}
    nobody: Any = None
    view = NodeView(
        lambda: PASSIVE | status,
        lambda: cluster,
        bytes,
        nobody,
        nobody,
        nobody,
        lambda: True,
        nobody,
    )
    transport = httpx.ASGITransport(application(view, [], OPEN))
    async with httpx.AsyncClient(transport=transport, base_url="http://b") as client:
        return await client.get(path)


@pytest.mark.parametrize("name", ["passive", "replica"])
async def test_passive_check_fails_when_the_lag_is_too_high(name: str) -> None:
    assert (await asked(f"/{name}", 1000)).status_code == 200
    assert (await asked(f"/{name}?lag=10", 10)).status_code == 200
    behind = await asked(f"/{name}?lag=10", 11)
    assert (behind.status_code, behind.json()["ok"]) == (503, False)
    assert (await asked(f"/{name}?lag=10", None)).status_code == 503


async def test_passive_check_fails_on_an_active_at_any_lag() -> None:
    assert (await asked("/replica?lag=10", 0, role="active")).status_code == 503


@pytest.mark.parametrize(
    ("name", "role"),
    [("passive", "passive"), ("active", "active"), ("readiness", "passive"), ("health", "active")],
)
async def test_check_fails_while_the_disk_does_not_answer(name: str, role: str) -> None:
    assert (await asked(f"/{name}", 0, role=role)).status_code == 200
    assert (await asked(f"/{name}", 0, role=role, disk_late=True)).status_code == 503


@pytest.mark.parametrize("lag", ["", "-1", "1.5", "many", "9" * 5000])
async def test_invalid_lag_parameter_is_refused(lag: str) -> None:
    answer = await asked(f"/replica?lag={lag}", 0)
    assert answer.status_code == 400
    assert answer.json() == {"error": "lag must be a number of records, such as 1000"}


async def test_check_without_a_lag_parameter_ignores_it() -> None:
    assert (await asked("/readiness?lag=x", None)).status_code == 200
