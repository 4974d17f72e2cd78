"""The PostgreSQL of a world on a host of its own, with a memory of each change of lease and ledger.

The nodes reach it over the network. The harness uses its socket file, which no fault of the network
cuts off.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
from sqlalchemy import Connection, text

from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import Ledger, LedgerKey
from ha_engine.postgres.sink_table import prepare_ledger
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.databases import server_on, stopped_server
from tests.faults.kills import MOVED_OR_CLAIMED, audit
from tests.waiting import wait_until

PORT = 5432
START_SECONDS = 60.0
SINK = "CREATE TABLE copies (id int NOT NULL, text text, tx bigint DEFAULT txid_current())"
"""The transaction of a row in the sink leads to its batch in the audit of the ledger."""
LEASE = """
CREATE TABLE lease_audit (
    id bigserial, at timestamptz DEFAULT clock_timestamp(), version bigint, epoch bigint,
    holder_node text, holder_process text, in_sync jsonb
);
CREATE FUNCTION audit_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO lease_audit (version, epoch, holder_node, holder_process, in_sync)
    VALUES (NEW.version, NEW.epoch, NEW.holder_node, NEW.holder_process, NEW.in_sync);
    RETURN NEW;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE ON ha_engine.lease
    FOR EACH ROW EXECUTE FUNCTION audit_lease();
