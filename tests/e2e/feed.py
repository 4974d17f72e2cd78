"""A feed over a WebSocket, and the client of the guide that sends its messages to a node."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.docs.pages import ROOT, blocks
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.syslog import GUIDE, NODES

FEED = "wss://feed.example/ticks"
PATIENCE = 60


class Feed:
    """A feed that sends each message to the client that is connected, or to the next one."""

    def __init__(self) -> None:
        self._clients: queue.Queue[ServerConnection] = queue.Queue()
        self._client: ServerConnection | None = None

    def serve(self, client: ServerConnection) -> None:
        """Attend a client until its connection ends."""
        self._clients.put(client)
        try:
            client.recv()
        except ConnectionClosed:
            return

    def send(self, message: str) -> None:
        """Send a message as soon as a client is connected."""
        if self._client is None:
            self._client = self._clients.get(timeout=PATIENCE)
        self._client.send(message)

    def drop(self) -> None:
        """Lose the connection of the client."""
        assert self._client is not None
        self._client.socket.shutdown(socket.SHUT_RDWR)
        self._client = None


@contextmanager
def feeding() -> Iterator[tuple[Feed, str]]:
    """Run a feed; yield it with its URL."""
    feed = Feed()
    with serve(feed.serve, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield feed, f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


@contextmanager
def running_client(directory: Path, url: str, node: NodeUnderTest) -> Iterator[None]:
    """Run the client of the guide between a feed and a node."""
    (text,) = [block.text for block in blocks(GUIDE, "python") if block.title == "feed.py"]
    program = directory / "feed.py"
    nodes = ", ".join(f'"{shown}"' for shown in NODES)
    assert FEED in text
    assert nodes in text
    program.write_text(text.replace(FEED, url).replace(nodes, f'"{node.url}"'))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    process = subprocess.Popen([sys.executable, program], env=environ)
    try:
        yield
        assert process.poll() is None, "the client has ended"
    finally:
        process.kill()
        process.wait()
