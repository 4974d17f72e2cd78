"""Report the node's condition to the service manager, if there is one, as in sd_notify(3).

The protocol is one datagram of ``NAME=value`` lines to the socket that NOTIFY_SOCKET names. The
Python packages for the protocol are unmaintained or need libsystemd, which a node does not
otherwise need.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

from ha_engine.types import Role

NOTIFY_INTERVAL_SECONDS = 1.0
_SOCKET, _TIMEOUT, _PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


def take(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Remove the service manager's variables from ``environ``; return those for the node process.

    The service manager addresses the unit's main process, the supervisor. The watchdog must watch
    the event loop of the node process, so the node process itself feeds the watchdog. WATCHDOG_PID
    names the supervisor, so it is not passed on. No other child process may know the socket, since
    it could send reports in the node's name.
    """
    variables = {name: environ.pop(name) for name in (_SOCKET, _TIMEOUT, _PID) if name in environ}
    variables.pop(_PID, None)
    return variables


_READY = (Role.ACTIVE, Role.PASSIVE, Role.BACKUP)


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a node, for the service manager."""

    role: Role
    reason: str
    epoch: int = 0
    protected: bool = False
    has_database: bool = True

    @property
    def lines(self) -> list[str]:
        """The lines to send to the service manager.

        A node is ready when it is active, passive or the backup.

        A joining node is not ready, because an operator may stop the other node once a start is
        complete.
        """
        ready = ["READY=1"] if self.role in _READY else []
        database = "" if self.has_database else "; the database does not answer"
        return [f"STATUS={self._sentence}{database}", *ready]

    @property
    def _sentence(self) -> str:
        if self.role is not Role.ACTIVE:
            # Join the lines of the reason, since the service manager would read each further line
            # as a variable.
            return " ".join(f"{self.role.value}: {self.reason}".split())
        return f"active, epoch {self.epoch}, {'' if self.protected else 'not '}protected"


class ServiceManager:
    """The service manager that listens on the socket in ``environ``, if there is one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        name = environ.get(_SOCKET, "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        # Feed the watchdog at least three times within its timeout.
        third = int(environ.get(_TIMEOUT) or 0) / 3e6
        self._pause = min(NOTIFY_INTERVAL_SECONDS, third or NOTIFY_INTERVAL_SECONDS)

    def send(self, *lines: str) -> bool:
        """Send ``lines`` to the service manager; return whether the call succeeded.

        ``send`` never waits, so that a service manager that does not read cannot block a node.
        """
        if not self._address:
            return False
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto("\n".join(lines).encode(), self._address)
            return True
        return False

    async def attend(self, look: Callable[[], Condition]) -> None:
        """Feed the watchdog from the node process's event loop, and send each changed condition.

        ``attend`` runs for the life of the node process. Each changed condition sends READY=1
        again, which is harmless.
        """
        sent = None
        while self._address:
            condition = look()
            if self.send("WATCHDOG=1", *(condition.lines if condition != sent else ())):
                sent = condition
            await asyncio.sleep(self._pause)

    async def bridge(self, until: asyncio.Event) -> None:
        """Feed the watchdog while a node process starts.

        A node process reads its journal before its event loop runs. A long journal must not trigger
        the watchdog, since a restart would read the same journal.
        """
        while self._address and not until.is_set():
            self.send("WATCHDOG=1", "STATUS=starting: reading the journal")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), self._pause)

    def stopping(self) -> None:
        self.send("STOPPING=1", "STATUS=stopping")
