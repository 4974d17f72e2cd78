"""The HTTP routes to the group's lease: its history, and the pause of automatic failover.

They work on any node, active or not, as long as it reaches the database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ha_engine.api.history import history_tree, pause_tree
from ha_engine.errors import DatabaseNotReady, DatabaseUnreachable, GroupUnknown, LeaseNotChanged
from ha_engine.types import HolderChange, LeaseRow

LIMIT, LIMIT_MAX = 20, 1000


class LeaseAdmin(Protocol):
    """Blocking calls, of a connection that renewals do not wait for.

    They raise DatabaseUnreachable and DatabaseNotReady; ``set_paused`` also GroupUnknown and
    LeaseNotChanged.
    """

    def history(self, limit: int) -> list[HolderChange]: ...
    def set_paused(self, paused: bool) -> LeaseRow: ...


def lease_routes(admin: LeaseAdmin, group: str) -> list[Route]:
    """``GET /v1/history?limit=``, ``POST /v1/pause`` and ``POST /v1/resume``."""

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
        Route("/v1/history", history, methods=["GET"]),
        Route("/v1/pause", pause, methods=["POST"]),
        Route("/v1/resume", resume, methods=["POST"]),
    ]


def _limit(written: str) -> int | None:
    valid = written.isascii() and written.isdigit() and len(written) < 5
    return int(written) if valid and 1 <= int(written) <= LIMIT_MAX else None


async def _answer(ask: Callable[[], dict[str, Any]]) -> JSONResponse:
    try:
        return JSONResponse(await run_in_threadpool(ask))
    except (DatabaseUnreachable, DatabaseNotReady) as error:
        return JSONResponse({"error": str(error)}, 503)
    except (GroupUnknown, LeaseNotChanged) as error:
        return JSONResponse({"error": str(error)}, 409)
