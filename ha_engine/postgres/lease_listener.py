"""Report a change of the lease row at once: LISTEN on a connection of its own.

No safety depends on this; it only saves time. Poolers drop LISTEN, and a notification may be lost
with its connection. So the node also reads the row from time to time.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from sqlalchemy import Engine
from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    sleep_using_event,
    stop_when_event_set,
    wait_random,
)

from ha_engine.postgres.engine import translated
from ha_engine.postgres.lease_store import lease_channel
from ha_engine.postgres.schema import SCHEMA
from ha_engine.postgres.session import discard

log = structlog.get_logger(__name__)

RECONNECT_SECONDS = (0.1, 2.0)
STOP_SECONDS = 1.0


class LeaseListener:
    """Calls ``on_change`` from a thread of its own. A failure there never stops the node.

    The listener calls ``on_change`` after each notification, and once for several that arrive
    together. The listener also calls it after each connect, because earlier changes sent no
    notification to this connection. ``on_change`` should return at once.
    """

    def __init__(
        self, engine: Engine, group: str, on_change: Callable[[], object], *, schema: str = SCHEMA
    ) -> None:
        self._engine, self._on_change = engine, on_change
        self._channel = lease_channel(schema, group)
        self._stopping, self._deaf = threading.Event(), False
        self._woken, self._waker = socket.socketpair()
        self._wire: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen, without a wait for the connection."""
        self._thread = threading.Thread(target=self._run, name="lease listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and its connection; block for at most two seconds.

        A thread that is about to connect ends by itself, and no longer calls ``on_change``.
        """
        self._stopping.set()
        self._waker.close()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                self._cut()
                self._thread.join(STOP_SECONDS)

    def _cut(self) -> None:
        # No setting of the server or the socket detects a frozen server.
        if (wire := self._wire) is not None:
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        retrying = Retrying(
            stop=stop_when_event_set(self._stopping),
            wait=wait_random(*RECONNECT_SECONDS),
            sleep=sleep_using_event(self._stopping),
            before_sleep=self._tell_deaf,
        )
        with suppress(RetryError), self._woken:
            retrying(self._listen)

    def _listen(self) -> None:
        """Listen until ``stop``; raise when the connection breaks."""
        with translated(self._engine), self._connected() as connection:
            with connection.cursor() as cursor:
                cursor.execute(f"LISTEN {self._channel}")
            self._tell_hearing()
            heard = True
            while not self._stopping.is_set():
                if heard:
                    self._on_change()
                self._wait(connection)
                connection.poll()
                heard = bool(connection.notifies)
                connection.notifies.clear()

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """The driver's own connection, because SQLAlchemy does not support notifications."""
        connection = self._engine.connect()
        try:
            driver: Any = connection.connection.driver_connection
            driver.autocommit = True
            with socket.socket(fileno=os.dup(driver.fileno())) as self._wire:
                yield driver
        finally:
            discard(connection)

    def _wait(self, connection: Any) -> None:
        """Wait for the server or ``stop``. Keepalives detect a dead connection."""
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        poll.poll()

    # -- the log, once for each change -------------------------------------------------------------

    def _tell_deaf(self, state: RetryCallState) -> None:
        reason = state.outcome.exception() if state.outcome is not None else None
        if not self._deaf:
            log.warning(
                "lease notifications unavailable, polling the lease row", reason=str(reason)
            )
        self._deaf = True

    def _tell_hearing(self) -> None:
        if self._deaf:
            log.info("lease notifications available again")
        self._deaf = False
