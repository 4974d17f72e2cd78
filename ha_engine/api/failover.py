"""The HTTP routes of a forced failover: what it would give up, and the operator's word for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ha_engine.core import Core
from ha_engine.core import inputs as on


class FailoverBody(BaseModel):
    """Body of POST /v1/failover; ``confirmed_off`` names the nodes that are certainly off."""

    model_config = ConfigDict(extra="forbid")
    force: Literal[True]
    confirmed_off: tuple[str, ...] = ()
    by: str = "operator"


def failover_routes(core: Core, handle: Callable[[on.Input], None]) -> list[Route]:
    """``GET /v1/failover?confirmed_off=…`` tells, ``POST /v1/failover`` does, of this very node."""

    async def tell(request: Request) -> JSONResponse:
        return JSONResponse(failover_tree(core, request.query_params.getlist("confirmed_off")))

    async def force(request: Request) -> JSONResponse:
        try:
            body = FailoverBody.model_validate_json(await request.body() or b"{}")
        except ValidationError as error:
            return JSONResponse({"error": _in_words(error)}, 400)
        tree = failover_tree(core, body.confirmed_off)
        if tree["refusal"] is None:
            handle(on.FailoverForced(body.by, body.confirmed_off))
            return JSONResponse(tree, 202)
        return JSONResponse(tree | {"error": tree["refusal"]}, 409)

    return [
        Route("/v1/failover", tell, methods=["GET"]),
        Route("/v1/failover", force, methods=["POST"]),
    ]


def failover_tree(core: Core, confirmed_off: Sequence[str]) -> dict[str, Any]:
    """The body of GET /v1/failover. ``refusal`` is null when it may be forced now."""
    loss = core.forcing.may_lose()
    return {
        "node": core.identity.node,
        "refusal": core.why_no_forced_failover(confirmed_off),
        "journal_ends": str(loss.last),
        "epoch": loss.epoch,
        "in_sync": list(loss.in_sync),
        "records_lost_min": loss.records_min,
        "may_be_lost": str(loss),
    }


def _in_words(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["loc"][:1] == ("force",):
        return (
            "a failover happens by itself; say force: true to give up what this node does not "
            "have, or POST /v1/switchover to change the active with nothing lost"
        )
    return str(first["msg"])
