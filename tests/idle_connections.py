"""Connections that send nothing, to a server that limits their number."""

from __future__ import annotations

import contextlib
import socket

from tests.waiting import async_wait_until


async def require_bound(port: int, connections_max: int) -> None:
    """Require that the server on ``port`` closes a connection above ``connections_max``."""
    with contextlib.ExitStack() as opened:
        idle = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(connections_max + 1)
        ]
        for connection in idle:
            connection.setblocking(False)
        # The server closes silent connections too, but those that began first.
        await async_wait_until(lambda: _is_closed(idle[-1]))
        assert not _is_closed(idle[0])


def _is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True
