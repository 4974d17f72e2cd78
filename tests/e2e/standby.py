"""An asynchronous standby of a PostgreSQL, for an administrator to promote when that is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from sqlalchemy import text

from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from tests.waiting import wait_until


class Standby:
    """Streams from ``primary``. ``url`` leads clients to the one of the two that takes writes, and
    ``own_url`` to the standby."""

    def __init__(self, primary: EmbeddedPostgres, directory: Path) -> None:
        self._primary, self._data = primary, directory / "data"
        self._sockets = directory
        asked = parse_qs(urlsplit(primary.url).query)
        self._port, primary_host = asked["port"][0], asked["host"][0]
        self.url = self._url(f"{primary_host},{directory}", f"{self._port},{self._port}")
        self.url += "&target_session_attrs=read-write"
        self.own_url = self._url(str(directory), self._port)
        self._from = ("-h", primary_host, "-p", self._port, "-U", "postgres")

    def _url(self, host: str, port: str) -> str:
        place = f"host={quote(host, safe='')}&port={quote(port, safe='')}"
        return f"postgresql+psycopg2://postgres@/postgres?{place}"

    def start(self) -> None:
        """Copy the primary and follow it."""
        self._sockets.mkdir()
        owner = (self._primary.directory / "data").stat()
        shutil.chown(self._sockets, owner.st_uid, owner.st_gid)
        self._run("pg_basebackup", *self._from, "-D", str(self._data), "-R", "-c", "fast")
        options = f"-c listen_addresses='' -k '{self._sockets}'"
        self._pg_ctl("-l", str(self._data / "server.log"), "-o", options, "start")

    def lag_behind(self) -> None:
        """Receive no more writes of the primary from now on."""
        self._execute("ALTER SYSTEM SET primary_conninfo = ''")
        self._execute("SELECT pg_reload_conf()")
        wait_until(lambda: not self._ask("SELECT count(*) FROM pg_stat_wal_receiver"))

    def promote(self) -> None:
        """Begin a new timeline; return when the server takes writes."""
        self._pg_ctl("promote")

    def stop(self) -> None:
        self._pg_ctl("-m", "immediate", "stop")

    def _pg_ctl(self, *arguments: str) -> None:
        self._run("pg_ctl", "-w", "-D", str(self._data), *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        done = self._primary.run(program, *arguments)
        assert done.returncode == 0, f"{program} {arguments} ended with {done.returncode}"

    def _execute(self, statement: str) -> None:
        engine = open_engine(self.own_url).execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))

    def _ask(self, question: str) -> object:
        with open_engine(self.own_url).connect() as connection:
            return connection.execute(text(question)).scalar_one()
