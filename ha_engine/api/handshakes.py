"""Accept connections and complete their TLS handshakes, with a limit of handshakes.

A server of asyncio completes handshakes without a limit of their number, and each is an open file.
A stranger could therefore use up the open files of a node with handshakes that never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable

from ha_engine.web.closed import Closed

HANDSHAKES_MAX = 128
WITHIN_SECONDS = 10.0
RETRY_SECONDS = 0.1
"""The wait after a failed accept, such as for want of an open file."""


class TlsListener:
    """Accepts the connections of ``listener`` on the running event loop, until ``close``.

    At HANDSHAKES_MAX, a new handshake takes the place of the one that began first.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        closed: Counter[str],
    ) -> None:
        self._listener, self._context = listener, context
        self._make_protocol, self._closed = make_protocol, closed
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._accepting = asyncio.get_running_loop().create_task(self._accept(), name="accept")

    def close(self) -> None:
        self._accepting.cancel()
        for handshake in self._handshakes:
            handshake.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                self._end_oldest()
            handshake = loop.create_task(self._complete(connection), name="TLS handshake")
            self._handshakes[handshake] = None
            handshake.add_done_callback(lambda ended: self._handshakes.pop(ended, None))
            await asyncio.sleep(0)  # an accept with a waiting connection does not yield

    def _end_oldest(self) -> None:
        """End the handshake that began first, which takes several turns of the loop. Until then it
        must not count, or the next handshake would end it again in place of another one."""
        oldest = next(iter(self._handshakes))
        del self._handshakes[oldest]
        oldest.cancel()

    async def _complete(self, connection: socket.socket) -> None:
        loop, completed = asyncio.get_running_loop(), False
        try:
            with contextlib.suppress(OSError):  # also what TLS refuses
                await loop.connect_accepted_socket(
                    self._make_protocol,
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=WITHIN_SECONDS,
                )
                completed = True
        finally:
            if not completed:
                self._closed[Closed.HANDSHAKE] += 1
                connection.close()
