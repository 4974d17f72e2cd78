"""Slow or large connections do not keep others out."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ha_engine.api.connection import HEADERS_BYTES_MAX, PIPELINED_MAX
from ha_engine.api.server import WebServer
from ha_engine.config import HttpConfig
from tests.client.serving import running
from tests.waiting import wait_until

KEEP_ALIVE_SECONDS = 1
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


async def length(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())} bytes")


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    application = Starlette(routes=[Route("/", length, methods=["POST"])])
    http = HttpConfig.model_validate({"keep_alive": f"{KEEP_ALIVE_SECONDS}s"})
    server = WebServer(application, http)
    with running(server, "http") as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), timeout=20) as opened:
            yield opened


def until_closed(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize("begun", [b"", b"POST / HTTP/1.1\r\nHo", POST % 5 + b"12345POST /"])
def test_connection_without_a_whole_request_is_closed(
    connection: socket.socket, begun: bytes
) -> None:
    connection.sendall(begun)
    assert until_closed(connection).count(b"HTTP/1.1 200 OK") == begun.count(b"12345")


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


def test_endless_headers_are_refused(connection: socket.socket) -> None:
    # Send exactly the bytes that the server reads: an unread byte makes the kernel drop the answer.
    connection.sendall(b"POST / HTTP/1.1\r\nX-Long: ".ljust(HEADERS_BYTES_MAX + 1, b"a"))
    headers, _, body = until_closed(connection).partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body) == {"error": f"the headers have more than {HEADERS_BYTES_MAX} bytes"}


def test_headers_in_one_read_with_their_request_are_bounded_too(
    connection: socket.socket,
) -> None:
    large = b"X-Long: ".ljust(HEADERS_BYTES_MAX, b"a")
    connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n" + large + b"\r\n\r\n")
    assert until_closed(connection).startswith(b"HTTP/1.1 431 ")


def test_pipelined_requests_are_bounded(connection: socket.socket) -> None:
    """One read of a connection has thousands of small requests, and each needs a turn of the event
    loop."""
    connection.sendall((POST % 1 + b"1") * 1000)
    answers = until_closed(connection)
    assert answers.count(b"HTTP/1.1 200 OK") == 1 + PIPELINED_MAX
    assert answers.count(b"connection: close") == 1


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


def test_non_http_bytes_are_refused_with_json(connection: socket.socket) -> None:
    connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
    headers, _, body = until_closed(connection).partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 400 ")
    assert "error" in json.loads(body)


def test_body_may_take_longer_and_be_larger_than_headers(connection: socket.socket) -> None:
    size = 4 * HEADERS_BYTES_MAX
    connection.sendall(POST % (2 * size) + b"a" * size)
    time.sleep(1.5 * KEEP_ALIVE_SECONDS)  # the time of a slow line
    connection.sendall(b"a" * size + POST % 3 + b"123" + POST % 4 + b"1234")
    answers = until_closed(connection)
    assert [answers.count(b"%d bytes" % size) for size in (2 * size, 3, 4)] == [1, 1, 1]
