"""The node's own HTTP routes: status, health, metrics, and operators' requests about a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from ha_engine.api import requests
from ha_engine.api.bodies import Check, Handover, NotHere, Revived
from ha_engine.api.cluster_body import Cluster
from ha_engine.api.openapi import openapi_route
from ha_engine.api.requests import RescaleBody, SkipBody, SwitchoverBody
from ha_engine.api.shared import SharedAnswer
from ha_engine.api.status_body import Status
from ha_engine.auth import Access, Right
from ha_engine.web.route import Answer, Operation, OperationRoute, Parameter, guarded

CHECKS = ("GET", "HEAD", "OPTIONS")
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"

_STATUS = Operation(
    "status",
    "Show the status of this node.",
    {200: Answer("The status, as the node sees itself.", Status)},
    needs=Right.READ,
)
_CLUSTER = Operation(
    "cluster",
    "Show the nodes of the group.",
    {200: Answer("The group, from the last reports that this node received.", Cluster)},
    needs=Right.READ,
)
METRICS = Operation(
    "metrics",
    "Show the metrics in the text format of Prometheus.",
    {200: Answer("All metrics.", str, "text/plain")},
    needs=Right.READ,
)
_QUERY = Parameter("query", "path", "Name of the query.")
_REVIVED = {
    200: Answer("The query continues.", Revived),
    404: Answer("The application has no such query."),
    409: Answer("The query has not failed, or this node must not skip or retry it."),
}
_SKIP = Operation(
    "skip",
    "Skip the batch at which a query failed.",
    {**_REVIVED, **requests.REFUSED},
    [_QUERY],
    requests.body_of(SkipBody),
)
_RETRY = Operation("retry", "Let a failed query try its batch again.", _REVIVED, [_QUERY])
_RESCALE = Operation(
    "rescale",
    "Change the number of partitions of a query's state.",
    {
        200: Answer("The change begins after the query's present batch.", Revived),
        404: Answer("The application has no such query."),
        409: Answer("This node is not the active, or its state store has a fixed number."),
        **requests.REFUSED,
    },
    [_QUERY],
    requests.body_of(RescaleBody),
    needs_body=True,
)
_SWITCHOVER = Operation(
    "switchover",
    "Make another node the active without loss.",
    {
        202: Answer("The switchover has begun.", Handover),
        409: Answer("This node is not the active, or no other node can take over now.", NotHere),
        **requests.REFUSED,
    },
    body=requests.body_of(SwitchoverBody),
)


@dataclass(frozen=True, slots=True)
class NodeView:
    """The functions of a node that its HTTP routes call.

    While ``version`` returns equal values, requests may share one answer for a short time. The
    default of ``version`` never returns equal values, so each request gets a new answer. The
    function ``count_denied`` counts a request whose caller has no right to send it.
    """

    status: Callable[[], Mapping[str, Any]]
    cluster: Callable[[], Mapping[str, Any]]
    exposition: Callable[[], bytes]
    skip: Callable[[str, str], str]
    retry: Callable[[str], str]
    rescale: Callable[[str, int], str]
    alive: Callable[[], bool]
    switchover: Callable[[str | None, str], str]
    version: Callable[[], object] = object
    count_denied: Callable[[], None] = lambda: None


def application(
    view: NodeView,
    others: Sequence[OperationRoute],
    access: Access,
    host_names: Set[str] | None = None,
) -> Starlette:
    """The ASGI application of a node. The routes ``others`` are those of ingest, the lease, forced
    failovers and snapshots. ``host_names`` are the names of this node; see ``guarded``."""
    routes = [
        *others,
        OperationRoute("/v1/status", _tree(view, view.status), _STATUS, "GET"),
        OperationRoute("/v1/cluster", _tree(view, view.cluster), _CLUSTER, "GET"),
        OperationRoute("/v1/queries/{query}/skip", _skip(view), _SKIP, "POST"),
        OperationRoute("/v1/queries/{query}/retry", _retry(view), _RETRY, "POST"),
        OperationRoute("/v1/queries/{query}/rescale", _rescale(view), _RESCALE, "POST"),
        OperationRoute("/v1/switchover", _switchover(view), _SWITCHOVER, "POST"),
        OperationRoute("/metrics", _metrics(view), METRICS, "GET"),
        *_checks(view),
    ]

    def refuse(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code in (401, 403, 421):
            view.count_denied()
        return http_error(request, error)

    handlers: dict[Any, Any] = {HTTPException: refuse}
    return guarded([*routes, openapi_route(routes)], access, handlers, host_names)


def http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer a refused request with a JSON object that has the reason."""
    assert isinstance(error, HTTPException)
    body, headers = {"error": error.detail}, dict(error.headers or {})
    if error.status_code in (404, 405):
        body["error"] = f"{request.method} {request.url.path}: {error.detail.lower()}"
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))
    return JSONResponse(body, error.status_code, headers=headers)


def _allowed(request: Request) -> list[str]:
    """The methods of all routes with the request's path, because each route knows only its own
    methods."""
    routes = [route for route in request.app.routes if isinstance(route, OperationRoute)]
    there = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in there for method in route.methods or ()})


def _tree(view: NodeView, ask: Callable[[], Mapping[str, Any]]) -> Any:
    answer = SharedAnswer(lambda: bytes(JSONResponse(ask()).body), view.version)

    async def respond(request: Request) -> Response:
        return Response(answer.body(), media_type=JSONResponse.media_type)

    return respond


