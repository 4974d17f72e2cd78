"""The doctor's checks of addresses, with real sockets and a real lock of a node."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ha_engine.doctor.finding import State
from ha_engine.doctor.ports import listening
from ha_engine.system.file_lock import NODE_LOCK, holder_of, lock_directory

STRANGER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def stranger() -> Iterator[tuple[int, int]]:
    """Return the pid and the port of a process that listens."""
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.stdin.close()


def test_a_free_address_passes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    finding = listening("http.listen", f"127.0.0.1:{port}", tmp_path)
    assert (finding.state, finding.text) == (State.OK, f"127.0.0.1:{port} is free")


def test_an_address_of_another_process_fails_and_names_the_process(
    stranger: tuple[int, int], tmp_path: Path
) -> None:
    pid, port = stranger
    finding = listening("http.listen", f"127.0.0.1:{port}", tmp_path)
    assert finding.state is State.FAILED
    assert finding.text.startswith(f"127.0.0.1:{port} is in use by process {pid} (python")
    assert "choose another port for http.listen" in finding.remedy


def test_an_address_that_a_node_does_without_is_a_warning(
    stranger: tuple[int, int], tmp_path: Path
) -> None:
    address = f"127.0.0.1:{stranger[1]}"
    finding = listening("ingest.listen", address, tmp_path, required=False)
    assert (finding.state, "so the node will not listen" in finding.text) == (State.WARNING, True)


def test_an_address_of_this_very_node_passes(tmp_path: Path) -> None:
    lock = lock_directory(tmp_path, NODE_LOCK)
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            finding = listening("http.listen", address, tmp_path)
        assert finding.state is State.OK
        assert finding.text == f"this host's node (process {os.getpid()}) listens on {address}"
    finally:
        os.close(lock)


def test_an_address_of_another_process_fails_beside_a_running_node(
    stranger: tuple[int, int], tmp_path: Path
) -> None:
    lock = lock_directory(tmp_path, NODE_LOCK)
    try:
        finding = listening("http.listen", f"127.0.0.1:{stranger[1]}", tmp_path)
        assert finding.state is State.FAILED
    finally:
        os.close(lock)


def test_an_address_of_another_host_fails(tmp_path: Path) -> None:
    finding = listening("event_sync.listen", "192.0.2.1:9893", tmp_path)
    assert finding.state is State.FAILED
    assert finding.remedy == "set event_sync.listen to an address of this host"


def test_the_holder_of_a_lock_is_found_without_taking_the_lock(tmp_path: Path) -> None:
    assert holder_of(tmp_path / NODE_LOCK) is None
    lock = lock_directory(tmp_path, NODE_LOCK)
    assert holder_of(tmp_path / NODE_LOCK) == os.getpid()
    os.close(lock)
    assert holder_of(tmp_path / NODE_LOCK) is None
