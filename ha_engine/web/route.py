"""One operation of the HTTP interface: its route, with its parameters, body and answers.

Every route of a node is one of these, so that the server and GET /openapi.json use the same
description (``ha_engine.api.openapi``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """A part of the request other than its body, or a header of an answer; ``type`` is Python's."""

    name: str
    place: Literal["path", "query", "header"]
    means: str
    type: Any = str


@dataclass(frozen=True, slots=True)
class Answer:
    """The meaning of a status code, and the type of its body in ``media_type``."""

    means: str
    body: Any = Refusal
    media_type: str = JSON
    headers: Sequence[Parameter] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation. ``name`` is unique. ``body`` has a type for each accepted content type.
    ``needs`` is the right that its caller must have."""

    name: str
    says: str
    answers: Mapping[int, Answer]
    takes: Sequence[Parameter] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    needs_body: bool = False
    needs: Right = Right.ADMIN


class OperationRoute(Route):
    """A route with its description; all ``methods`` do the same."""

    def __init__(self, path: str, endpoint: Any, operation: Operation, *methods: str) -> None:
        super().__init__(path, endpoint, methods=methods, name=operation.name)
        self.operation = operation

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the caller's right before the body is read. Raises HTTPException without it."""
        access: Access = scope["app"].state.access
        denied = access.denial(self.operation.needs, Headers(scope=scope).get("authorization"))
        if denied is not None:
            status, headers = (403 if denied.known else 401), {"WWW-Authenticate": "Bearer"}
            raise HTTPException(status, denied.reason, headers)
        await super().handle(scope, receive, send)


def guarded(
    routes: Sequence[Route], access: Access, handlers: Mapping[Any, Any] | None = None
) -> Starlette:
    """The ASGI application of ``routes``, which check ``access`` before anything else."""
    served = Starlette(routes=routes, exception_handlers=handlers)
    let_in(served, access)
    # No redirect for a slash: it would repeat whatever Host header the client made up.
    served.router.redirect_slashes = False
    return served


def let_in(served: Starlette, access: Access) -> None:
    """Use ``access`` from now on. Requests that have begun continue."""
    served.state.access = access
