"""A process ends with its parent, even with one that died before the first check."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ha_engine.query.parent_watchdog import ORPHANED_EXIT_CODE, ProcessId


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def query_process(*arguments: str) -> subprocess.Popen[bytes]:
    nowhere = ["--socket", "/n", "--incarnation", "i", "--application", "/n", "--config-json", "{"]
    command = [sys.executable, "-m", "ha_engine.query.main", *nowhere, *arguments]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def test_process_is_distinguished_from_a_later_one_with_its_pid(
    sleeper: subprocess.Popen[bytes],
) -> None:
    one = ProcessId.of(sleeper.pid)
    assert ProcessId.parse(str(one)) == one
    assert one.is_alive()
    assert not replace(one, started=one.started + 1).is_alive()


def test_a_dead_process_counts_as_gone_before_it_is_reaped(
    sleeper: subprocess.Popen[bytes],
) -> None:
    one = ProcessId.of(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not one.is_alive()


def test_query_process_ends_when_its_parent_died_before_the_first_check(
    sleeper: subprocess.Popen[bytes],
) -> None:
    dead = ProcessId.of(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert query_process("--parent", str(dead)).wait(30) == ORPHANED_EXIT_CODE


def test_query_process_with_a_living_parent_continues_to_its_settings() -> None:
    assert query_process("--parent", str(ProcessId.of_this())).wait(30) not in (
        0,
        ORPHANED_EXIT_CODE,
    )
