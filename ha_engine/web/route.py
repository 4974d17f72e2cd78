"""One operation of the HTTP interface: its route together with what it takes and answers.

Every route of a node is one of these, so that what is served and what GET /openapi.json says are
made from the same words (``ha_engine.api.openapi``).
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
"""For the type of a body: the docstrings of its fields are their descriptions."""


@described
class Refusal(TypedDict):
    """Why it was not done."""

    error: str
    """One sentence: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the request besides its body, or a header of an answer; ``type`` as in Python."""

    name: str
    place: Literal["path", "query", "header"]
    means: str
    type: Any = str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a status code means, and the type of its body in ``media_type``."""

    means: str
    body: Any = Refusal
    media_type: str = JSON
    headers: Sequence[Parameter] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """``name`` is unique. ``body`` has a type for each content type that is read. ``needs`` is what
    its caller must be allowed to do."""

    name: str
    says: str
    answers: Mapping[int, Answer]
    takes: Sequence[Parameter] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    needs_body: bool = False
    needs: Right = Right.ADMIN


class OperationRoute(Route):
    """A route that says what it does; ``methods`` are those that do the same."""

    def __init__(self, path: str, endpoint: Any, operation: Operation, *methods: str) -> None:
        super().__init__(path, endpoint, methods=methods, name=operation.name)
        self.operation = operation

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises HTTPException for who may not do it, before anything of a body is read."""
        access: Access = scope["app"].state.access
        denied = access.denial(self.operation.needs, Headers(scope=scope).get("authorization"))
        if denied is not None:
            status, headers = (403 if denied.known else 401), {"WWW-Authenticate": "Bearer"}
            raise HTTPException(status, denied.reason, headers)
        await super().handle(scope, receive, send)


def guarded(
    routes: Sequence[Route], access: Access, handlers: Mapping[Any, Any] | None = None
) -> Starlette:
    """The ASGI application of ``routes``, which look at ``access`` before they do anything."""
    served = Starlette(routes=routes, exception_handlers=handlers)
    let_in(served, access)
    # A path is answered or it is not: a redirect would tell whatever Host the client made up.
    served.router.redirect_slashes = False
    return served


def let_in(served: Starlette, access: Access) -> None:
    """From now on; what has begun goes on."""
    served.state.access = access
