"""A real syslog-ng with the configuration of the guide, and senders of syslog."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from logging.handlers import SysLogHandler
from pathlib import Path

from tests.connectors.server import Server, running
from tests.docs.pages import ROOT, blocks

GUIDE = ROOT / "docs" / "SENDING.md"
NODES = ("http://10.0.0.1:8080", "http://10.0.0.2:8080")
"""The URLs of the nodes in the guide."""


def guide() -> str:
    (found,) = [block.text for block in blocks(GUIDE, "text") if "syslog-ng" in block.title]
    return found


class SyslogNg(Server):
    """A syslog-ng that sends to the nodes at ``urls``, over TCP and UDP at ``port``. It keeps its
    disk buffer and its ids over ``kill`` and ``start``."""

    program = "syslog-ng"
    ready_seconds = 30.0

    def __init__(self, directory: Path, urls: Sequence[str]) -> None:
        super().__init__(directory)
        text = re.sub(r"port\(514\)", f'ip("127.0.0.1") port({self.port})', guide())
        for shown, url in zip(NODES, urls, strict=True):
            text = text.replace(shown, url)
        text = text.replace('dir("/var/lib/syslog-ng")', f'dir("{directory}")')
        (directory / "syslog-ng.conf").write_text(f"@version: current\n{text}")

    def arguments(self) -> list[str]:
        files = {"-f": "syslog-ng.conf", "-R": "persist", "-p": "pid", "-c": "ctl"}
        named = [
            word for flag, name in files.items() for word in (flag, str(self.directory / name))
        ]
        return ["--foreground", "--stderr", "--no-caps", *named]

    def answers(self, connection: socket.socket) -> bool:
        return True

    def keeps(self, message: str) -> bool:
        """Return whether the message is in the disk buffer."""
        (file,) = self.directory.glob("*.rqf")
        return message.encode() in file.read_bytes()

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")


def running_syslog_ng(urls: Sequence[str]) -> AbstractContextManager[SyslogNg]:
    return running(lambda directory: SyslogNg(directory, urls))


@contextmanager
def logger(port: int, over: socket.SocketKind) -> Iterator[logging.Logger]:
    """A logger whose messages go to the port as those of the program ``shop``."""
    handler = SysLogHandler(("127.0.0.1", port), socktype=over)
    handler.ident = "shop: "
    found = logging.Logger("shop")
    found.addHandler(handler)
    with closing(handler):
        yield found
