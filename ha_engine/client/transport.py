"""The interface of a transport to the nodes, and its error if a node gives no answer.

A final refusal is an error of ``ha_engine.errors``. NotActive and Backpressure are temporary
refusals. The transports are ``over_http`` and ``over_grpc``. ``endpoints`` chooses the node and the
time of a retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ha_engine.client.payload import Payload
from ha_engine.types import Position

CONNECT_TIMEOUT_SECONDS = 2.0
ANSWER_TIMEOUT_SECONDS = 2.5
"""A frozen active never answers. If a request was only slow, the node recognises the retry. The
limit exceeds the time that an active waits for a silent passive (``event_sync.sync_timeout``, 2 s).
"""


class NoAnswer(Exception):
    """There was no reliable answer. ``silent``: the node did not answer in time."""

    def __init__(self, reason: str, *, silent: bool = False) -> None:
        self.silent = silent
        super().__init__(reason)


class Request(NamedTuple):
    """A request; it is repeated unchanged until it is answered."""

    stream: str
    producer: str
    sequence: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class RemoteColumn:
    """A column of a stream, as the node describes it; ``type`` is Arrow's name."""

    name: str
    type: str
    nullable: bool


class Transport(Protocol):
    """A transport of one event loop. Each call waits at most ``patience`` seconds.

    Calls raise NoAnswer, Rejected.
    """

    async def post(self, url: str, request: Request, patience: float) -> Position:
        """Store a request, and return the position of its record."""

    async def columns(self, url: str, stream: str, patience: float) -> list[RemoteColumn]:
        """The columns of ``stream``."""

    async def close(self) -> None: ...
