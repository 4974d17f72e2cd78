"""A page of a site whose name resolves to the node reads and changes nothing (DNS rebinding)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ha_engine.web.hosts import KnownHosts

KNOWN = ["node-a", "node-a:8080", "NODE-A.:8080", "balancer.example", "localhost:1", "x.localhost"]
ADDRESSES = ["127.0.0.1:8080", "10.0.0.7", "[::1]:8080", "[fe80::1]"]
FOREIGN = ["evil.example:8080", "node-a.evil.example", "127.0.0.1.evil.example", "evil", "[evil]"]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async def answer(request: Request) -> JSONResponse:
        return JSONResponse({})

    api = Starlette(routes=[Route("/v1/pause", answer, methods=["GET", "POST"])])
    transport = httpx.ASGITransport(KnownHosts(api, ["node-a", "balancer.example"]))
    async with httpx.AsyncClient(transport=transport, base_url="http://node-a") as client:
        yield client


@pytest.mark.parametrize("host", [*KNOWN, *ADDRESSES])
async def test_request_for_a_name_of_the_node_or_an_address_is_served(
    client: httpx.AsyncClient, host: str
) -> None:
    assert (await client.post("/v1/pause", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_request_for_a_foreign_name_is_refused(
    client: httpx.AsyncClient, method: str, host: str
) -> None:
    origin = {"Host": host, "Origin": f"http://{host}"}
    answer = await client.request(method, "/v1/pause", headers=origin)
    assert answer.status_code == 421
    assert "add it to http.host_names" in answer.json()["error"]


async def test_request_with_a_token_is_served_for_each_name(client: httpx.AsyncClient) -> None:
    headers = {"Host": "evil.example", "Authorization": "Bearer secret"}
    assert (await client.post("/v1/pause", headers=headers)).status_code == 200
