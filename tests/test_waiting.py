"""Waits of the tests continue while a process makes progress, and fail without progress."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutation import ROOT
from tests.waiting import wait_ended

WITHIN = 2.0
"""The kernel counts CPU in ticks of 10 ms. A throttled process may get none in half a second."""
WORKS = f"import time\nwhile time.process_time() < {1.5 * WITHIN}: pass"


def test_wait_continues_beyond_the_limit_for_a_working_process() -> None:
    with subprocess.Popen([sys.executable, "-c", WORKS]) as process:
        assert wait_ended(process, within=WITHIN) == 0


ORPHAN = f"""
import psutil, subprocess, sys
from tests.waiting import mark_descendants, wait_until
mark_descendants()
shell = ["sh", "-c", '"$0" -c "$1" > /dev/null & echo $!', sys.executable, {WORKS!r}]
pid = int(subprocess.run(shell, stdout=subprocess.PIPE, check=True).stdout)
orphan = psutil.Process(pid)
assert orphan.ppid() != psutil.Process().pid

def ended():
    return not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE

wait_until(ended, within={WITHIN})
"""


def test_wait_continues_beyond_the_limit_for_a_working_orphan() -> None:
    done = _python(ORPHAN)
    assert done.returncode == 0, done.stderr


IDLE = f"""
import subprocess, sys
from tests.waiting import wait_ended
with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
    try:
        wait_ended(process, within={WITHIN})
    finally:
        process.kill()
"""
ASKS = f"""
from tests.waiting import wait_until
wait_until(lambda: sum(range(10_000)) < 0, within={WITHIN})
"""


@pytest.mark.parametrize("code", [IDLE, ASKS], ids=["a process idles", "only the waiter works"])
def test_wait_without_progress_fails(code: str) -> None:
    """The wait runs in a separate process: an idle JVM of other tests would count as progress
    here."""
    done = _python(code)
    assert done.returncode == 1
    assert "without progress" in done.stderr


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
