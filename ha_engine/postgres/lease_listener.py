"""Hears at once when the lease row says something new: LISTEN on a connection of its own.

An accelerator only. Poolers swallow LISTEN, and a notification may be lost with its connection, so
whoever listens also reads the row from time to time, and no safety depends on this.
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
    """Calls ``on_change`` from a thread of its own; whatever fails there, the node goes on.

    It is called after each notification, for those that came together once, and after each
    connect, because what changed before was not heard. It should return at once.
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
        """Begin to listen; does not wait for the connection."""
        self._thread = threading.Thread(target=self._run, name="lease listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and its connection; blocks for at most two seconds.

        A thread that is just connecting ends by itself, and no longer calls ``on_change``.
        """
        self._stopping.set()
        self._waker.close()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                self._cut()
                self._thread.join(STOP_SECONDS)

    def _cut(self) -> None:
        # A frozen server is found by no setting of the server or the socket.
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
        """Until it is told to stop; raises when the connection breaks."""
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
        """The driver's own connection: SQLAlchemy knows nothing of notifications."""
        connection = self._engine.connect()
        try:
            driver: Any = connection.connection.driver_connection
            driver.autocommit = True
            with socket.socket(fileno=os.dup(driver.fileno())) as self._wire:
                yield driver
        finally:
            discard(connection)

    def _wait(self, connection: Any) -> None:
        """Until the server or ``stop`` says something; a dead link is found by keepalives."""
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        poll.poll()

    # -- the log, once for each change -------------------------------------------------------------

    def _tell_deaf(self, state: RetryCallState) -> None:
        reason = state.outcome.exception() if state.outcome is not None else None
        if not self._deaf:
            log.warning("changes of the lease are polled, not heard", reason=str(reason))
        self._deaf = True

    def _tell_hearing(self) -> None:
        if self._deaf:
            log.info("changes of the lease are heard again")
        self._deaf = False
