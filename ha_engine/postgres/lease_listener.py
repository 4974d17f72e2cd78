"""Report each change of the lease row at once, by LISTEN on a separate connection.

Notifications only save time, and no safety rule depends on them. A connection pooler may drop
LISTEN, and a broken connection loses its notifications. So the node does not rely on notifications,
but also polls the lease row.
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
    """Calls the function ``on_change`` from a separate thread when the lease row changes.

    A failure in the listener's thread never stops the node. Several notifications that arrive
    together cause one call of ``on_change``. The listener also calls ``on_change`` after each
    connect, because the new connection has missed earlier notifications. The function
    ``on_change`` should return at once.
    """

    def __init__(
        self, engine: Engine, group: str, on_change: Callable[[], object], *, schema: str = SCHEMA
    ) -> None:
        self._engine, self._on_change = engine, on_change
        self._channel = lease_channel(schema, group)
        self._stopping, self._failing = threading.Event(), False
        self._woken, self._waker = socket.socketpair()
        self._wire: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the listener's thread, without waiting for its connection."""
        self._thread = threading.Thread(target=self._run, name="lease listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the listener's thread and its connection; block for at most two seconds.

        A thread that is still connecting ends after its attempt, without a call of ``on_change``.
        """
        self._stopping.set()
        self._waker.close()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                self._cut()
                self._thread.join(STOP_SECONDS)

    def _cut(self) -> None:
        # Shut the socket down, because no setting of the server or the socket detects a frozen
        # server.
        if (wire := self._wire) is not None:
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        retrying = Retrying(
            stop=stop_when_event_set(self._stopping),
            wait=wait_random(*RECONNECT_SECONDS),
            sleep=sleep_using_event(self._stopping),
            before_sleep=self._log_failure,
        )
        with suppress(RetryError), self._woken:
            retrying(self._listen)

    def _listen(self) -> None:
        """Listen for notifications until ``stop`` is called; raise when the connection breaks."""
        with translated(self._engine), self._connected() as connection:
            with connection.cursor() as cursor:
                cursor.execute(f"LISTEN {self._channel}")
            self._log_recovery()
            notified = True
            while not self._stopping.is_set():
                if notified:
                    self._on_change()
                self._wait(connection)
                connection.poll()
                notified = bool(connection.notifies)
                connection.notifies.clear()

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A connection of the driver, because SQLAlchemy does not support notifications."""
        connection = self._engine.connect()
        try:
            driver: Any = connection.connection.driver_connection
            driver.autocommit = True
            with socket.socket(fileno=os.dup(driver.fileno())) as self._wire:
                yield driver
        finally:
            discard(connection)

    def _wait(self, connection: Any) -> None:
        """Wait until the server sends data or ``stop`` is called.

        TCP keepalives end the wait if the connection is dead.
        """
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        poll.poll()

    # -- the log, once for each change -------------------------------------------------------------

    def _log_failure(self, state: RetryCallState) -> None:
        reason = state.outcome.exception() if state.outcome is not None else None
        if not self._failing:
            log.warning(
                "lease notifications unavailable, polling the lease row", reason=str(reason)
            )
        self._failing = True

    def _log_recovery(self) -> None:
        if self._failing:
            log.info("lease notifications available again")
        self._failing = False
