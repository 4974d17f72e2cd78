"""The network between nodes, as the sync stage uses it: a node listens, and connects to peers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from ha_engine.sync.wire import Wire

Serve = Callable[[Wire], Awaitable[None]]
"""Serves a wire that another node has opened, until the wire is over."""


class Refused(Exception):
    """One of the two nodes of a link refuses the other.

    ``node`` is the name in the other node's Hello. If TLS failed before the Hello, ``node`` is the
    peer's name in the config.
    """

    def __init__(self, node: str, reason: str) -> None:
        self.node, self.reason = node, reason
        super().__init__(reason)


class Transport(Protocol):
    """Opens wires between this node and its peers."""

    async def listen(self, serve: Serve) -> int:
        """Call ``serve`` for each wire that another node opens, and return the port of this node.

        Raises ConfigError, AddressInUse.
        """

    def connect(self, peer: str, seconds: float) -> AbstractAsyncContextManager[Wire]:
        """Connect to ``peer`` within ``seconds``. The wire ends with the context.

        Raises Refused, WireBroken, ConfigError, TimeoutError.
        """

    async def stop(self) -> None:
        """Stop listening, and end the wires that other nodes have opened."""
