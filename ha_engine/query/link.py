"""Calls over the node's local socket, retried while the node is away.

A node process that restarts must find its query process warm, so a call waits for an absent node.
If the node answers "you are not my query process", the call fails at once (RULES.md#r19).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from grpc.experimental import ChannelOptions
from tenacity import Retrying, retry_if_exception, stop_never, wait_random_exponential
from tenacity.stop import stop_base

from ha_engine.errors import QueryProcessFailed
from ha_engine.v1.local_pb2_grpc import LocalStub

_AWAY = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    # A node that stops answers so to the calls that it was just working on.
    grpc.StatusCode.CANCELLED,
)
_NOT_MINE = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION)
CALL_SECONDS = 10.0
"""Timeout of a call. After a timeout the link repeats the call with twice the time."""
CALL_SECONDS_MAX = 320.0
MESSAGE_BYTES_MAX = 16 << 20
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Calls over a local socket must not use a proxy of the environment.
    ("grpc.enable_http_proxy", 0),
    # gRPC pings after each answer to measure a line's bandwidth; a ping keeps its threads awake.
    ("grpc.http2.bdp_probe", 0),
    # One thread reads a stream. By default gRPC has a second one, which wakes five times a second.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
)

Reply = TypeVar("Reply")


class Superseded(QueryProcessFailed):
    """The node runs another query process; this one must end."""


@dataclass(frozen=True, slots=True)
class Address:
    """The node's socket, and the incarnation that this process names in each call."""

    socket: str
    incarnation: str


def open_channel(address: Address) -> grpc.Channel:
    return grpc.insecure_channel(f"unix:{address.socket}", options=_CHANNEL_OPTIONS)


class NodeLink:
    """Unary calls to the node; thread-safe.

    ``stop`` is tenacity's condition that ends the wait for an absent node; default: never.
    """

    def __init__(
        self, address: Address, *, channel: grpc.Channel | None = None, stop: stop_base = stop_never
    ) -> None:
        self.address = address
        self.stub = LocalStub(channel or open_channel(address))
        self._stop = stop

    def call(self, method: Callable[..., Reply], request: Any) -> Reply:
        """Call ``method`` and return the reply.

        Raises Superseded, or QueryProcessFailed when the node refuses the call itself.
        """
        retrying = Retrying(
            retry=retry_if_exception(_is_away),
            wait=wait_random_exponential(multiplier=0.02, max=0.5),
            stop=self._stop,
            reraise=True,
        )
        seconds = CALL_SECONDS

        def ask() -> Reply:
            nonlocal seconds
            patience, seconds = seconds, min(2 * seconds, CALL_SECONDS_MAX)
            try:
                return method(request, timeout=patience)
            except grpc.RpcError as error:
                if _code(error) is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    seconds = patience
                raise

        try:
            return retrying(ask)
        except grpc.RpcError as error:
            if is_refusal(error):
                raise Superseded(
                    f"the node refused this query process ({_details(error)}); "
                    "the node runs another one"
                ) from error
            raise QueryProcessFailed(
                f"the node answered {_code(error).name}: {_details(error)}"
            ) from error


def is_refusal(error: grpc.RpcError) -> bool:
    """Whether the node answered that it has another query process."""
    return _code(error) in _NOT_MINE


def _is_away(error: BaseException) -> bool:
    return isinstance(error, grpc.RpcError) and _code(error) in _AWAY


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    return error.code()


def _details(error: grpc.RpcError) -> str:
    return str(error.details())
