"""What a way to the nodes must be able to do, and what it says when a node gave no answer.

An answer that will not change is an error of ``ha_engine.errors``; NotActive and Backpressure are
answers for now. The ways are ``over_http`` and ``over_grpc``; which node is asked, and when again,
is for ``endpoints``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ha_engine.client.payload import Payload
from ha_engine.types import Position

CONNECT_TIMEOUT_SECONDS = 2.0
ANSWER_TIMEOUT_SECONDS = 2.5
"""A frozen active answers nothing; a request that was only slow is known when it comes again.
Longer than an active waits for a passive that fell silent (``event_sync.sync_timeout``, 2 s)."""


class NoAnswer(Exception):
    """Nothing that could be relied upon. ``silent``: the node was waited for in vain."""

    def __init__(self, reason: str, *, silent: bool = False) -> None:
        self.silent = silent
        super().__init__(reason)


class Request(NamedTuple):
    """Repeated unchanged until it is answered."""

    stream: str
    producer: str
    sequence: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class RemoteColumn:
    """A column of a stream as the node names it; ``type`` is Arrow's name."""

    name: str
    type: str
    nullable: bool


class Transport(Protocol):
    """For one event loop. Each call waits for ``patience`` seconds, raises NoAnswer, Rejected."""

    async def post(self, url: str, request: Request, patience: float) -> Position:
        """Where it is stored."""

    async def columns(self, url: str, stream: str, patience: float) -> list[RemoteColumn]:
        """Those of ``stream``."""

    async def close(self) -> None: ...
