"""The HTTP routes to the group's lease: its history, and the pause of automatic failover.

The HTTP routes of the lease work on every node that reaches the database, active or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse

from ha_engine.api.bodies import History, Pause
from ha_engine.api.history import history_tree, pause_tree
from ha_engine.auth import Right
from ha_engine.errors import DatabaseNotReady, DatabaseUnreachable, GroupUnknown, LeaseNotChanged
from ha_engine.types import HolderChange, LeaseRow
from ha_engine.web.route import Answer, Operation, OperationRoute, Parameter

LIMIT, LIMIT_MAX = 20, 1000
_AWAY = Answer("The database does not answer, or has no schema of the engine.")
_PAUSED = {
    200: Answer("Whether failover is paused after the change.", Pause),
    409: Answer("The group has no lease row yet, or the row changed during each write."),
    503: _AWAY,
}
_HISTORY = Operation(
    "history",
    "Show each holder of the lease, with its start, its reason and the outage before it.",
    {
        200: Answer("The newest changes of the lease's holder.", History),
        400: Answer(f"The limit is not a number from 1 to {LIMIT_MAX}."),
        503: _AWAY,
    },
    takes=[
        Parameter(
            "limit",
            "query",
            "Maximum number of changes.",
            Annotated[int, Field(ge=1, le=LIMIT_MAX, json_schema_extra={"default": LIMIT})],
        )
    ],
    needs=Right.READ,
)
_PAUSE = Operation(
    "pause", "Pause automatic failover: forbid every takeover of the lease.", _PAUSED
)
_RESUME = Operation("resume", "End a pause of automatic failover.", _PAUSED)


class LeaseAdmin(Protocol):
    """Blocking calls on a separate database connection, so that they delay no renewal of the lease.

    Raises DatabaseUnreachable and DatabaseNotReady. The call ``set_paused`` also raises
    GroupUnknown and LeaseNotChanged.
    """

    def history(self, limit: int) -> list[HolderChange]: ...
    def set_paused(self, paused: bool) -> LeaseRow: ...


def lease_routes(admin: LeaseAdmin, group: str) -> list[OperationRoute]:
    """The routes ``GET /v1/history?limit=``, ``POST /v1/pause`` and ``POST /v1/resume``."""

    async def history(request: Request) -> JSONResponse:
        limit = _limit(request.query_params.get("limit", str(LIMIT)))
        if limit is None:
            return JSONResponse({"error": f"limit must be a number from 1 to {LIMIT_MAX}"}, 400)
        return await _answer(lambda: history_tree(group, admin.history(limit)))

    async def pause(request: Request) -> JSONResponse:
        return await _answer(lambda: pause_tree(group, admin.set_paused(True)))

    async def resume(request: Request) -> JSONResponse:
        return await _answer(lambda: pause_tree(group, admin.set_paused(False)))

    return [
        OperationRoute("/v1/history", history, _HISTORY, "GET"),
        OperationRoute("/v1/pause", pause, _PAUSE, "POST"),
        OperationRoute("/v1/resume", resume, _RESUME, "POST"),
    ]


def _limit(written: str) -> int | None:
    valid = written.isascii() and written.isdigit() and len(written) < 5
    return int(written) if valid and 1 <= int(written) <= LIMIT_MAX else None


async def _answer(ask: Callable[[], Mapping[str, Any]]) -> JSONResponse:
    try:
        return JSONResponse(await run_in_threadpool(ask))
    except (DatabaseUnreachable, DatabaseNotReady) as error:
        return JSONResponse({"error": str(error)}, 503)
    except (GroupUnknown, LeaseNotChanged) as error:
        return JSONResponse({"error": str(error)}, 409)
