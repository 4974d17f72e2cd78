"""The HTTP routes of deployments: two deploy and remove an application, the others show what is
deployed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from ha_engine.api import requests
from ha_engine.api.bodies import ApplicationBody, ArchiveBody, DeployAccepted, NotHere
from ha_engine.auth import Right
from ha_engine.core import Core
from ha_engine.deploy import Archive, DeployedApplications, Order
from ha_engine.deploy.archive import ARCHIVE_BYTES_MAX
from ha_engine.errors import ApplicationError, EngineError, NotActive
from ha_engine.query.application import StreamApplication
from ha_engine.types import Deployed
from ha_engine.web.route import Answer, Operation, OperationRoute, Parameter

ZIP = "application/zip"
_NUMBER_MAX = 10**18
BY = Parameter(
    "by",
    "query",
    "Name of the operator, which the node records.",
    Annotated[str, Field(max_length=128)],
)
_ON_CHANGE = Parameter(
    "on_change",
    "query",
    "What happens to the state of each changed query that does not say it itself.",
    Literal["keep", "reset"],
)
_ALLOW_ABSENT = Parameter(
    "allow_absent", "query", "Deploy although a node of the group is not connected.", bool
)
_EXPECTED = Parameter(
    "expected",
    "query",
    "Refuse if the newest deployment has another number; 0 stands for none.",
    Annotated[int, Field(ge=0, le=_NUMBER_MAX)],
)
_ONLY = Parameter(
    "only", "query", "Run no applications but those of the archive from then on.", bool
)
_DISCARD = Parameter(
    "discard",
    "query",
    "Remove an application although a sink of it does not have all output yet.",
    bool,
)
_NAME = Parameter("name", "path", "Name of the application.")
_AS_SHADOW = Parameter(
    "shadow", "query", "Run the one changed query beside the live one, and publish nothing.", bool
)
_NUMBER = Parameter("number", "path", "Number of the deployment.", int)
_SHOW = Operation(
    "application",
    "Show the application of this node, and the deployments.",
    {200: Answer("The application.", ApplicationBody)},
    needs=Right.READ,
)
_DEPLOYED = {
    200: Answer("Every member has the deployment, and the nodes move to it.", DeployAccepted),
    400: Answer("The archive or the application is not valid. Nothing has changed."),
    409: Answer(
        "This node is not the active, or a node cannot run the application. Nothing has changed.",
        NotHere,
    ),
}
_DEPLOY = Operation(
    "deploy",
    "Deploy an application to every node. It replaces the one of its name, or is added. The active "
    "checks it first, which takes some seconds.",
    {
        **_DEPLOYED,
        **{status: answer for status, answer in requests.REFUSED.items() if status == 408},
        413: Answer(f"The archive has more than {ARCHIVE_BYTES_MAX} bytes."),
    },
    [BY, _ON_CHANGE, _ALLOW_ABSENT, _EXPECTED, _DISCARD, _ONLY, _AS_SHADOW],
    {ZIP: bytes},
    needs_body=True,
    needs=Right.DEPLOY,
)
_REMOVE = Operation(
    "remove_application",
    "Remove an application from every node. The others continue.",
    _DEPLOYED,
    [_NAME, BY, _ALLOW_ABSENT, _EXPECTED, _DISCARD],
    needs=Right.DEPLOY,
)
_ARCHIVE = Operation(
    "archive",
    "Get the files of a deployment.",
    {
        200: Answer("The files.", ArchiveBody),
        404: Answer("This node does not have the deployment."),
    },
    [_NUMBER],
    needs=Right.DEPLOY,
)


class Deploying(Protocol):
    """The deployments of a node. ``deployed`` is the newest one in its journal, and ``running`` has
    the applications of its process."""

    store: DeployedApplications
    running: Sequence[Mapping[str, Any]]

    @property
    def deployed(self) -> Mapping[str, Any] | None: ...

    async def deploy(self, archive: Archive, order: Order, *, only: bool) -> Deployed: ...

    async def deploy_shadow(self, archive: Archive, order: Order) -> Deployed: ...

    async def remove(self, name: str, order: Order) -> Deployed: ...


def application_routes(
    core: Core, application: StreamApplication, deployments: Deploying
) -> list[OperationRoute]:
    """``GET`` and ``POST /v1/application``, ``POST /v1/application/{name}/remove``, and
    ``GET /v1/application/{number}/archive``."""

    async def show(request: Request) -> JSONResponse:
        history = await asyncio.to_thread(deployments.store.history)
        return JSONResponse(
            {
                "node": core.identity.node,
                "name": application.name,
                "digest": application.digest,
                "archive": application.archive,
                "applications": deployments.running,
                "deployed": deployments.deployed,
                "history": history,
            }
        )

    async def deploy(request: Request) -> JSONResponse:
        content = await requests.read_bytes(request, ARCHIVE_BYTES_MAX)
        order, only = _order(request), _flag(request, "only")
        shadow = _flag(request, "shadow")
        if shadow and (only or order != Order(order.by, expected=order.expected)):
            raise HTTPException(
                400,
                "a shadow runs on every node and begins empty: no allow_absent, on_change, only or "
                "discard",
            )

        async def deployed() -> Deployed:
            archive = await asyncio.to_thread(Archive.read, content)
            if shadow:
                return await deployments.deploy_shadow(archive, order)
            return await deployments.deploy(archive, order, only=only)

        return await answer(core, deployed())

    async def remove(request: Request) -> JSONResponse:
        order = _order(request)
        return await answer(core, deployments.remove(request.path_params["name"], order))

    async def archive(request: Request) -> JSONResponse:
        number = _number(request)
        try:
            found = await asyncio.to_thread(deployments.store.archive, number)
        except ApplicationError as error:
            return JSONResponse({"error": str(error)}, 404)
        return JSONResponse({"number": number, "id": found.id, "archive": found.text})

    return [
        OperationRoute("/v1/application", show, _SHOW, "GET"),
        OperationRoute("/v1/application", deploy, _DEPLOY, "POST"),
        OperationRoute("/v1/application/{name}/remove", remove, _REMOVE, "POST"),
        OperationRoute("/v1/application/{number}/archive", archive, _ARCHIVE, "GET"),
    ]


async def answer(core: Core, deploying: Awaitable[Deployed]) -> JSONResponse:
    """The answer to an order, once the deployment is made or refused."""
    try:
        deployed = await deploying
    except NotActive as error:
        return JSONResponse({"error": str(error), "active": core.lease.active_url}, 409)
    except ApplicationError as error:
        return JSONResponse({"error": str(error)}, 400)
    except EngineError as error:
        return JSONResponse({"error": str(error), "active": None}, 409)
    number, name = deployed.number, deployed.name
    return JSONResponse({"number": number, "id": deployed.runs, "name": name})


def _number(request: Request) -> int:
    number = request.path_params["number"]
    if not number.isdecimal() or len(number) > 18:
        raise HTTPException(404, "no such deployment")
    return int(number)


def _order(request: Request) -> Order:
    """The parameters of all orders. Raises HTTPException."""
    given = request.query_params
    by, on_change, expected = operator(request), given.get("on_change"), given.get("expected")
    if on_change not in (None, "keep", "reset", "backfill"):
        raise HTTPException(400, "on_change must be keep, reset or backfill")
    if expected is not None and not re.fullmatch("[0-9]{1,18}", expected):
        raise HTTPException(400, "expected must be the number of a deployment")
    return Order(
        by,
        on_change,
        allow_absent=_flag(request, "allow_absent"),
        expected=None if expected is None else int(expected),
        discard=_flag(request, "discard"),
    )


def operator(request: Request) -> str:
    """The name of the operator. Raises HTTPException."""
    by = request.query_params.get("by", "operator")
    if not by or len(by) > 128 or not by.isprintable():
        raise HTTPException(400, "by must be a name of at most 128 characters")
    return by


def _flag(request: Request, name: str) -> bool:
    """A parameter that is true or false. Raises HTTPException."""
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise HTTPException(400, f"{name} must be true or false")
    return value == "true"
