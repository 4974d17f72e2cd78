"""A session is one connection to a database, with a local deadline for each call.

No setting of the server or the socket detects a frozen server, or a network that drops packets. So
a separate thread runs every call of a session. When a caller's deadline passes, the session shuts
down the socket of the driver. The shutdown ends the call at once, and the outcome of the call is
unknown.

A session is not a connection pool. A transaction never outlives its call, so a session does not
support long transactions.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from ha_engine.errors import DatabaseUnreachable
from ha_engine.postgres.engine import (
    Translation,
    database_error,
    place,
    require_synchronous_commit,
    translated,
)

T = TypeVar("T")

_SLICE_SECONDS = 0.1


class Session:
    """Runs calls on one connection, one call after the other.

    After a failed call, the next call opens a new connection. ``on_connect`` runs first on each new
    connection, as a part of the call. If ``on_connect`` raises, the call fails with that error.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        name: str,
        autocommit: bool = False,
        translation: Translation = database_error,
        on_connect: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        self.engine, self._on_connect = engine, on_connect
        self._translation = translation
        self._options = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._wire: socket.socket | None = None

    def call(self, work: Callable[[Connection], T], remaining: Callable[[], float]) -> T:
        """Run the function ``work`` on the connection, until ``remaining()`` is no longer positive.

        The function ``remaining`` returns seconds, and may return more than in an earlier call.
        Raises DatabaseUnreachable when the deadline passes, and the outcome on the server is
        unknown. The session translates the driver's errors. Errors that ``work`` itself raises are
        raised unchanged.
        """
        if not self._turn.acquire(timeout=max(0.0, remaining())):
            raise self._too_late("was busy with another call of this process")
        try:
            future = self._worker.submit(self._run, work, remaining)
            try:
                return self._wait(future, remaining)
            except BaseException:
                self._drop_connection(future)
                raise
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close the session's connection; a later call opens another connection."""
        with self._lock:
            connection, self._connection = self._connection, None
            wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        if connection is not None:
            discard(connection)

    def shut(self) -> None:
        """Close the connection and end the session's thread; no later call is allowed."""
        self._cut()
        self._worker.shutdown(wait=False, cancel_futures=True)
        self.close()

    # -- the caller's side ---------------------------------------------------------------------

    def _wait(self, future: Future[T], remaining: Callable[[], float]) -> T:
        while (left := remaining()) > 0:
            try:
                return future.result(timeout=min(left, _SLICE_SECONDS))
            except FutureTimeout:
                if future.done():
                    return future.result()
        raise self._too_late("did not answer in time, so the outcome of the call is unknown")

    def _too_late(self, what: str) -> DatabaseUnreachable:
        return DatabaseUnreachable(
            f"the database {place(self.engine)} {what}; check that it is not stuck or overloaded"
        )

    def _drop_connection(self, future: Future[Any]) -> None:
        if future.cancel():
            return  # it waited behind an abandoned call, and never runs now
        if future.done():
            self.close()
        else:
            self._cut()

    def _cut(self) -> None:
        with self._lock:
            if self._wire is not None:
                try:
                    self._wire.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it was gone already

    # -- the thread's side ---------------------------------------------------------------------

    def _run(self, work: Callable[[Connection], T], remaining: Callable[[], float]) -> T:
        try:
            with translated(self.engine, self._translation):
                connection = self._connected()
                if remaining() <= 0:
                    raise self._too_late("took too long to connect to")
                return work(connection)
        except BaseException:
            self.close()
            raise

    def _connected(self) -> Connection:
        if self._connection is not None and _is_closed(self._connection):
            self.close()
        if self._connection is None:
            connection = self.engine.connect().execution_options(**self._options)
            # From now on, the deadline of the caller ends a statement on this connection.
            with self._lock:
                self._connection = connection
                self._wire = socket.socket(fileno=os.dup(_driver(connection).fileno()))
            require_synchronous_commit(connection, place(self.engine))
            self._on_connect(connection)
        return self._connection


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _is_closed(connection: Connection) -> bool:
    """Whether the server has closed the idle connection.

    The session checks the connection before it sends a statement. If the connection breaks later,
    the outcome of a write is unknown.
    """
    if connection.closed or connection.invalidated or _driver(connection).closed:
        return True
    poll = select.poll()
    poll.register(_driver(connection).fileno(), select.POLLIN | select.POLLRDHUP)
    return bool(poll.poll(0))


def discard(connection: Connection) -> None:
    """Close a connection without a message to the server, because the server may be down."""
    try:
        connection.invalidate()
        connection.close()
    except Exception:  # noqa: S110
        pass  # it was broken; it only matters that nobody uses it again
