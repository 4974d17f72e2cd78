"""The limit that ``make demo-slow`` and ``make test-slow`` put on a command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

BUSY_SECONDS = 2.0
BUSY = f"""
import sys, time
until = time.monotonic() + {BUSY_SECONDS}
while time.monotonic() < until:
    pass
print(time.process_time())
sys.exit(7)
"""
LEAVES_ONE_BEHIND = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                       start_new_session=True, stdout=subprocess.DEVNULL).pid)
"""


def on_a_slow_host(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.slow_host", *arguments]
    root = Path(__file__).parents[1]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def is_alive(pid: int) -> bool:
    """Return whether the process lives; a zombie, which waits for its parent, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("limit", [[], ["--busy-loops"]], ids=["quota", "loops"])
def test_a_busy_command_gets_about_its_share_and_keeps_its_exit_code(limit: list[str]) -> None:
    done = on_a_slow_host("--share", "0.25", *limit, "--", sys.executable, "-c", BUSY)
    assert done.returncode == 7, done.stderr
    assert done.stderr.startswith("slow host: ")
    share = float(done.stdout) / BUSY_SECONDS
    # Other programs may reduce its share; without a limit it has a whole core of an idle machine.
    assert 0.02 < share < 0.5


def test_control_group_is_removed_with_all_its_processes() -> None:
    done = on_a_slow_host("--", sys.executable, "-c", LEAVES_ONE_BEHIND)
    if group := re.search(r"a quota of (\S+)", done.stderr):
        assert not Path(group[1]).exists()
        assert not is_alive(int(done.stdout))
    else:
        assert "busy loops" in done.stderr
        os.kill(int(done.stdout), signal.SIGKILL)


def test_command_ended_by_a_signal_has_the_exit_code_of_a_shell() -> None:
    done = on_a_slow_host("--", "bash", "-c", "kill -TERM $$")
    assert done.returncode == 128 + 15
