"""How the tests wait: who gets on is waited for, who does not is given up."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import wait_ended, wait_until

WITHIN = 0.5
WORKS = f"import time\nwhile time.process_time() < {6 * WITHIN}: pass"


def test_a_process_that_works_is_waited_for_beyond_the_limit() -> None:
    with subprocess.Popen([sys.executable, "-c", WORKS]) as process:
        assert wait_ended(process, within=WITHIN) == 0


def test_a_process_that_does_nothing_is_given_up() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(AssertionError, match="without progress"):
            wait_ended(process, within=WITHIN)
        process.kill()


def test_asking_again_and_again_is_no_progress() -> None:
    def asks() -> bool:
        return sum(range(10_000)) < 0

    with pytest.raises(AssertionError, match="without progress"):
        wait_until(asks, within=WITHIN)