def _metrics(view: NodeView) -> Any:
    answer = SharedAnswer(view.exposition, view.version)

    async def respond(request: Request) -> Response:
        return Response(answer.body(), media_type=PROMETHEUS_TEXT)

    return respond


def _skip(view: NodeView) -> Any:
    async def respond(request: Request) -> JSONResponse:
        body = await requests.read(request, SkipBody)
        return _changed(view, request, lambda query: view.skip(query, body.by))

    return respond


def _retry(view: NodeView) -> Any:
    async def respond(request: Request) -> JSONResponse:
        return _changed(view, request, view.retry)

    return respond


def _rescale(view: NodeView) -> Any:
    async def respond(request: Request) -> JSONResponse:
        body = await requests.read(request, RescaleBody)
        return _changed(view, request, lambda query: view.rescale(query, body.partitions))

    return respond


def _switchover(view: NodeView) -> Any:
    async def respond(request: Request) -> JSONResponse:
        body = await requests.read(request, SwitchoverBody)
        refusal = view.switchover(body.to, body.by)
        if refusal:
            return JSONResponse({"error": refusal, "active": view.status()["active"]}, 409)
        return JSONResponse({"to": view.status()["handover_to"]}, 202)

    return respond


def _changed(view: NodeView, request: Request, change: Callable[[str], str]) -> JSONResponse:
    query = request.path_params["query"]
    status = view.status()
    shadow = status.get("shadow")
    if query not in status["queries"] and not (shadow and query == shadow["name"]):
        return JSONResponse({"error": f"no query named {query}"}, 404)
    refusal = change(query)
    return JSONResponse(
        {"error": refusal} if refusal else {"query": query}, 409 if refusal else 200
    )


# -- load balancers --------------------------------------------------------------------------------


def _checks(view: NodeView) -> list[OperationRoute]:
    return [
        _check(view, "liveness", _alive, "Check that the node process works; needs no database."),
        _check(view, "health", _healthy, "Check that the node works and no query has failed."),
        _check(
            view,
            "readiness",
            _ready,
            "Check that the node takes events, is ready to take over, or is the backup.",
        ),
        _check(view, "active", _active, "Check that the node is the active and takes events."),
        _check(view, "primary", _active, "The same as /active."),
        _check(
            view, "passive", _passive, "Check that the node is passive, which means in sync.", _LAG
        ),
        _check(view, "replica", _passive, "The same as /passive.", _LAG),
    ]


Condition = Callable[[NodeView, Mapping[str, Any]], bool]
_LAG_MAX = 10**18
_LAG = Parameter(
    "lag",
    "query",
    "Maximum number of the active's records that the node may lack; an unknown lag fails the "
    "check.",
    Annotated[int, Field(ge=0, le=_LAG_MAX)],
)


def _check(
    view: NodeView, name: str, holds: Condition, says: str, *takes: Parameter
) -> OperationRoute:
    async def respond(request: Request) -> JSONResponse:
        status = view.status()
        lags = _LAG in takes and "lag" in request.query_params and _lags(view, request)
        ok = holds(view, status) and not lags
        body = {
            "ok": ok,
            "role": status["role"],
            "epoch": status["epoch"],
            "reason": status["reason"],
        }
        return JSONResponse(body, 200 if ok else 503)

    answers = {200: Answer("The check passed.", Check), 503: Answer("The check failed.", Check)}
    if takes:
        answers[400] = Answer("The lag is not a number of records.")
    check = Operation(name, says, answers, takes, needs=Right.NOTHING)
    return OperationRoute(f"/{name}", respond, check, *CHECKS)


def _lags(view: NodeView, request: Request) -> bool:
    """Whether the node lacks more of the active's records than the request allows.

    Raises HTTPException.
    """
    allowed = request.query_params["lag"]
    if not re.fullmatch("[0-9]{1,19}", allowed) or int(allowed) > _LAG_MAX:
        raise HTTPException(400, "lag must be a number of records, such as 1000")
    cluster = view.cluster()
    lag = cluster["nodes"][cluster["node"]]["lag_records"]
    return lag is None or lag > int(allowed)


def _alive(view: NodeView, status: Mapping[str, Any]) -> bool:
    """Whether the event loop runs and the core gets inputs, even without the database."""
    return view.alive()


def _active(view: NodeView, status: Mapping[str, Any]) -> bool:
    serves = status["role"] == "active" and not status["suspended"]
    return bool(serves and not status["disk_late"])


def _passive(view: NodeView, status: Mapping[str, Any]) -> bool:
    """Whether the node is passive: it is in sync, and can take over if the active fails."""
    return bool(status["role"] == "passive" and not status["disk_late"])


def _healthy(view: NodeView, status: Mapping[str, Any]) -> bool:
    """Whether the node process and its disk work and no query has failed."""
    failed = any(query["state"] == "failed" for query in status["queries"].values())
    return view.alive() and not failed and not status["disk_late"]


def _ready(view: NodeView, status: Mapping[str, Any]) -> bool:
    """Whether the node is an active that takes events, a passive that can take over, or the
    backup."""
    backup = status["role"] == "backup" and not status["disk_late"]
    return _active(view, status) or _passive(view, status) or bool(backup)
