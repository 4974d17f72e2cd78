"""One gRPC stream between two nodes, with the limits and the errors that both ends share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from ha_engine.v1 import sync_pb2 as pb

if TYPE_CHECKING:
    Call = grpc.aio.StreamStreamCall[pb.SyncFrame, pb.SyncFrame]
    Context = grpc.aio.ServicerContext[Any, Any]

MESSAGE_BYTES_MAX = 40 << 20
"""A message must have space for the largest record: one request of 32 MiB of Arrow with its
meta."""
TLS_HANDSHAKE_SECONDS = 5.0
_SAYS_NOTHING = ("", "Internal error from Core")


class WireBroken(Exception):
    """The stream has ended; nothing more can be read or written."""


class Wire(Protocol):
    """Carries frames in order, in both directions. Only one reader and one writer may use a wire at
    a time; both raise WireBroken."""

    @property
    def certified(self) -> frozenset[str] | None:
        """The names in the peer's certificate, or None without TLS."""

    async def read(self) -> pb.SyncFrame: ...

    async def write(self, frame: pb.SyncFrame) -> None: ...

    async def finish(self) -> None:
        """Let the other end read all written frames before this end closes."""


class ClientWire:
    """The wire of the node that dialled. gRPC has found ``peer`` in the server's certificate."""

    def __init__(self, call: Call, peer: str | None) -> None:
        self._call = call
        self.certified = None if peer is None else frozenset((peer,))

    async def read(self) -> pb.SyncFrame:
        with _translated():
            frame = await self._call.read()
        return _not_the_end(frame)

    async def write(self, frame: pb.SyncFrame) -> None:
        with _translated():
            await self._call.write(frame)

    async def finish(self) -> None:
        try:
            with _translated():
                await self._call.done_writing()
            while True:
                await self.read()
        except WireBroken:
            return


class ServerWire:
    """The wire of the node that was dialled."""

    def __init__(self, context: Context, *, tls: bool) -> None:
        self._context = context
        self.certified = names_of(context) if tls else None

    async def read(self) -> pb.SyncFrame:
        with _translated():
            frame = await self._context.read()
        return _not_the_end(frame)

    async def write(self, frame: pb.SyncFrame) -> None:
        with _translated():
            await self._context.write(frame)

    async def finish(self) -> None:
        """Do nothing, because gRPC sends all written frames before the status that ends the
        stream."""


def options(silence: float) -> Sequence[tuple[str, int]]:
    """gRPC options of both ends. A connection ends if the peer answers nothing for ``silence``
    seconds."""
    milliseconds = int(silence * 1000)
    return (
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.keepalive_time_ms", milliseconds // 2),
        # keepalive_timeout detects a dead network connection. ping_timeout detects a stopped
        # process whose host still answers. Without ping_timeout such a process was not detected
        # within 25 s in a measurement.
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.http2.ping_timeout_ms", milliseconds),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", milliseconds // 4),
        ("grpc.server_handshake_timeout_ms", int(TLS_HANDSHAKE_SECONDS * 1000)),
        # With SO_REUSEPORT, a second process on the same port would get every other connection.
        ("grpc.so_reuseport", 0),
        # By default channels share connections and their back-off, but each dial needs a new
        # connection.
        ("grpc.use_local_subchannel_pool", 1),
    )


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise WireBroken(_reason(error)) from error
    except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
        raise WireBroken("the connection is lost") from error
    except DecodeError as error:
        raise WireBroken("the peer sent bytes that are not a frame") from error


def _reason(error: grpc.aio.AioRpcError) -> str:
    details = error.details() or ""
    return "the connection is lost" if details in _SAYS_NOTHING else details


def _not_the_end(frame: pb.SyncFrame | Any) -> pb.SyncFrame:
    if not isinstance(frame, pb.SyncFrame):
        raise WireBroken("the peer ended the stream")
    return frame


def names_of(context: Context) -> frozenset[str]:
    """The names in the certificate that the caller has shown."""
    shown = context.auth_context()
    names = shown.get("x509_subject_alternative_name") or shown.get("x509_common_name") or ()
    return frozenset(name.decode(errors="replace") for name in names)
