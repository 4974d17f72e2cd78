"""A real S3 server for tests: that of moto, in a process of its own, with its data in memory.

The data of this server end with its process. So a gateway before it stands for a server that keeps
its data: when the gateway ends, all connections break, at any byte of a request or an answer.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.connectors.proxy import Proxy
from tests.connectors.server import Server, free_port, running

BUCKET = "events"


class S3Broker(Server):
    """A server without a bucket. ``settings`` are arguments of its program."""

    program = "moto"

    def __init__(self, directory: Path, *settings: str) -> None:
        super().__init__(directory)
        self._settings = settings

    def command(self) -> list[str]:
        found = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        return [*found, *self._settings]

    def answers(self, connection: socket.socket) -> bool:
        connection.sendall(b"GET /moto-api/ HTTP/1.0\r\nHost: localhost\r\n\r\n")
        return connection.recv(5) == b"HTTP/"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def create_bucket(self, name: str = BUCKET) -> None:
        request = urllib.request.Request(f"{self.url}/{name}", data=b"", method="PUT")
        urllib.request.urlopen(request, timeout=60).close()

    def folder(self, name: str, bucket: str = BUCKET) -> Any:
        """A client of the objects in a folder of the bucket."""
        from obstore.store import S3Store

        return S3Store(
            bucket,
            prefix=name,
            endpoint=self.url,
            region="us-east-1",
            access_key_id="writer",
            secret_access_key="secret",
            client_options={"allow_http": True},
        )


@contextlib.contextmanager
def running_broker() -> Iterator[S3Broker]:
    """Run a server with an empty bucket."""
    with running(S3Broker) as broker:
        broker.create_bucket()
        yield broker


class EncryptedBroker(S3Broker):
    """A server that is reached by TLS. Its certificate is in ``certificate``."""

    def __init__(self, directory: Path) -> None:
        self.certificate, key = directory / "certificate.pem", directory / "key.pem"
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        made += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
        made += ["-addext", "subjectAltName=IP:127.0.0.1"]
        made += ["-addext", "basicConstraints=critical,CA:FALSE"]
        made += ["-out", str(self.certificate), "-keyout", str(key)]
        subprocess.run(made, check=True, capture_output=True)
        super().__init__(directory, "-s", "-c", str(self.certificate), "-k", str(key))

    def answers(self, connection: socket.socket) -> bool:
        context = ssl.create_default_context(cafile=str(self.certificate))
        with context.wrap_socket(connection, server_hostname="127.0.0.1") as encrypted:
            return encrypted.version() is not None


def new_folder() -> str:
    return f"f{random.randrange(1 << 40)}/orders"


class Gateway(Proxy):
    """A server of S3 that keeps its data when it is killed."""

    def __init__(self, target: int) -> None:
        super().__init__(target, listen=free_port())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def gateway(broker: S3Broker) -> Iterator[Gateway]:
    found = Gateway(broker.port)
    try:
        yield found
    finally:
        found.close()
