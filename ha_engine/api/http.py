"""The node's own HTTP routes: status, health, metrics, and what an operator may ask of a query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

CHECKS = ["GET", "HEAD", "OPTIONS"]
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the routes may ask of a node."""

    status: Callable[[], dict[str, Any]]
    cluster: Callable[[], dict[str, Any]]
    exposition: Callable[[], bytes]
    skip: Callable[[str, str], str]
    retry: Callable[[str], str]
    alive: Callable[[], bool]
    switchover: Callable[[str | None, str], str]


class SkipBody(BaseModel):
    """Body of POST /v1/queries/{query}/skip."""

    model_config = ConfigDict(extra="forbid")
    by: str = "operator"


class SwitchoverBody(BaseModel):
    """Body of POST /v1/switchover; without ``to`` any node that can take over does."""

    model_config = ConfigDict(extra="forbid")
    to: str | None = None
    by: str = "operator"


def application(view: NodeView, others: Sequence[BaseRoute]) -> Starlette:
    """The ASGI application of a node; ``others`` are the routes of ingest and of the lease."""
    routes = [
        *others,
        Route("/v1/status", _tree(view.status), methods=["GET"]),
        Route("/v1/cluster", _tree(view.cluster), methods=["GET"]),
        Route("/v1/queries/{query}/skip", _skip(view), methods=["POST"]),
        Route("/v1/queries/{query}/retry", _retry(view), methods=["POST"]),
        Route("/v1/switchover", _switchover(view), methods=["POST"]),
        Route("/metrics", _metrics(view), methods=["GET"]),
        Route("/liveness", _check(view, _alive), methods=CHECKS),
        Route("/health", _check(view, _healthy), methods=CHECKS),
        Route("/readiness", _check(view, _ready), methods=CHECKS),
        Route("/active", _check(view, _active), methods=CHECKS),
        Route("/primary", _check(view, _active), methods=CHECKS),
        Route("/passive", _check(view, _passive), methods=CHECKS),
        Route("/replica", _check(view, _passive), methods=CHECKS),
    ]
    handlers: dict[Any, Any] = {HTTPException: _http_error}
    return Starlette(routes=routes, exception_handlers=handlers)


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    body = {"error": f"{request.method} {request.url.path}: {error.detail.lower()}"}
    return JSONResponse(body, error.status_code, headers=error.headers)


def _tree(ask: Callable[[], dict[str, Any]]) -> Any:
    async def respond(request: Request) -> JSONResponse:
        return JSONResponse(ask())

    return respond


def _metrics(view: NodeView) -> Any:
    async def respond(request: Request) -> Response:
        return Response(view.exposition(), media_type=PROMETHEUS_TEXT)

    return respond


def _skip(view: NodeView) -> Any:
    async def respond(request: Request) -> JSONResponse:
        try:
            body = SkipBody.model_validate_json(await request.body() or b"{}")
        except ValidationError as error:
            return JSONResponse({"error": error.errors()[0]["msg"]}, 400)
        return _revived(view, request, lambda query: view.skip(query, body.by))

    return respond


def _retry(view: NodeView) -> Any:
    async def respond(request: Request) -> JSONResponse:
        return _revived(view, request, view.retry)

    return respond


def _switchover(view: NodeView) -> Any:
    async def respond(request: Request) -> JSONResponse:
        try:
            body = SwitchoverBody.model_validate_json(await request.body() or b"{}")
        except ValidationError as error:
            return JSONResponse({"error": error.errors()[0]["msg"]}, 400)
        refusal = view.switchover(body.to, body.by)
        if refusal:
            return JSONResponse({"error": refusal, "active": view.status()["active"]}, 409)
        return JSONResponse({"to": view.status()["handover_to"]}, 202)

    return respond


def _revived(view: NodeView, request: Request, revive: Callable[[str], str]) -> JSONResponse:
    query = request.path_params["query"]
    if query not in view.status()["queries"]:
        return JSONResponse({"error": f"no query named {query}"}, 404)
    refusal = revive(query)
    return JSONResponse(
        {"error": refusal} if refusal else {"query": query}, 409 if refusal else 200
    )


def _check(view: NodeView, holds: Callable[[NodeView, dict[str, Any]], bool]) -> Any:
    async def respond(request: Request) -> JSONResponse:
        status = view.status()
        ok = holds(view, status)
        body = {"ok": ok, "role": status["role"], "epoch": status["epoch"], "why": status["why"]}
        return JSONResponse(body, 200 if ok else 503)

    return respond


def _alive(view: NodeView, status: dict[str, Any]) -> bool:
    """The event loop turns and the core is fed; needs no database."""
    return view.alive()


def _active(view: NodeView, status: dict[str, Any]) -> bool:
    return bool(status["role"] == "active" and not status["suspended"])


def _passive(view: NodeView, status: dict[str, Any]) -> bool:
    """In sync, and not the active: it takes over when the active is gone."""
    return bool(status["role"] == "passive")


def _healthy(view: NodeView, status: dict[str, Any]) -> bool:
    """Alive, and every query runs or waits for its turn."""
    return view.alive() and all(q["state"] != "failed" for q in status["queries"].values())


def _ready(view: NodeView, status: dict[str, Any]) -> bool:
    """Takes events or stands by to take them."""
    return _active(view, status) or status["role"] == "passive"
