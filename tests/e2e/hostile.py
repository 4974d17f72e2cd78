"""Clients that misbehave: ``python -m tests.e2e.hostile ATTACK CLIENTS HOST:PORT``.

The program prints ``attacking`` once the attack has its full strength, and goes on until its stdin
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import resource
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc

from ha_engine.v1 import ingest_pb2 as pb
from ha_engine.v1 import ingest_pb2_grpc as rpc

HOST = b"Host: 127.0.0.1\r\n"
POST = b"POST /v1/streams/events/events HTTP/1.1\r\n" + HOST
POST += b"Content-Type: application/x-ndjson\r\n"
EVENT = b'{"id": 1, "text": "hostile"}'
MIB = 1 << 20
FILES = 300
"""Open files of this program beside its connections."""
BURST = 100
"""Connections that are opened at one time."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"

Client = Callable[[str, int], Awaitable[None]]


async def _all(client: Client, address: str, count: int) -> None:
    """Run ``count`` clients for ever. A client that the node disconnects begins again."""
    limit = asyncio.Semaphore(BURST)
    begun = 0

    async def again(number: int) -> None:
        nonlocal begun
        for attempt in itertools.count():
            async with limit:
                running = asyncio.create_task(client(address, number))
                await asyncio.wait((running,), timeout=0.01)
            if not attempt:
                begun += 1
            if begun == count:
                begun += 1
                sys.stdout.write("attacking\n")
                sys.stdout.flush()
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, grpc.RpcError):
                await running
            await asyncio.sleep(0.05)

    await asyncio.gather(*(again(number) for number in range(count)))


