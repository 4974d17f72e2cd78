"""The web page at ``/``: its static files, and the rules by which a page may read other nodes.

docs/adr/0010 says why a peer's page may read a node, and why no other page may.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

FILES = Path(__file__).parent / "page"
READ_BY_PEERS = frozenset({"/v1/status", "/v1/cluster", "/v1/history", "/v1/application"})
"""The only paths that a peer's page may read here, by a GET, which changes nothing."""

Urls = Callable[[], Iterable[str]]
"""Returns the URLs of the peers' pages, as each peer reported its own."""

_URL = re.compile(r"(https?)://(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:\d{1,5})?")
_USUAL_PORTS = {("http", ":80"), ("https", ":443")}
_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class WithPage:
    """An ASGI application that serves ``api`` and the page at ``/``, and limits browsers' requests.

    A peer's page may read only the paths in READ_BY_PEERS. A page of another site may change
    nothing on the node. The API answers, or refuses, every request for a path outside the page.
    An observer serves the page too, and names the nodes that it has ``observed``.
    """

    def __init__(self, api: ASGIApp, peers: Urls, observed: Sequence[str] = ()) -> None:
        self._api, self._readable = api, ReadByPeers(api, peers)
        self._page = Starlette(routes=_routes(peers, observed))
        self._paths = {"/", *(f"/page/{file.relative_to(FILES)}" for file in FILES.rglob("*.*"))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._of(scope)(scope, receive, send)

    def _of(self, scope: Scope) -> ASGIApp:
        if scope["type"] != "http":
            return self._api
        if scope["path"] in READ_BY_PEERS and scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return self._readable
        if scope["method"] not in ("GET", "HEAD"):
            return _NOT_FROM_THERE if _is_of_another_site(scope) else self._api
        return self._page if scope["path"] in self._paths else self._api


def with_observed_page(api: ASGIApp, nodes: Sequence[str]) -> ASGIApp:
    """An ASGI application that serves ``api`` of an observer, and the page at ``/``. The page asks
    the observer for the last answers of each of ``nodes``."""
    return WithPage(api, tuple, nodes)


_NOT_FROM_THERE = JSONResponse(
    {"error": "a page of another site sent this request; use the page of this node instead"}, 403
)


def _is_of_another_site(scope: Scope) -> bool:
    """Whether a page of another site sent the request.

    A page of another site can make a browser send requests to this node without the user's
    knowledge. A browser sends ``Sec-Fetch-Site`` only over https or to a loopback address. A
    browser sends ``Origin`` with every request except GET and HEAD.
    """
    headers = Headers(scope=scope)
    relation, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if relation is not None or origin is None:
        return relation in ("cross-site", "same-site")
    return origin.partition("://")[2] != headers.get("host", "").lower()


def _routes(peers: Urls, observed: Sequence[str]) -> list[BaseRoute]:
    async def index(request: Request) -> Response:
        policy = {"Content-Security-Policy": content_security_policy(peers())}
        if not observed:
            return FileResponse(FILES / "index.html", headers=_HEADERS | policy)
        names = f'<body data-observed="{escape(" ".join(observed))}">'
        text = (FILES / "index.html").read_text().replace("<body>", names, 1)
        return HTMLResponse(text, headers=_HEADERS | policy)

    return [Route("/", index, methods=["GET"]), Mount("/page", _Files(directory=FILES))]


class _Files(StaticFiles):
    """The page's files. At each load of the page, a browser checks each file again by its ETag."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers.update(_HEADERS)
        return response


def content_security_policy(urls: Iterable[str]) -> str:
    """A policy that allows scripts, styles and images from this node only.

    The policy allows requests for data only to this node and to the origins of ``urls``.

    The directives on trusted types make a browser refuse to parse any string as markup.
    """
    sources = " ".join(["'self'", *sorted(origins(urls))])
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        f"connect-src {sources}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def origins(urls: Iterable[str]) -> set[str]:
    """The origins of ``urls`` as browsers write them.

    The result omits a text that is not a URL, because a peer may report any text as its URL.
    """
    found = filter(None, (_URL.fullmatch(url.lower()) for url in urls))
    return {_origin(*match.groups(default="")) for match in found}


def _origin(scheme: str, host: str, port: str) -> str:
    return f"{scheme}://{host}" + ("" if (scheme, port) in _USUAL_PORTS else port)


class ReadByPeers(CORSMiddleware):
    """Middleware that lets a peer's page read the answers of ``app``, also with a token.

    The answer to any other page has no CORS header, so the browser hides the answer from that page.
    """

    def __init__(self, app: ASGIApp, peers: Urls) -> None:
        super().__init__(app, allow_methods=["GET"], allow_headers=["Authorization"])
        self._peers = peers

    def is_allowed_origin(self, origin: str) -> bool:
        return origin in origins(self._peers())
