"""The embedded server: its start, its stop, and the survival of its data."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text

from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from tests.waiting import wait_until

pytestmark = pytest.mark.rotates("files")

_SECOND_USER = """
import sys
from pathlib import Path
from ha_engine.postgres.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
sys.stdin.read()
server.stop()
"""


def _answers(server: EmbeddedPostgres) -> bool:
    with open_engine(server.url).connect() as connection:
        return bool(connection.execute(text("SELECT 1")).scalar() == 1)


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def _directory(server: EmbeddedPostgres) -> Path:
    return server.directory


def test_second_process_attaches_and_the_last_one_stops_the_server(
    own_postgres: EmbeddedPostgres,
) -> None:
    command = [sys.executable, "-c", _SECOND_USER, str(_directory(own_postgres))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as second:
        assert second.stdin is not None
        assert second.stdout is not None
        pid = own_postgres.pid
        assert int(second.stdout.readline()) == pid
        own_postgres.stop()
        assert _lives(pid), "the second user still needs it"
        second.stdin.close()
        second.wait(30)
    wait_until(lambda: not _lives(pid))


def test_killed_process_does_not_keep_the_server_alive(
    own_postgres: EmbeddedPostgres,
) -> None:
    command = [sys.executable, "-c", _SECOND_USER, str(_directory(own_postgres))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as second:
        assert second.stdout is not None
        second.stdout.readline()
        second.kill()
    pid = own_postgres.pid
    assert _answers(own_postgres), "the server outlives whoever was killed"
    own_postgres.stop()
    wait_until(lambda: not _lives(pid))


def test_stop_leaves_no_process_and_the_next_start_keeps_the_tables(
    own_postgres: EmbeddedPostgres,
) -> None:
    with open_engine(own_postgres.url).begin() as connection:
        connection.execute(text("CREATE TABLE kept AS SELECT 7 AS n"))
    family = [
        own_postgres.pid,
        *(child.pid for child in psutil.Process(own_postgres.pid).children()),
    ]
    own_postgres.stop()
    assert not any(_lives(pid) for pid in family)
    own_postgres.start()
    with open_engine(own_postgres.url).connect() as connection:
        assert connection.execute(text("SELECT n FROM kept")).scalar() == 7


def test_a_killed_server_is_reachable_after_the_next_start(own_postgres: EmbeddedPostgres) -> None:
    with open_engine(own_postgres.url).begin() as connection:
        connection.execute(text("CREATE TABLE kept AS SELECT 7 AS n"))
    pid = own_postgres.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not _lives(pid))
    own_postgres.start()
    assert own_postgres.pid != pid
    with open_engine(own_postgres.url).connect() as connection:
        assert connection.execute(text("SELECT n FROM kept")).scalar() == 7


def test_simultaneous_starts_share_one_server(own_postgres: EmbeddedPostgres) -> None:
    own_postgres.stop()
    servers = [EmbeddedPostgres(_directory(own_postgres)) for _ in range(4)]
    threads = [threading.Thread(target=server.start) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({server.pid for server in servers}) == 1
    pid = servers[0].pid
    for server in servers:
        server.stop()
    assert not _lives(pid)


def test_a_long_path_moves_only_the_socket(own_postgres: EmbeddedPostgres) -> None:
    directory = _directory(own_postgres) / ("deep" * 20) / ("deeper" * 10)
    with EmbeddedPostgres(directory) as server:
        assert _answers(server)
