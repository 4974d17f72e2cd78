"""The gRPC service through which Spark's executors on other hosts read ranges of the journal.

The service reads the journal in a thread of its own, which shares the interpreter with the event
loop. The service reads the next message of a call only when gRPC has taken the one before, so a
slow reader costs little memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import grpc
import structlog

from ha_engine import __version__
from ha_engine.auth import bears
from ha_engine.config.execution import ExecutionTls
from ha_engine.errors import DiskFailed, JournalDamaged, UnknownJournalVersion
from ha_engine.journal.reading import read_stream_frames
from ha_engine.query.range_endpoints import Endpoints
from ha_engine.system.files import OS_FILES, Files
from ha_engine.types import Extent, Position
from ha_engine.v1 import ranges_pb2 as pb
from ha_engine.v1 import ranges_pb2_grpc as rpc
from ha_engine.web.grpc_port import GRACE_SECONDS, add_port, client_limits
from ha_engine.web.tls import authority, grpc_credentials, readable_pair

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

log = structlog.get_logger(__name__)
Code = grpc.StatusCode

MESSAGE_BYTES = 1 << 20
"""A message has about this many bytes of frames; one larger frame is a message by itself."""
CALLS_MAX = 64
"""Calls that read at one time. Each needs memory for about three messages."""
CONNECTIONS_MAX = 256
"""Connections to the service. Each Python worker of an executor has one, which is an open file of
the node."""
THREADS = 1
"""A second thread would compete with the event loop for the interpreter, and read no faster."""
REQUEST_BYTES_MAX = 64 << 10


class JournalRecords(Protocol):
    """The part of core and journal that the service uses; a thread calls ``locate``."""

    @property
    def group_id(self) -> str | None:
        """The UUID of the group, or None while the node does not know it."""

    def has(self, position: Position) -> bool:
        """Whether the journal has, or soon has, the record at ``position``."""

    def lacks_records_from(self, first: int) -> bool:
        """Whether record ``first`` is trimmed."""

    def locate(self, first: int, last: int) -> list[Extent]:
        """Find the bytes of the records ``first`` to ``last``.

        Raises DiskFailed, JournalDamaged, or ValueError when ``first`` is trimmed.
        """


class _Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses a call without ``token`` before its request is read, which may never come."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_service(self, continuation: Any, call: grpc.HandlerCallDetails) -> Any:
        given = dict(call.invocation_metadata or ()).get("authorization")
        if bears(None if given is None else str(given), self._token):
            return await continuation(call)
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_: object, context: Context) -> None:
    await context.abort(
        Code.UNAUTHENTICATED,
        "the token is not that of this node; give every node and the Spark cluster the same secret",
    )


class RangeService(rpc.RangesServicer):
    """The gRPC service ``Ranges``, on the node's event loop. ``guard`` refuses calls without
    ``token``.

    ``on_sent`` is called with the size of each sent message in bytes.
    """

    def __init__(
        self,
        records: JournalRecords,
        token: str,
        on_sent: Callable[[int], None] = lambda size: None,
        *,
        calls_max: int = CALLS_MAX,
        message_bytes: int = MESSAGE_BYTES,
        files: Files = OS_FILES,
    ) -> None:
        self.guard, self.token = _Guard(token), token
        self._records, self._files = records, files
        self._on_sent = on_sent
        self._calls, self._calls_max = 0, calls_max
        self._message_bytes = message_bytes
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ranges")

    async def Read(  # type: ignore[override]  # noqa: N802
        self, request: pb.ReadRequest, context: Context
    ) -> None:
        if self._calls >= self._calls_max:
            reason = f"this node serves {self._calls_max} readers already; ask again later"
            await context.abort(Code.RESOURCE_EXHAUSTED, reason)
        self._calls += 1
        try:
            await self._require_readable(request, context)
            reading = _Reading(self._records, request, self._message_bytes, self._files)
            while reading.next <= reading.last:
                message = await self._message(reading, context)
                try:
                    await context.write(message)
                except (grpc.aio.BaseError, asyncio.InvalidStateError):
                    return  # The reader has left.
                self._on_sent(len(message.frames))
        finally:
            self._calls -= 1

    @property
    def calls(self) -> int:
        """The number of calls that read now."""
        return self._calls

    def close(self) -> None:
        """End the threads once they have read what they read now."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _require_readable(self, request: pb.ReadRequest, context: Context) -> None:
        """Abort a call that this node cannot answer now."""
        first, last = request.first_sequence, request.last_sequence
        records = self._records
        if request.release != __version__:
            await context.abort(
                Code.FAILED_PRECONDITION,
                f"this worker runs ha-engine {request.release}, but the node runs {__version__}; "
                "install the same ha-engine on every worker",
            )
        if records.group_id is None:
            await context.abort(Code.UNAVAILABLE, "this node does not know its group yet")
        if request.group_id != records.group_id:
            await context.abort(
                Code.FAILED_PRECONDITION,
                f"this node belongs to the group {records.group_id}, not {request.group_id}; "
                "correct the addresses of the nodes",
            )
        if not 0 < first <= last:
            await context.abort(Code.INVALID_ARGUMENT, f"{first} to {last} is no range of records")
        if records.lacks_records_from(first):
            await _abort_trimmed(first, last, context)
        end = Position(request.last_epoch, last)
        if not records.has(end):
            # The journal is behind, or has other records that a forced failover gave up.
            await context.abort(
                Code.UNAVAILABLE, f"this node's journal has no record {end}; ask again later"
            )

    async def _message(self, reading: _Reading, context: Context) -> pb.Frames:
        """Read the next message in a thread; abort the call if that fails."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, reading.message)
        except (ValueError, JournalDamaged) as error:
            # A trim removes the file, or the records, between two reads.
            if self._records.lacks_records_from(reading.next):
                await _abort_trimmed(reading.next, reading.last, context)
            if not isinstance(error, JournalDamaged):
                raise
            await _abort(Code.DATA_LOSS, error, context)
        except UnknownJournalVersion as error:
            await _abort(Code.DATA_LOSS, error, context)
        except DiskFailed as error:
            await _abort(Code.INTERNAL, error, context)
        except _Lacking as error:
            await _abort(Code.UNAVAILABLE, error, context)


class _Lacking(Exception):
    """The journal does not have a record yet, or was truncated after the call began, which happens
    only in a forced failover (RULES.md#r26)."""


class _Reading:
    """The progress of one call. ``next`` is the sequence of the first record that was not read."""

    def __init__(
        self,
        records: JournalRecords,
        request: pb.ReadRequest,
        message_bytes: int,
        files: Files,
    ) -> None:
        self._records, self._stream = records, request.stream
        self._message_bytes, self._files = message_bytes, files
        self.next, self.last = request.first_sequence, request.last_sequence
        self._extents: list[Extent] | None = None

    def message(self) -> pb.Frames:
        """Read the next message.

        Each message opens the file anew, so that a call which is cancelled while a thread reads
        leaves no file open. Raises _Lacking, and what ``read_stream_frames`` and ``locate``
        raise.
        """
        if self._extents is None:
            self._extents = self._records.locate(self.next, self.last)
        if not self._extents:
            raise _Lacking(f"this node's journal does not have record {self.next}; ask again later")
        extent, *rest = self._extents
        read = read_stream_frames(extent, self.next, self._stream, self._message_bytes, self._files)
        self._extents = rest if read.rest is None else [read.rest, *rest]
        self.next = read.through + 1
        parts = [part for frame in read.frames for part in (frame.head, frame.payload)]
        return pb.Frames(frames=b"".join(parts), through=read.through)


async def _abort_trimmed(first: int, last: int, context: Context) -> NoReturn:
    reason = f"the journal has trimmed records from {first} to {last}"
    await context.abort(Code.OUT_OF_RANGE, reason)


async def _abort(code: grpc.StatusCode, error: Exception, context: Context) -> NoReturn:
    log.warning("a range of the journal cannot be read", reason=str(error))
    await context.abort(code, str(error))


class RangeServer:
    """The gRPC server for executors, one per node process. ``listen`` and ``tls`` are settings of
    the section ``execution``."""

    def __init__(self, service: RangeService, listen: str, tls: ExecutionTls) -> None:
        self._service, self._listen, self._tls = service, listen, tls
        self._server: grpc.aio.Server | None = None
        self.address = ""
        """The address on which the server listens; empty before ``start``."""
        self.port = 0
        self._ca: bytes | None = None

    async def start(self) -> None:
        """Listen for readers. Raises AddressInUse, ConfigError."""
        self.look_at_certificate()
        credentials = grpc_credentials(self._tls, "execution.tls")
        server = grpc.aio.server(
            interceptors=[self._service.guard],
            options=[
                *client_limits(CONNECTIONS_MAX),
                ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
                ("grpc.http2.bdp_probe", 0),  # as in query/range_reader.py
            ],
            # The service refuses calls above CALLS_MAX. This limit is for other calls.
            maximum_concurrent_rpcs=4 * CALLS_MAX,
        )
        rpc.add_RangesServicer_to_server(self._service, server)
        self.port = add_port(server, self._listen, credentials, "execution")
        await server.start()
        self._server = server
        self.address = f"{self._listen.rpartition(':')[0]}:{self.port}"

    def look_at_certificate(self) -> None:
        """Read the certificate of the authority, which executors get with each batch.

        Raise ConfigError if a certificate that is now in a file is unusable for new connections."""
        readable_pair(self._tls, "execution.tls")
        if self._tls.ca is not None:
            self._ca = authority(self._tls.ca, "execution.tls.ca")

    def endpoints(self, addresses: tuple[str, ...], group_id: str, last_epoch: int) -> Endpoints:
        """The nodes at ``addresses``, with the credentials that executors need to read there."""
        return Endpoints(addresses, self._service.token, self._ca, group_id, last_epoch)

    async def stop(self) -> None:
        """End the calls after at most GRACE_SECONDS, and stop listening. Readers continue at
        another node, or here after a restart."""
        if self._server is not None:
            await self._server.stop(GRACE_SECONDS)
        self._service.close()
