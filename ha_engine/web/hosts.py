"""Refuse requests for a host name that is not this node's.

A page of another site cannot read a node's answers. But its owner can let the name of the site
resolve to the node's address, and the browser then treats the node as a part of the site (DNS
rebinding). Such a request has the site's name in its Host header. A browser adds no token to it, so
a request with a token needs no check. An address in the Host header cannot come from a name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class KnownHosts:
    """Middleware that answers 421 to a request without a token for an unknown host name."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app, self._names = app, {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = None if scope["type"] != "http" else self._unknown(Headers(scope=scope))
        await (self._app if name is None else _refusal(name))(scope, receive, send)

    def _unknown(self, headers: Headers) -> str | None:
        """The host name of the request if it is unknown and the request has no token."""
        host = headers.get("host")
        if host is None or "authorization" in headers:
            return None
        name = name_of(host)
        known = name in self._names or name == "localhost" or name.endswith(".localhost")
        return None if known or _is_address(name) else name


def name_of(host: str) -> str:
    """The name or address in a Host header or in HOST:PORT, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refusal(name: str) -> JSONResponse:
    return JSONResponse(
        {
            "error": f"this node does not serve the host name {name!r}; add it to http.host_names, "
            "or send a token"
        },
        421,
    )
