"""Tells the service manager how the node is, as sd_notify(3) says it; silent where none asks.

The protocol is one datagram of ``NAME=value`` lines to the socket that NOTIFY_SOCKET names. The
packages for it are unmaintained or bind libsystemd, which a node does not otherwise need.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

from ha_engine.types import Role

TELL_EVERY_SECONDS = 1.0
_SOCKET, _TIMEOUT, _PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


def take(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Removes what the service manager said; answers what of it the node process is to know.

    It speaks to the unit's main process, the supervisor; but the loop that must turn is the node
    process's, so that one feeds the watchdog, and WATCHDOG_PID, which names the other, is dropped.
    No other child may know the socket: it could speak for the node.
    """
    said = {name: environ.pop(name) for name in (_SOCKET, _TIMEOUT, _PID) if name in environ}
    said.pop(_PID, None)
    return said


@dataclass(frozen=True, slots=True)
class Condition:
    """What is told of a node."""

    role: Role
    why: str
    epoch: int = 0
    protected: bool = False
    has_database: bool = True

    @property
    def lines(self) -> list[str]:
        """Ready is who acts or stands by to: a start that returns says that the other node may be
        stopped. So who joins is not ready, however long it waits for its peer."""
        ready = ["READY=1"] if self.role in (Role.ACTIVE, Role.PASSIVE) else []
        database = "" if self.has_database else "; the database does not answer"
        return [f"STATUS={self._sentence}{database}", *ready]

    @property
    def _sentence(self) -> str:
        if self.role is not Role.ACTIVE:
            # A reason of many lines must not end this one: what follows it would be believed.
            return " ".join(f"{self.role.value}: {self.why}".split())
        return f"active, epoch {self.epoch}, {'' if self.protected else 'not '}protected"


class ServiceManager:
    """Whoever started the node and listens on the socket that ``environ`` names; maybe nobody."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        name = environ.get(_SOCKET, "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        # Three chances within the timeout.
        third = int(environ.get(_TIMEOUT) or 0) / 3e6
        self._pause = min(TELL_EVERY_SECONDS, third or TELL_EVERY_SECONDS)

    def tell(self, *lines: str) -> bool:
        """Whether it was taken. Never waits: a manager that does not read must not hold a node."""
        if not self._address:
            return False
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto("\n".join(lines).encode(), self._address)
            return True
        return False

    async def attend(self, look: Callable[[], Condition]) -> None:
        """For the life of the node process: feeds the watchdog from its event loop, and tells what
        ``look`` finds changed. READY is told again with every change, which does no harm."""
        told = None
        while self._address:
            seen = look()
            if self.tell("WATCHDOG=1", *(seen.lines if seen != told else ())):
                told = seen
            await asyncio.sleep(self._pause)

    async def bridge(self, until: asyncio.Event) -> None:
        """Feeds the watchdog while a node process starts: a long journal is read before its loop
        turns, and to start again would not make it shorter."""
        while self._address and not until.is_set():
            self.tell("WATCHDOG=1", "STATUS=starting: the journal is read")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), self._pause)

    def stopping(self) -> None:
        self.tell("STOPPING=1", "STATUS=stopping")
