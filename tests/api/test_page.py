"""The page's files and headers, and the origins that may read a node's JSON in a browser."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ha_engine.api.page import FILES, READ_BY_PEERS, WithPage, origins

PEER = "http://10.0.0.2:8080"
PATHS = ["/", *sorted(f"/page/{file.relative_to(FILES)}" for file in FILES.rglob("*.*"))]


@pytest.fixture
async def browser() -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a node whose peer has named PEER."""

    async def told(request: Request) -> JSONResponse:
        return JSONResponse({"path": request.url.path})

    paths = [*READ_BY_PEERS, "/v1/snapshot", "/v1/switchover"]
    api = Starlette(routes=[Route(path, told, methods=["GET", "POST"]) for path in paths])
    transport = httpx.ASGITransport(WithPage(api, lambda: [PEER]))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
async def test_each_file_is_served_and_names_no_other_host(
    browser: httpx.AsyncClient, path: str
) -> None:
    answer = await browser.get(path)
    assert answer.status_code == 200
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Type"].split(";")[0] in TYPES[path.rpartition(".")[2]]
    assert set(re.findall(r"https?://[^\s'\"]+", answer.text)) <= {"http://www.w3.org/2000/svg"}
    again = await browser.get(path, headers={"If-None-Match": answer.headers["ETag"]})
    assert again.status_code in (200, 304)


TYPES = {
    "/": ["text/html"],
    "html": ["text/html"],
    "css": ["text/css"],
    "svg": ["image/svg+xml"],
    "js": ["text/javascript", "application/javascript"],
}


async def test_page_may_load_only_its_files_and_connect_only_to_the_nodes(
    browser: httpx.AsyncClient,
) -> None:
    page = await browser.get("/")
    policy = dict(
        part.split(" ", 1) for part in page.headers["Content-Security-Policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == f"'self' {PEER}"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["trusted-types"] == policy["frame-ancestors"] == "'none'"
    # The page needs no exception: it contains no inline script, style or handler.
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page.text)


async def test_only_the_page_of_a_peer_may_read_and_only_read_routes(
    browser: httpx.AsyncClient,
) -> None:
    async def allowed(method: str, path: str, origin: str) -> str | None:
        answer = await browser.request(method, path, headers={"Origin": origin})
        assert "Access-Control-Allow-Credentials" not in answer.headers
        return answer.headers.get("Access-Control-Allow-Origin")

    for path in READ_BY_PEERS:
        assert await allowed("GET", path, PEER) == PEER
        assert await allowed("GET", path, "http://10.0.0.2:9090") is None
        assert await allowed("GET", path, "null") is None
        assert await allowed("POST", path, PEER) is None
    assert await allowed("GET", "/v1/snapshot", PEER) is None
    assert await allowed("POST", "/v1/switchover", PEER) is None


async def test_page_of_a_peer_may_send_its_token_and_no_other_header(
    browser: httpx.AsyncClient,
) -> None:
    """A browser sends a preflight request before it sends a token to another origin."""

    async def may(path: str, **asked: str) -> bool:
        usual = {"origin": PEER, "method": "GET", "headers": "authorization"} | asked
        headers = {f"Access-Control-Request-{name}": usual[name] for name in ("method", "headers")}
        headers |= {"Origin": usual["origin"], "Sec-Fetch-Site": "cross-site"}
        answer = await browser.options(path, headers=headers)
        assert "Access-Control-Allow-Credentials" not in answer.headers
        allowed = answer.headers.get("Access-Control-Allow-Origin") == usual["origin"]
        return answer.is_success and allowed

    for path in READ_BY_PEERS:
        assert await may(path)
        assert not await may(path, origin="http://10.0.0.2:9090")
        assert not await may(path, origin="null")
        assert not await may(path, method="POST")
        assert not await may(path, headers="authorization,x-other")
    assert not await may("/v1/snapshot")
    assert not await may("/v1/switchover", method="POST")


@pytest.mark.parametrize(
    ("sent_by", "status"),
    [("same-origin", 200), ("none", 200), (None, 200), ("same-site", 403), ("cross-site", 403)],
)
async def test_page_of_another_site_can_change_nothing(
    browser: httpx.AsyncClient, sent_by: str | None, status: int
) -> None:
    headers = {"Sec-Fetch-Site": sent_by} if sent_by else {}
    answer = await browser.post("/v1/switchover", headers=headers)
    assert answer.status_code == status
    assert ("error" in answer.json()) is (status == 403)


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://10.0.0.1:8080", 200), ("http://evil", 403), ("http://10.0.0.1", 403), ("null", 403)],
)
async def test_origin_header_decides_when_a_browser_sends_no_fetch_metadata(
    browser: httpx.AsyncClient, origin: str, status: int
) -> None:
    """A browser omits the relation on every http address that is not loopback."""
    headers = {"Origin": origin, "Host": "10.0.0.1:8080"}
    assert (await browser.post("/v1/switchover", headers=headers)).status_code == status


async def test_unknown_path_below_the_page_is_404(
    browser: httpx.AsyncClient,
) -> None:
    for path in ("/page/", "/page/nothing.js", "/page/../page.py", "/page/%2e%2e/page.py"):
        assert (await browser.get(path)).status_code == 404
    assert (await browser.post("/")).status_code == 404


def test_url_that_is_no_origin_is_in_no_header() -> None:
    named = ["HTTP://Node-B:80", "https://b.example:443", "http://[::1]:8080", ""]
    hostile = ["http://b; script-src *", "http://b/path", "http://b\r\nX: y", "javascript:x", "*"]
    assert origins([*named, *hostile]) == {
        "http://node-b",
        "https://b.example",
        "http://[::1]:8080",
    }