"""
ROLE, PASSWORD = "engine", "secret"
"""A role as the nodes of an installation have, which may be refused."""
LEASES = """
SELECT extract(epoch FROM at), version, epoch, holder_node, holder_process, in_sync
FROM lease_audit WHERE id > :after ORDER BY id
"""


class Database:
    """A server below ``directory``, which its user must be able to reach. ``launcher`` is a command
    that runs it on its host, where ``address`` has ``port`` for it."""

    def __init__(
        self, directory: Path, launcher: Sequence[str], address: str, port: int = PORT
    ) -> None:
        self._sockets, self._launcher = directory, launcher
        self.address, self.port = address, port
        self._data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.log_path = directory / "server.log"
        self.url = _url(address, str(port))
        self.own_url = _url(str(directory), str(port))

    def create(self) -> None:
        """Create the server, with tables for the lease and for the sink, and start it."""
        stopped_server(self._sockets)
        self._own(self._sockets)
        with (self._data / "pg_hba.conf").open("a") as file:
            file.write("host all all 0.0.0.0/0 trust\n")
        self.start()
        engine = open_engine(self.own_url)
        upgrade(engine)
        with engine.begin() as connection:
            connection.execute(text(SINK))
            connection.execute(text(LEASE))
            ledger = Ledger(LedgerKey("", "", ""), None)
            prepare_ledger(connection, ledger.table, create_schema=False)
        audit(self.own_url, when=MOVED_OR_CLAIMED)
        self.execute("CREATE INDEX ON ledger_audit (tx)")

    def create_role(self) -> str:
        """Create a role that needs its password; return the nodes' URL with it."""
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"host all {ROLE} 0.0.0.0/0 scram-sha-256\n" + rules.read_text())
        self.execute("SELECT pg_reload_conf()")
        self.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
        for kind in ("TABLES", "SEQUENCES", "FUNCTIONS"):
            self.execute(f"GRANT ALL ON ALL {kind} IN SCHEMA ha_engine, public TO {ROLE}")
        self.execute(f"GRANT ALL ON SCHEMA ha_engine, public TO {ROLE}")
        return self.url.replace("postgres@", f"{ROLE}:{PASSWORD}@")

    def end_sessions(self, role: str) -> None:
        """End all sessions of ``role``, as an administrator does."""
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = :role"
        self.rows(query, role=role)

    def set(self, setting: str, value: str) -> None:
        """Change a setting of the running server."""
        self.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
        self.execute("SELECT pg_reload_conf()")

    def standby(self, directory: Path) -> Database:
        """Start a server on the next port of the same host, which follows this one."""
        directory.mkdir()
        self._own(directory)
        standby = Database(directory, self._launcher, self.address, self.port + 1)
        source = ("-h", str(self._sockets), "-p", str(self.port), "-U", "postgres")
        self._run("pg_basebackup", *source, "-D", str(standby._data), "-R", "-c", "fast")
        standby.start()
        return standby

    def url_at(self, host: str, port: int) -> str:
        """Return its URL for clients that reach it there."""
        return _url(host, str(port))

    def url_with(self, standby: Database) -> str:
        """Return a URL that leads to the one of the two that takes writes."""
        hosts, ports = (f"{self.address},{standby.address}", f"{self.port},{standby.port}")
        return f"{_url(hosts, ports)}&target_session_attrs=read-write"

    def lag_behind(self) -> None:
        """Let this standby receive no more writes."""
        self.set("primary_conninfo", "")
        wait_until(lambda: not self.rows("SELECT 1 FROM pg_stat_wal_receiver"))

    def promote(self) -> int:
        """Let this standby take writes; return the last id that its audit of the lease has."""
        last = self.rows("SELECT coalesce(max(id), 0) FROM lease_audit")[0][0]
        self._run("pg_ctl", "-w", "-D", str(self._data), "promote")
        return int(last)

    def _own(self, directory: Path) -> None:
        """Give the directory to the user of the server."""
        owner = self._data.stat()
        shutil.chown(directory, owner.st_uid, owner.st_gid)

    def _run(self, program: str, *arguments: str) -> None:
        done = EmbeddedPostgres(self._sockets).run(program, *arguments)
        assert done.returncode == 0, f"{program} {arguments} ended with {done.returncode}"

    def start(self) -> None:
        command = server_on(self.address, self._data, self._sockets, self.port)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._launcher, *command], stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._answers, within=START_SECONDS, every=0.05)

    def require(self) -> None:
        """Start the server unless it runs, and thaw it."""
        assert self._process is not None
        if self._process.poll() is not None:
            self.start()
        self.thaw()

    def stop(self) -> None:
        """End the server as an administrator does who does not wait for its clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the postmaster; its children end when they notice."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            return
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.send_signal(number)
        self._process.wait()
        # A new postmaster refuses to start beside them.
        psutil.wait_procs(children, timeout=START_SECONDS)

    def kill_backend(self, client: str) -> None:
        """Kill a process that serves the host with the address ``client``."""
        query = "SELECT pid FROM pg_stat_activity WHERE client_addr = CAST(:client AS inet)"
        for (pid,) in self.rows(query, client=client)[:1]:
            psutil.Process(pid).kill()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            postmaster = psutil.Process(self._process.pid)
            for process in (postmaster, *postmaster.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    @contextlib.contextmanager
    def lease_row_locked(self) -> Iterator[None]:
        """Hold the lock of the lease row, as a forgotten session of an administrator does."""
        with open_engine(self.own_url).connect() as connection, connection.begin():
            connection.execute(text("SELECT 1 FROM ha_engine.lease FOR UPDATE"))
            yield

    def leases(self, after: int = 0) -> list[Any]:
        """Return the versions of the lease row that the audit noted after the id ``after``."""
        return self.rows(LEASES, after=after)

    def execute(self, statement: str) -> None:
        with self._connection() as connection:
            connection.execute(text(statement))

    def rows(self, query: str, **values: Any) -> list[Any]:
        with self._connection() as connection:
            return list(connection.execute(text(query), values).all())

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        engine = open_engine(self.own_url).execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            yield connection

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the database ended; see {self.log_path}"
        try:
            return bool(self.rows("SELECT 1"))
        except Exception:
            return False


def _url(hosts: str, ports: str) -> str:
    place = f"host={quote(hosts, safe='')}&port={quote(ports, safe='')}"
    return f"postgresql+psycopg2://postgres@/postgres?{place}"
