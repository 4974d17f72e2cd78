"""The HTTP interface of a receiver: for producers, for balancers and for Prometheus."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from ha_engine.api.http import CHECKS, METRICS, PROMETHEUS_TEXT, http_error
from ha_engine.api.openapi import openapi_route
from ha_engine.auth import Right
from ha_engine.config.receiver import ReceiverConfig
from ha_engine.errors import NotAllowed
from ha_engine.receive.http import routes
from ha_engine.receive.intake import Intake
from ha_engine.receiver.metrics import ReceiverMetrics
from ha_engine.receiver.store import TopicStore
from ha_engine.web.hosts import host_names_of
from ha_engine.web.route import Answer, Operation, OperationRoute, described, guarded


@described
class Readiness(TypedDict):
    """Whether the receiver takes events."""

    ok: bool
    reason: str
    """The reason why it takes none; empty if it does."""
    streams: dict[str, str | None]
    """For each stream the reason why it takes no events now, or null if it does."""


@described
class Liveness(TypedDict):
    """The receiver works."""

    ok: bool


_ABOUT = (
    "The HTTP interface of a receiver, which takes events for streams whose log is a topic of "
    "Kafka. Where the text speaks of a node, it is the receiver, and events are committed when the "
    "brokers have them. Every refusal is a JSON object with the key 'error'."
)
_READINESS = Operation(
    "readiness",
    "Check that the receiver takes events of a stream.",
    {
        200: Answer("The receiver takes events.", Readiness),
        503: Answer("The receiver stops, or no broker answers.", Readiness),
    },
    needs=Right.NOTHING,
)
_LIVENESS = Operation(
    "liveness",
    "Check that the receiver works; needs no broker.",
    {200: Answer("The receiver works.", Liveness)},
    needs=Right.NOTHING,
)


def web_application(
    config: ReceiverConfig, intake: Intake, store: TopicStore, metrics: ReceiverMetrics
) -> Starlette:
    """Make the web application with all routes of a receiver."""

    async def ready(request: Request) -> Response:
        problem = store.problem
        body = Readiness(ok=problem is None, reason=problem or "", streams=store.problems)
        return JSONResponse(body, 200 if body["ok"] else 503)

    async def alive(request: Request) -> Response:
        return JSONResponse(Liveness(ok=True))

    async def scrape(request: Request) -> Response:
        return Response(metrics.exposition(), media_type=PROMETHEUS_TEXT)

    def refuse(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code in (401, 403, 421):
            intake.count("", NotAllowed("the token"))
        return http_error(request, error)

    found = [
        *routes(intake, config.http.max_body),
        OperationRoute("/readiness", ready, _READINESS, *CHECKS),
        OperationRoute("/liveness", alive, _LIVENESS, *CHECKS),
        OperationRoute("/metrics", scrape, METRICS, "GET"),
    ]
    handlers: dict[Any, Any] = {HTTPException: refuse}
    names = host_names_of(config.http)
    return guarded([*found, openapi_route(found, _ABOUT)], config.access.checks, handlers, names)
