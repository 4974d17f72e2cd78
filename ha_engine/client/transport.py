"""The interface of a transport to nodes, and the error for a node that gives no answer.

A final refusal is an error of ``ha_engine.errors``. NotActive and Backpressure are temporary
refusals. The modules ``over_http`` and ``over_grpc`` implement the interface. The module
``endpoints`` chooses the node and the time of a retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ha_engine.types import Position

if TYPE_CHECKING:
    from ha_engine.client.payload import Payload

CONNECT_TIMEOUT_SECONDS = 2.0
ANSWER_TIMEOUT_SECONDS = 2.5
"""Time limit for an answer, since a frozen active never answers. If a request was only slow, the
node recognises the retry. The time limit exceeds the time that an active waits for a silent passive
(``event_sync.sync_timeout``, 2 s)."""


class NoAnswer(Exception):
    """The node gave no reliable answer. ``silent`` is true if the node did not answer in time."""

    def __init__(self, reason: str, *, silent: bool = False) -> None:
        self.silent = silent
        super().__init__(reason)


class Request(NamedTuple):
    """A request of a producer, which is repeated unchanged until a node answers it."""

    stream: str
    producer: str
    sequence: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class RemoteColumn:
    """A column of a stream, as a node describes it, where ``type`` is Arrow's name of the column's
    type."""

    name: str
    type: str
    nullable: bool


class Transport(Protocol):
    """Sends requests to nodes, for one event loop. Each call waits at most ``patience`` seconds.

    Calls raise NoAnswer, Rejected.
    """

    async def post(self, url: str, request: Request, patience: float) -> Position:
        """Store a request, and return the position of its record."""

    async def columns(self, url: str, stream: str, patience: float) -> list[RemoteColumn]:
        """The columns of ``stream``."""

    async def close(self) -> None: ...
