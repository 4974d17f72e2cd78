"""Slow or large connections do not keep others out."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ha_engine.api import requests
from ha_engine.api.connection import HEADERS_BYTES_MAX, PIPELINED_MAX, ConnectionPool
from ha_engine.api.requests import read
from ha_engine.api.server import UNSENT_BYTES_MAX, WebServer
from ha_engine.config import HttpConfig
from tests.client.serving import running
from tests.waiting import wait_until

KEEP_ALIVE_SECONDS = 1
CONNECTIONS_MAX = 3
LARGE_BYTES = 8 << 20
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


class Asked(BaseModel):
    """A body that has any size up to the limit of operators' requests."""


async def length(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())} bytes")


async def large(request: Request) -> PlainTextResponse:
    return PlainTextResponse("a" * LARGE_BYTES)


async def operator(request: Request) -> PlainTextResponse:
    await read(request, Asked)
    return PlainTextResponse("done")


class Served:
    """A server with few connections, and what it counts."""

    def __init__(self, url: str, closed: Counter[str]) -> None:
        address = urlsplit(url)
        self._address, self.closed = (address.hostname, address.port), closed
        self._open = contextlib.ExitStack()

    def connect(self) -> socket.socket:
        return self._open.enter_context(socket.create_connection(self._address, timeout=20))

    def leave(self) -> None:
        self._open.close()


@contextlib.contextmanager
def serving(keep_alive: float) -> Iterator[Served]:
    routes = [
        Route("/", length, methods=["POST"]),
        Route("/large", large),
        Route("/operator", operator, methods=["POST"]),
    ]
    http = HttpConfig.model_validate({"keep_alive": f"{keep_alive}s"})
    closed = Counter[str]()
    with running(
        WebServer(Starlette(routes=routes), http, ConnectionPool(CONNECTIONS_MAX, closed)), "http"
    ) as url:
        served = Served(url, closed)
        yield served
        served.leave()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(KEEP_ALIVE_SECONDS) as served:
        yield served


@pytest.fixture
def patient() -> Iterator[Served]:
    """Return a server whose connections may wait for long, also on a slow host."""
    with serving(3600) as served:
        yield served


@pytest.fixture
def connection(served: Served) -> socket.socket:
    return served.connect()


def receive(connection: socket.socket, wanted: bytes) -> None:
    received = b""
    while wanted not in received:
        part = connection.recv(1 << 16)
        assert part, f"closed after {received!r}"
        received += part


def until_closed(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize("begun", [b"", b"POST / HTTP/1.1\r\nHo", POST % 5 + b"12345POST /"])
def test_connection_without_a_whole_request_is_closed(served: Served, begun: bytes) -> None:
    connection = served.connect()
    connection.sendall(begun)
    assert until_closed(connection).count(b"HTTP/1.1 200 OK") == begun.count(b"12345")
    # A connection that is merely idle is no misbehaviour.
    assert served.closed == ({"late": 1} if begun else {})


def test_connection_that_sends_its_headers_byte_by_byte_is_closed(
    connection: socket.socket,
) -> None:
    connection.sendall(b"POST / HTTP/1.1\r\nX-Slow: ")

    def is_closed() -> bool:
        try:
            connection.sendall(b"a")
        except ConnectionError:
            return True
        return False

    wait_until(is_closed, within=20, every=0.1)


def test_endless_headers_are_refused(served: Served) -> None:
    connection = served.connect()
    # Send exactly the bytes that the server reads: an unread byte makes the kernel drop the answer.
    connection.sendall(b"POST / HTTP/1.1\r\nX-Long: ".ljust(HEADERS_BYTES_MAX + 1, b"a"))
    headers, _, body = until_closed(connection).partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body) == {"error": f"the headers have more than {HEADERS_BYTES_MAX} bytes"}
    assert served.closed == {"large_headers": 1}


def test_headers_in_one_read_with_their_request_are_bounded_too(
    connection: socket.socket,
) -> None:
    large = b"X-Long: ".ljust(HEADERS_BYTES_MAX, b"a")
    connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n" + large + b"\r\n\r\n")
    assert until_closed(connection).startswith(b"HTTP/1.1 431 ")


def test_pipelined_requests_are_bounded(served: Served) -> None:
    """One read of a connection has thousands of small requests, and each needs a turn of the event
    loop."""
    connection = served.connect()
    connection.sendall((POST % 1 + b"1") * 1000)
    answers = until_closed(connection)
    assert answers.count(b"HTTP/1.1 200 OK") == 1 + PIPELINED_MAX
    assert answers.count(b"connection: close") == 1
    assert served.closed == {"pipelined": 1}


