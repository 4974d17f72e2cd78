"""The HTTP routes of shadows: compare one with its query, promote it, or discard it
(RULES.md#r38)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Protocol

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from ha_engine.api import requests
from ha_engine.api.applications import BY, answer, operator
from ha_engine.api.bodies import DeployAccepted, NotHere
from ha_engine.auth import Right
from ha_engine.core import Core
from ha_engine.outbox import Outbox
from ha_engine.outbox.comparing import Difference, compare_newest
from ha_engine.outbox.published import PublishedBatches
from ha_engine.types import Deployed
from ha_engine.web.route import Answer, Operation, OperationRoute, Parameter, described

BATCHES_MAX, ROWS_MAX = 100, 100
_QUERY = Parameter("query", "path", "Name of the live query.")


@described
class ComparedBatch(TypedDict):
    """The rows of one batch of both."""

    number: int
    live: int
    """Rows of the live query."""
    shadow: int
    """Rows of the shadow."""
    only_live: int
    """Rows that the shadow lacks."""
    only_shadow: int
    """Rows that the live query lacks."""


@described
class Compared(TypedDict):
    """The newest batches that this node has of a query and its shadow."""

    node: str
    query: str
    shadow: str
    """Name of the shadow."""
    state: str
    """State of the shadow on this node: waiting, running or failed."""
    note: str | None
    """Why there is nothing to compare yet, or that the shadow is behind; else null."""
    live_batch: int
    """Newest batch of the live query on this node."""
    shadow_batch: int
    """Newest batch of the shadow on this node."""
    batches: list[ComparedBatch]
    """Newest first."""
    total: ComparedBatch
    """Over all compared batches; its number is how many these are."""
    live_rows: list[dict[str, Any]]
    """Some rows that only the live query has."""
    shadow_rows: list[dict[str, Any]]
    """Some rows that only the shadow has."""


_COMPARE = Operation(
    "compare",
    "Compare the newest batches of a query and its shadow on this node.",
    {
        200: Answer("What differs.", Compared),
        400: Answer("A number is not valid."),
        404: Answer("The query has no shadow on this node."),
        503: Answer("Another comparison is under way."),
    },
    [
        _QUERY,
        Parameter(
            "batches",
            "query",
            "Most batches to compare.",
            Annotated[int, Field(ge=1, le=BATCHES_MAX)],
        ),
        Parameter("rows", "query", "Most example rows.", Annotated[int, Field(ge=0, le=ROWS_MAX)]),
    ],
    needs=Right.DEPLOY,
)
_DONE = {
    200: Answer("Every member has the deployment, and the nodes move to it.", DeployAccepted),
    409: Answer("This node is not the active, or it is not possible now.", NotHere),
    **{status: answer for status, answer in requests.REFUSED.items() if status == 408},
}
_PROMOTE = Operation(
    "promote",
    "Let the shadow take the place of its query.",
    _DONE,
    [_QUERY, BY],
    needs=Right.DEPLOY,
)
_DISCARD = Operation("discard", "End a shadow.", _DONE, [_QUERY, BY], needs=Right.DEPLOY)


class Shadowing(Protocol):
    """The orders that a node takes about shadows."""

    async def promote(self, query: str, by: str) -> Deployed: ...
    async def discard(self, query: str, by: str) -> Deployed: ...


class Comparison:
    """Compares what a node has of a query and of its shadow, one request at a time."""

    def __init__(self, core: Core, outbox: Outbox, published: PublishedBatches) -> None:
        self._core, self._outbox, self._published = core, outbox, published
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compare")
        self._busy = False

    async def of(self, query: str, batches_max: int, rows_max: int) -> Compared:
        """The comparison of ``query`` with its shadow. Raises HTTPException."""
        shadow = self._core.deployment.shadow
        if shadow is None or shadow.record.query != query:
            raise HTTPException(404, f"query {query} has no shadow on this node")
        if self._busy:
            raise HTTPException(503, "another comparison is under way; try again later")
        self._busy = True
        parts = self._outbox, self._published, query, shadow.name, batches_max, rows_max
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, compare_newest, *parts)
        except OSError as error:
            raise HTTPException(503, f"a batch cannot be read: {error}") from error
        finally:
            self._busy = False
        return {
            "node": self._core.identity.node,
            "query": query,
            "shadow": shadow.name,
            "state": shadow.life.state.value,
            "note": self._note(found),
            "live_batch": self._core.deployment.marks[query].admitted,
            "shadow_batch": shadow.admitted,
            "batches": [_body(one) for one in found],
            "total": {
                "number": len(found),
                "live": sum(one.live for one in found),
                "shadow": sum(one.shadow for one in found),
                "only_live": sum(one.only_live for one in found),
                "only_shadow": sum(one.only_shadow for one in found),
            },
            "live_rows": [row for one in found for row in one.live_rows][:rows_max],
            "shadow_rows": [row for one in found for row in one.shadow_rows][:rows_max],
        }

    def _note(self, found: Sequence[Difference]) -> str | None:
        shadow = self._core.deployment.shadow
        if shadow is None:
            return "the shadow has ended"
        if shadow.life.failure is not None:
            return f"the shadow failed: {shadow.life.failure.reason}"
        if shadow.admitted == shadow.record.first.number:
            return "the shadow has no batch yet; send events, or wait until it has started"
        if not found:
            return "this node no longer has a batch of both; wait for the next one"
        if shadow.behind:
            live = shadow.admitted + shadow.behind
            return f"the shadow is at batch {shadow.admitted}, and the live query at batch {live}"
        return None


def _body(one: Difference) -> ComparedBatch:
    return {
        "number": one.number,
        "live": one.live,
        "shadow": one.shadow,
        "only_live": one.only_live,
        "only_shadow": one.only_shadow,
    }


class _Json(JSONResponse):
    """Shows values that JSON lacks, such as times and decimals, as text."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, default=str).encode()


def shadow_routes(core: Core, comparison: Comparison, shadows: Shadowing) -> list[OperationRoute]:
    """``GET /v1/queries/NAME/compare``, and ``POST`` of ``promote`` and ``discard``."""

    async def compare(request: Request) -> Response:
        batches = _number(request, "batches", 20, 1, BATCHES_MAX)
        rows = _number(request, "rows", 5, 0, ROWS_MAX)
        return _Json(await comparison.of(request.path_params["query"], batches, rows))

    async def promote(request: Request) -> Response:
        order = shadows.promote(request.path_params["query"], operator(request))
        return await answer(core, order)

    async def discard(request: Request) -> Response:
        order = shadows.discard(request.path_params["query"], operator(request))
        return await answer(core, order)

    path = "/v1/queries/{query}"
    return [
        OperationRoute(f"{path}/compare", compare, _COMPARE, "GET"),
        OperationRoute(f"{path}/promote", promote, _PROMOTE, "POST"),
        OperationRoute(f"{path}/discard", discard, _DISCARD, "POST"),
    ]


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and least <= int(text) <= most):
        raise HTTPException(400, f"{name} must be a number from {least} to {most}")
    return int(text)
