"""Many requests of other clients delay the steps of a producer's request little."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from ha_engine.api.turns import BEGUN_PER_TURN, Turns

MANY = 100
STEPS = 5
"""Turns of the event loop that the producer's request takes."""


class Requests:
    """An ASGI application that counts the requests of other clients, and notes their number at the
    end of a producer's request."""

    def __init__(self) -> None:
        self.others, self.others_before = 0, -1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/status":
            self.others += 1
            return
        for _ in range(STEPS):
            await asyncio.sleep(0)
        self.others_before = self.others


async def test_a_producers_request_ends_before_most_others_begin() -> None:
    requests = Requests()
    served = Turns(requests)

    async def call(method: str, path: str) -> None:
        scope = {"type": "http", "method": method, "path": path}
        await served(scope, _nothing_received, _nothing_sent)

    async with asyncio.TaskGroup() as clients:
        for _ in range(MANY):
            clients.create_task(call("GET", "/v1/status"))
        clients.create_task(call("POST", "/v1/streams/events/events"))
    assert 0 < requests.others_before <= (STEPS + 1) * BEGUN_PER_TURN < MANY
    assert requests.others == MANY


async def test_a_client_that_leaves_does_not_stop_the_others() -> None:
    requests = Requests()
    served = Turns(requests)
    scope = {"type": "http", "method": "GET", "path": "/v1/status"}
    calls = [
        asyncio.ensure_future(served(scope, _nothing_received, _nothing_sent)) for _ in range(MANY)
    ]
    await asyncio.sleep(0)
    calls[0].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert requests.others == MANY - 1


async def _nothing_received() -> dict[str, object]:
    raise AssertionError("the application does not receive")


async def _nothing_sent(message: object) -> None:
    raise AssertionError("the application does not send")