async def _open(
    address: str, number: int, receive: int | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    opened = socket.socket()
    opened.setblocking(False)
    if receive is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    opened.bind((f"127.0.0.{1 + number % 2}", 0))  # one address has ports for 28,000 connections
    await asyncio.get_running_loop().sock_connect(opened, (host, int(port)))
    return await asyncio.open_connection(sock=opened)


async def _until_closed(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def idle(address: str, number: int) -> None:
    """Open a connection and send nothing."""
    reader, writer = await _open(address, number)
    with contextlib.closing(writer):
        await _until_closed(reader)


async def slow_headers(address: str, number: int) -> None:
    """Send one byte of a header each second."""
    _, writer = await _open(address, number)
    with contextlib.closing(writer):
        writer.write(b"GET /v1/status HTTP/1.1\r\nX-Slow: ")
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(1)


async def slow_bodies(address: str, number: int) -> None:
    """Send one byte of a body each second."""
    reader, writer = await _open(address, number)
    with contextlib.closing(writer):
        writer.write(POST + b"Content-Length: 100000\r\n\r\n")
        while not reader.at_eof():
            writer.write(b"{")
            await writer.drain()
            await asyncio.sleep(1)


async def slow_readers(address: str, number: int) -> None:
    """Ask for large answers and read none of them."""
    _, writer = await _open(address, number, receive=4096)
    with contextlib.closing(writer):
        while True:
            writer.write(b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.1)


async def pipelining(address: str, number: int) -> None:
    """Send many requests without a look at the answers."""
    _, writer = await _open(address, number)
    with contextlib.closing(writer):
        while True:
            writer.write((b"GET /liveness HTTP/1.1\r\n" + HOST + b"\r\n") * 10_000)
            await writer.drain()


async def leaving(address: str, number: int) -> None:
    """Send a few requests at once, and close the connection without a wait for the answers."""
    _, writer = await _open(address, number)
    writer.write((POST + b"Content-Length: 2\r\n\r\n{}") * 5)
    writer.write(b"POST /v1/switchover HTTP/1.1\r\n" + HOST + b"Content-Length: 200\r\n\r\n{")
    await writer.drain()
    writer.transport.abort()


async def endless_bodies(address: str, number: int) -> None:
    """Send a body in chunks without end."""
    reader, writer = await _open(address, number)
    with contextlib.closing(writer):
        writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%b\r\n" % (1 << 16, b" " * (1 << 16))
        while not reader.at_eof():
            writer.write(chunk)
            await writer.drain()


async def gzip_bombs(address: str, number: int) -> None:
    """Send a few kilobytes that decompress to more than any body may have."""
    reader, writer = await _open(address, number)
    with contextlib.closing(writer):
        length = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB)
        while not reader.at_eof():
            writer.write(POST + length + BOMB)
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")


BOMB = gzip.compress(b" " * (64 * MIB))


async def idle_http2(address: str, number: int) -> None:
    """Open an HTTP/2 connection without a stream, and never answer a ping."""
    reader, writer = await _open(address, number)
    with contextlib.closing(writer):
        writer.write(_PREFACE)
        await _until_closed(reader)


async def huge_messages(address: str, number: int) -> None:
    """Send a gRPC message of HUGE bytes, without its last byte."""
    reader, writer = await _open(address, number)
    with contextlib.closing(writer):
        headers = b"".join(b"\0%c%b%c%b" % (len(n), n, len(v), v) for n, v in _CALL)
        writer.write(_PREFACE + _frame(_HEADERS, _END_HEADERS, 1, headers))
        room = Counter({0: 65_535, 1: 65_535})
        left = memoryview(b"\0" + HUGE.to_bytes(4, "big") + bytes(HUGE - 1))
        while True:
            while left and (size := min(len(left), 16_384, *room.values())) > 0:
                writer.write(_frame(_DATA, 0, 1, left[:size]))
                left = left[size:]
                room.subtract({0: size, 1: size})
                await writer.drain()
            length, kind, flags, stream = struct.unpack(">3sBBI", await reader.readexactly(9))
            payload = await reader.readexactly(int.from_bytes(length, "big"))
            if kind == _WINDOW_UPDATE:
                room[stream] += int.from_bytes(payload, "big")
            elif kind == _SETTINGS and not flags:
                for at in range(0, len(payload), 6):
                    setting, value = struct.unpack(">HI", payload[at : at + 6])
                    if setting == _INITIAL_WINDOW:
                        room[1] += value - 65_535
                writer.write(_frame(_SETTINGS, _ACK, 0))
            elif kind == _PING and not flags:
                writer.write(_frame(_PING, _ACK, 0, payload))
            elif kind in (_RST_STREAM, _GOAWAY):
                return


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


HUGE = 4 * MIB
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_HEADERS, _INITIAL_WINDOW = 1, 4, 4
_CALL = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/ha_engine.v1.Ingest/Publish"),
    (b":authority", b"127.0.0.1"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


async def half_open_streams(address: str, number: int) -> None:
    """Open gRPC streams and send nothing."""
    async with grpc.aio.insecure_channel(address, _own_connection(number)) as channel:
        stub = rpc.IngestStub(channel)
        calls = [stub.Publish(), stub.Publish()]  # type: ignore[call-arg]
        await asyncio.gather(*(call.read() for call in calls))


async def endless_streams(address: str, number: int) -> None:
    """Send requests on a gRPC stream without end, and read no answer."""

    async def requests() -> AsyncIterator[pb.PublishRequest]:
        for identity in itertools.count():
            yield pb.PublishRequest(id=identity, stream="events", ndjson=EVENT)

    async with grpc.aio.insecure_channel(address, _own_connection(number)) as channel:
        await rpc.IngestStub(channel).Publish(requests()).wait_for_connection()  # type: ignore[attr-defined]
        await asyncio.Event().wait()


async def many_producers(address: str, number: int) -> None:
    """Give each request a new producer id."""

    async def requests() -> AsyncIterator[pb.PublishRequest]:
        for identity in itertools.count():
            producer = f"producer-{number}-{identity}-{'x' * 80}"
            yield pb.PublishRequest(
                id=identity, stream="events", ndjson=EVENT, producer=producer, sequence=identity
            )

    async with grpc.aio.insecure_channel(address, _own_connection(number)) as channel:
        async for _ in rpc.IngestStub(channel).Publish(requests()):  # type: ignore[attr-defined]
            pass


def _own_connection(number: int) -> list[tuple[str, int]]:
    return [("grpc.use_local_subchannel_pool", 1), ("number", number)]


ATTACKS: dict[str, Client] = {
    one.__name__: one
    for one in (
        idle,
        slow_headers,
        slow_bodies,
        slow_readers,
        pipelining,
        leaving,
        endless_bodies,
        gzip_bombs,
        idle_http2,
        huge_messages,
        half_open_streams,
        endless_streams,
        many_producers,
    )
}
"""By name: what each client does."""


async def _attack(name: str, clients: str, address: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(int(clients), hard - FILES)
    attacking = asyncio.create_task(_all(ATTACKS[name], address, count))
    parent = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait((attacking, parent), return_when=asyncio.FIRST_COMPLETED)
    if attacking.done():
        attacking.result()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_attack(*sys.argv[1:]))
