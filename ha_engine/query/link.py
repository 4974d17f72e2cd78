"""Call the node process over its local socket, and retry while the node process is down.

A restarted node process must find its query process running, so a call waits until the node process
answers. If the node process answers that it has another query process, the call fails at once
(RULES.md#r19).
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
    # A node process that stops answers CANCELLED to its unfinished calls.
    grpc.StatusCode.CANCELLED,
)
_NOT_MINE = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION)
CALL_SECONDS = 10.0
"""Timeout of a call. After a timeout the link repeats the call with twice the time."""
CALL_SECONDS_MAX = 320.0
MESSAGE_BYTES_MAX = 16 << 20
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Calls to a node must not use a proxy that the environment names.
    ("grpc.enable_http_proxy", 0),
    # gRPC sends a ping after each answer to measure bandwidth, which keeps gRPC's threads awake.
    ("grpc.http2.bdp_probe", 0),
    # By default gRPC reads a stream with a second thread, which wakes five times a second.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
)
"""Options of every channel to a node."""
_LOCAL_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)

Reply = TypeVar("Reply")


class Superseded(QueryProcessFailed):
    """The node process has another query process, so this query process must end."""


@dataclass(frozen=True, slots=True)
class Address:
    """The node's socket, and the incarnation that this process names in each call."""

    socket: str
    incarnation: str


def open_channel(address: Address) -> grpc.Channel:
    return grpc.insecure_channel(f"unix:{address.socket}", options=_LOCAL_OPTIONS)


class NodeLink:
    """Makes unary calls to the node process; thread-safe.

    ``stop`` is tenacity's condition that ends the wait for an absent node process, by default
    never.
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
                if code_of(error) is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    seconds = patience
                raise

        try:
            return retrying(ask)
        except grpc.RpcError as error:
            if is_refusal(error):
                raise Superseded(
                    f"the node refused this query process ({details_of(error)}); "
                    "the node runs another one"
                ) from error
            raise QueryProcessFailed(
                f"the node answered {code_of(error).name}: {details_of(error)}"
            ) from error


def is_refusal(error: grpc.RpcError) -> bool:
    """Whether the node process answered that it has another query process."""
    return code_of(error) in _NOT_MINE


def _is_away(error: BaseException) -> bool:
    return isinstance(error, grpc.RpcError) and code_of(error) in _AWAY


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    return error.code()


def details_of(error: grpc.RpcError) -> str:
    return str(error.details())
