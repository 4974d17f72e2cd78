"""One operation of the HTTP interface: its route, parameters, body and answers.

Every route of a node's HTTP interface is an ``OperationRoute``. The server and GET /openapi.json
use the same description of each route (``ha_engine.api.openapi``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict, with_config
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from typing_extensions import TypedDict

from ha_engine.auth import Access, Right
from ha_engine.web.hosts import is_served, name_of

JSON = "application/json"
described = with_config(ConfigDict(use_attribute_docstrings=True))
"""Decorates the type of a body: the docstrings of its fields become their descriptions."""


@described
class Refusal(TypedDict):
    """Why the request was refused."""

    error: str
    """One sentence: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of a request other than the body, or a header of an answer; ``type`` is Python's."""

    name: str
    place: Literal["path", "query", "header"]
    means: str
    type: Any = str


@dataclass(frozen=True, slots=True)
class Answer:
    """The meaning of an answer's status code, and the type of its body in ``media_type``, or None
    if the answer has no body."""

    means: str
    body: Any = Refusal
    media_type: str = JSON
    headers: Sequence[Parameter] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the HTTP interface.

    ``name`` is unique. ``body`` has a type for each accepted content type. ``needs`` is the right
    that the caller of the operation must have.
    """

    name: str
    says: str
    answers: Mapping[int, Answer]
    takes: Sequence[Parameter] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    needs_body: bool = False
    needs: Right = Right.ADMIN


class OperationRoute(Route):
    """A route with the description of its operation; all ``methods`` do the same."""

    def __init__(self, path: str, endpoint: Any, operation: Operation, *methods: str) -> None:
        super().__init__(path, endpoint, methods=methods, name=operation.name)
        self.operation = operation

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the caller's right before the body is read.

        Raises HTTPException if the right is missing, or if the request may come from a page of
        another site.
        """
        access: Access = scope["app"].state.access
        headers = Headers(scope=scope)
        authorization, host = headers.get("authorization"), headers.get("host")
        denied = access.denial(self.operation.needs, authorization)
        if denied is not None:
            status, answer = (403 if denied.known else 401), {"WWW-Authenticate": "Bearer"}
            raise HTTPException(status, denied.reason, answer)
        # A page of another site knows no token, and a check of the node's health tells it nothing.
        open_to_pages = self.operation.needs is not Right.NOTHING and not access.knows(
            authorization
        )
        if open_to_pages and host is not None:
            _require_served(host, scope["app"].state.host_names)
        await super().handle(scope, receive, send)


def _require_served(host: str, names: Set[str] | None) -> None:
    if names is not None and not is_served(host, names):
        raise HTTPException(
            421,
            f"this node does not serve the host name {name_of(host)!r}; add it to http.host_names, "
            "or send a token",
        )


def guarded(
    routes: Sequence[Route],
    access: Access,
    handlers: Mapping[Any, Any] | None = None,
    host_names: Set[str] | None = None,
) -> Starlette:
    """The ASGI application of ``routes``, each of which first checks the caller's right.

    Requests without a token must name one of ``host_names``, unless it is None.
    """
    served = Starlette(routes=routes, exception_handlers=handlers)
    set_access(served, access)
    served.state.host_names = host_names
    # A redirect for a missing slash would repeat the request's Host header, which a client can
    # forge.
    served.router.redirect_slashes = False
    return served


def set_access(served: Starlette, access: Access) -> None:
    """Check all later requests against ``access``. Requests that have begun continue."""
    served.state.access = access
