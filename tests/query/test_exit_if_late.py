"""A command that Spark never ends does not block the query process for ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ha_engine.query.process import FAILED_EXIT_CODE

WAIT = """
import sys, threading
from ha_engine.query.process import exit_if_late
with exit_if_late(float(sys.argv[1]), lambda: print("late", flush=True)):
    threading.Event().wait(float(sys.argv[2]))
print("done", flush=True)
"""
HANG_SECONDS = 60


@pytest.mark.parametrize(
    ("limit", "wait", "expected"),
    [("0.1", "3600", ("late\n", FAILED_EXIT_CODE)), ("3600", "0", ("done\n", 0))],
)
def test_process_exits_only_if_the_wait_is_too_long(
    limit: str, wait: str, expected: tuple[str, int]
) -> None:
    command = [sys.executable, "-c", WAIT, limit, wait]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (ended.stdout, ended.returncode) == expected
