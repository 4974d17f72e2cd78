"""The lines of the fault matrix delay and stop what passes, and lose nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.e2e.node_under_test import free_port
from tests.faults.matrix.lines import HostLines, Line

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root enters a network namespace")
DELAY_SECONDS = 0.3
PATIENCE = 30.0


def echo(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the server is closed at the end of the test
        while True:
            client, _ = server.accept()
            threading.Thread(target=_echo, args=(client,), daemon=True).start()


def _echo(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := client.recv(1 << 16):
            client.sendall(piece)


@pytest.fixture
def line() -> Iterator[tuple[Line, int]]:
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        HostLines.on("/proc/self/ns/net") as host,
    ):
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        yield host.add(port, server.getsockname()), port


def answered(client: socket.socket, sent: bytes) -> float:
    """Return the seconds until the echo came back."""
    began = time.monotonic()
    client.sendall(sent)
    found = b""
    while len(found) < len(sent):
        found += client.recv(1 << 16)
    assert found == sent
    return time.monotonic() - began


def test_a_line_is_late_in_both_directions_and_reorders_connections(
    line: tuple[Line, int],
) -> None:
    with (
        socket.create_connection(("127.0.0.1", line[1]), PATIENCE) as one,
        socket.create_connection(("127.0.0.1", line[1]), PATIENCE) as other,
    ):
        for client in (one, other):
            answered(client, b"at once")
        line[0].disturb(delay_seconds=DELAY_SECONDS)
        assert min(answered(client, b"late") for client in (one, other)) >= 2 * DELAY_SECONDS
        line[0].disturb(delay_seconds=60.0, reordering=True)
        one.sendall(b"overtaken")
        answered(other, b"overtaking")


def test_a_line_stops_after_some_bytes_and_loses_none(line: tuple[Line, int]) -> None:
    with socket.create_connection(("127.0.0.1", line[1]), PATIENCE) as client:
        answered(client, b"passes")
        line[0].disturb(allowance=9)
        client.sendall(b"stopped")
        assert client.recv(1 << 16) == b"st"
        line[0].repair()
        found = b""
        while len(found) < 5:
            found += client.recv(1 << 16)
        assert found == b"opped"
