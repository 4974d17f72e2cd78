"""A page of a site whose name resolves to the node reads and changes nothing (DNS rebinding)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from ha_engine.api.http import http_error
from ha_engine.auth import Access, Right, digest_of, new_token
from ha_engine.web.route import Operation, OperationRoute, guarded

KNOWN = ["node-a", "node-a:8080", "NODE-A.:8080", "balancer.example", "localhost:1", "x.localhost"]
ADDRESSES = ["127.0.0.1:8080", "10.0.0.7", "[::1]:8080", "[fe80::1]"]
FOREIGN = ["evil.example:8080", "node-a.evil.example", "127.0.0.1.evil.example", "evil", "[evil]"]
TOKEN = new_token()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async def answer(request: Request) -> JSONResponse:
        return JSONResponse({})

    change = Operation("change", "Change something.", {}, needs=Right.ADMIN)
    look = Operation("look", "Look.", {}, needs=Right.READ)
    alive = Operation("alive", "Whether it lives.", {}, needs=Right.NOTHING)
    routes = [
        OperationRoute("/v1/pause", answer, change, "POST"),
        OperationRoute("/v1/status", answer, look, "GET"),
        OperationRoute("/liveness", answer, alive, "GET"),
    ]
    access = Access.of({Right.INGEST: {"p": digest_of(TOKEN)}})
    names = {"node-a", "balancer.example"}
    served = guarded(routes, access, {HTTPException: http_error}, names)
    transport = httpx.ASGITransport(served)
    async with httpx.AsyncClient(transport=transport, base_url="http://node-a") as client:
        yield client


@pytest.mark.parametrize("host", [*KNOWN, *ADDRESSES])
async def test_request_for_a_name_of_the_node_or_an_address_is_served(
    client: httpx.AsyncClient, host: str
) -> None:
    assert (await client.post("/v1/pause", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("call", [("POST", "/v1/pause"), ("GET", "/v1/status")])
async def test_request_for_a_foreign_name_is_refused(
    client: httpx.AsyncClient, call: tuple[str, str], host: str
) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    answer = await client.request(*call, headers=headers)
    assert answer.status_code == 421
    assert "add it to http.host_names" in answer.json()["error"]


async def test_page_may_invent_a_token_but_only_a_known_token_is_served(
    client: httpx.AsyncClient,
) -> None:
    async def status(token: str) -> int:
        headers = {"Host": "evil.example", "Authorization": f"Bearer {token}"}
        return (await client.post("/v1/pause", headers=headers)).status_code

    assert (await status("invented"), await status(TOKEN)) == (421, 200)


async def test_check_of_the_health_is_served_for_each_name(client: httpx.AsyncClient) -> None:
    assert (await client.get("/liveness", headers={"Host": "balancer-2"})).status_code == 200
