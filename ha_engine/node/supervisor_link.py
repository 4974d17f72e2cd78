"""The node process's end of a socket pair with its supervisor: one JSON object on each line.

The node process sends ``settings``, ``database``, ``log``, ``served``, ``start`` and ``stop``.
The supervisor sends ``alive``, and later ``step`` and ``gone`` about the query process.

The supervisor answers ``settings`` with ``alive``, which names the query process that runs. All
later messages arrive in order, so the node process misses no change of the query process. A
restarted node process gets a new socket pair.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import structlog

from ha_engine.core import inputs as on
from ha_engine.errors import SupervisorGone

log = structlog.get_logger(__name__)


Stepped: TypeAlias = Callable[[str, str, float], None]
"""Takes the incarnation of a query process, its step, and the seconds since that step began."""


class Steps(Protocol):
    """The method of the driver that the supervisor link calls."""

    def handle(self, event: on.Input) -> None: ...


class NoSupervisor:
    """The link of a node process that an operator started by hand, without a supervisor."""

    living: str | None = None

    def await_living(self) -> None:
        pass

    def start_process(self, incarnation: str) -> None:
        log.warning(
            "query process not started, since there is no supervisor", incarnation=incarnation
        )

    def stop_process(self, incarnation: str, reason: str) -> None:
        pass

    def send(self, name: str, body: Any) -> None:
        pass

    async def attend(self, steps: Steps, stepped: Stepped) -> None:
        await asyncio.Event().wait()


class SupervisorLink:
    """The link to the supervisor over a socket pair. ``living`` is the query process that already
    runs when the node process starts."""

    def __init__(self, link: socket.socket) -> None:
        self._socket = link
        self.living: str | None = None
        self._writer: asyncio.StreamWriter | None = None

    def start_process(self, incarnation: str) -> None:
        log.info("query process requested", incarnation=incarnation)
        self.send("start", {"incarnation": incarnation})

    def stop_process(self, incarnation: str, reason: str) -> None:
        self.send("stop", {"incarnation": incarnation, "reason": reason})

    def send(self, name: str, body: Any) -> None:
        line = json.dumps({name: body}).encode() + b"\n"
        if self._writer is None:
            self._socket.sendall(line)
        else:
            self._writer.write(line)

    def await_living(self) -> None:
        """Block until the supervisor is sure that no query process except ``living`` runs
        (RULES.md#r20). Raises SupervisorGone."""
        line = b""
        while not line.endswith(b"\n"):
            # Read one byte at a time, because the bytes after the first line are for ``attend``.
            byte = self._socket.recv(1)
            if not byte:
                raise SupervisorGone("the supervisor ended while this process started")
            line += byte
        self.living = json.loads(line)["alive"]["incarnation"] or None

    async def attend(self, steps: Steps, stepped: Stepped) -> None:
        """Handle the supervisor's messages for the life of the node process. Raises
        SupervisorGone."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        while line := await reader.readline():
            match json.loads(line):
                case {"step": {"incarnation": incarnation, "step": step, "seconds": seconds}}:
                    stepped(incarnation, step, seconds)
                case {"gone": {"incarnation": incarnation, "reason": reason, "by_host": by_host}}:
                    steps.handle(on.QueryProcessGone(incarnation, reason, by_host))
        raise SupervisorGone("the supervisor ended")
