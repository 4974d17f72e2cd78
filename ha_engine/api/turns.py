"""Take producers' requests first: no more than a few others begin in one turn of the event loop.

Hundreds of connections may each have a request in progress. If all of them began in one turn, each
step of a producer's request would wait for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

BEGUN_PER_TURN = 8
_WITH_EVENTS = "/events", "/cloudevents", "/remote-write"
"""The ends of the paths to which producers send events."""


class Turns:
    """An ASGI application that delays the requests for ``application``, except those with events.

    Each connection has at most one request here, so the limit of connections bounds the queue.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._application = application
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _has_events(scope):
            await self._turn()
        await self._application(scope, receive, send)

    async def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._begin_some)
        await turn

    def _begin_some(self) -> None:
        for _ in range(min(BEGUN_PER_TURN, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.cancelled():
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._begin_some)


def _has_events(scope: Scope) -> bool:
    return bool(scope["method"] == "POST" and scope["path"].endswith(_WITH_EVENTS))
