"""The HTTP routes of a forced failover: one shows the possible loss, the other starts the
failover."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse

from ha_engine.api import requests
from ha_engine.api.bodies import Loss, LossRefused
from ha_engine.api.requests import FailoverBody
from ha_engine.auth import Right
from ha_engine.core import Core
from ha_engine.core import inputs as on
from ha_engine.web.route import Answer, Operation, OperationRoute, Parameter

_SHOW = Operation(
    "failover-loss",
    "Show the possible loss of a forced failover to this node.",
    {200: Answer("The possible loss, and whether a forced failover is allowed now.", Loss)},
    takes=[
        Parameter(
            "confirmed_fenced", "query", "Node that is certainly off; may be repeated.", list[str]
        )
    ],
    needs=Right.READ,
)
_FORCE = Operation(
    "failover",
    "Make this node the active although it is not in sync: acked events may be lost.",
    {
        202: Answer("The forced failover has begun.", Loss),
        409: Answer("A forced failover is refused now.", LossRefused),
        **requests.REFUSED,
    },
    body=requests.body_of(FailoverBody),
    needs_body=True,
)


def failover_routes(core: Core, handle: Callable[[on.Input], None]) -> list[OperationRoute]:
    """``GET /v1/failover?confirmed_fenced=…`` shows the loss, ``POST /v1/failover`` starts the
    failover.

    Both routes concern a forced failover to the node that answers the request.
    """

    async def show(request: Request) -> JSONResponse:
        return JSONResponse(failover_tree(core, request.query_params.getlist("confirmed_fenced")))

    async def force(request: Request) -> JSONResponse:
        body = await requests.read(request, FailoverBody)
        tree = failover_tree(core, body.confirmed_fenced)
        if tree["refusal"] is not None:
            return JSONResponse({**tree, "error": tree["refusal"]}, 409)
        handle(on.FailoverForced(body.by, body.confirmed_fenced))
        return JSONResponse(tree, 202)

    return [
        OperationRoute("/v1/failover", show, _SHOW, "GET"),
        OperationRoute("/v1/failover", force, _FORCE, "POST"),
    ]


def failover_tree(core: Core, confirmed_fenced: Sequence[str]) -> Loss:
    """The body of GET /v1/failover."""
    loss = core.forced_failover.may_lose()
    return {
        "node": core.identity.node,
        "refusal": core.why_no_forced_failover(confirmed_fenced),
        "journal_ends": str(loss.last),
        "epoch": loss.epoch,
        "in_sync": list(loss.in_sync),
        "records_lost_min": loss.records_min,
        "may_be_lost": str(loss),
    }