def test_a_few_pipelined_requests_are_answered(connection: socket.socket) -> None:
    connection.sendall((POST % 1 + b"1") * PIPELINED_MAX)
    assert until_closed(connection).count(b"HTTP/1.1 200 OK") == PIPELINED_MAX


@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nHost: b\r\n"])
def test_request_without_exactly_one_host_is_refused(
    connection: socket.socket, hosts: bytes
) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")
    headers, _, body = until_closed(connection).partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body) == {"error": "the request must have exactly one Host header"}


def test_non_http_bytes_are_refused_with_json(served: Served) -> None:
    connection = served.connect()
    connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
    headers, _, body = until_closed(connection).partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 400 ")
    assert "error" in json.loads(body)
    assert served.closed == {"malformed": 1}


def test_body_may_take_longer_and_be_larger_than_headers(connection: socket.socket) -> None:
    size = 4 * HEADERS_BYTES_MAX
    connection.sendall(POST % (2 * size) + b"a" * size)
    time.sleep(1.5 * KEEP_ALIVE_SECONDS)  # the time of a slow line
    connection.sendall(b"a" * size + POST % 3 + b"123" + POST % 4 + b"1234")
    answers = until_closed(connection)
    assert [answers.count(b"%d bytes" % size) for size in (2 * size, 3, 4)] == [1, 1, 1]


def test_new_connection_takes_the_place_of_the_longest_idle_one(patient: Served) -> None:
    idle = [patient.connect() for _ in range(CONNECTIONS_MAX)]
    # In the end the first connection waits less long than the others.
    for one in (*idle, idle[0]):
        one.sendall(POST % 1 + b"1")
        receive(one, b"1 bytes")
    another = patient.connect()
    another.sendall(POST % 2 + b"22")
    receive(another, b"2 bytes")
    assert until_closed(idle[1]) == b""
    idle[0].sendall(POST % 3 + b"333")
    receive(idle[0], b"3 bytes")
    assert patient.closed == {"displaced": 1}


def test_new_connection_is_refused_while_all_others_are_busy(patient: Served) -> None:
    busy = [patient.connect() for _ in range(CONNECTIONS_MAX)]
    for each in busy:
        each.sendall(
            b"Expect: 100-continue\r\nContent-Length".join((POST % 5).split(b"Content-Length"))
        )
        assert each.recv(1000).startswith(b"HTTP/1.1 100 ")
    headers, _, body = until_closed(patient.connect()).partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body) == {"error": "too many connections are open"}
    assert patient.closed == {"too_many": 1}
    busy[0].sendall(b"12345")
    receive(busy[0], b"5 bytes")


@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"])
def test_client_that_does_not_read_its_answers_loses_its_connection(
    served: Served, last: bytes
) -> None:
    connection = served.connect()
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n" + last + b"\r\n")
    wait_until(lambda: served.closed["unread"], within=20)
    with contextlib.suppress(ConnectionError):
        assert len(until_closed(connection)) < LARGE_BYTES


def test_few_answers_are_made_for_a_client_that_reads_none() -> None:
    made = list[None]()

    async def make(request: Request) -> PlainTextResponse:
        made.append(None)
        return PlainTextResponse("a" * 2 * UNSENT_BYTES_MAX)

    http, closed = HttpConfig.model_validate({"keep_alive": "1s"}), Counter[str]()
    server = WebServer(Starlette(routes=[Route("/", make)]), http, ConnectionPool(1, closed))
    with running(server, "http") as url, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((urlsplit(url).hostname, urlsplit(url).port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * PIPELINED_MAX)
        wait_until(lambda: closed["unread"], within=20)
    assert len(made) <= PIPELINED_MAX / 2


def test_client_that_leaves_during_pipelined_requests_is_no_error(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    to_operator = POST.replace(b"/ ", b"/operator ", 1)
    for begun in (POST % 1 + b"1", to_operator % 2 + b"{}", to_operator % 200 + b"{"):
        leaving = served.connect()
        leaving.sendall(begun + POST % 1 + b"1")
        leaving.close()
    connection = served.connect()
    connection.sendall(POST % 1 + b"1")
    receive(connection, b"1 bytes")
    assert [one.exc_text for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_late_body_of_an_operators_request_is_refused(
    connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "WITHIN_SECONDS", 0.1)
    connection.sendall((POST % 5).replace(b"/ ", b"/operator ", 1) + b"{")
    assert until_closed(connection).startswith(b"HTTP/1.1 408 ")
