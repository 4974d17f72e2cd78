"""The demo ends with all its processes, at any moment of an interrupt."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ha_engine.demo.processes import kill_all_in, processes_in
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

STEP_SECONDS_MAX = 1000.0
"""The limit of all steps together: that of the test, since the machine may be slow."""


class RunningDemo:
    """``ha-engine demo`` in ``directory``; ``said`` is its output so far."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes], output: Path) -> None:
        self.directory, self._process, self._output = directory, process, output

    @property
    def said(self) -> str:
        return self._output.read_text()

    def await_(self, condition: Callable[[], object]) -> None:
        def reached() -> bool:
            assert self._process.poll() is None, self.said
            return bool(condition())

        wait_until(reached, within=STEP_SECONDS_MAX, every=0.02)

    def interrupted(self, number: signal.Signals) -> int:
        """Interrupt the demo and return its exit code; like a terminal, signal its children too."""
        if number is signal.SIGINT:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)
        return self._process.wait(STEP_SECONDS_MAX)

    def runs(self, program: str) -> bool:
        return any(_name(process) == program for process in processes_in(self.directory))


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[RunningDemo]:
    # Not below pytest's own directory: PostgreSQL's user must reach it when the tests run as root.
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-test-"))
    with running(directory / "demo", tmp_path / "said") as demo:
        yield demo
    shutil.rmtree(directory)


@contextmanager
def running(directory: Path, output: Path) -> Iterator[RunningDemo]:
    command = [sys.executable, "-m", "ha_engine", "demo", "--directory", str(directory)]
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield RunningDemo(directory, process, output)
    finally:
        process.kill()
        process.wait()
        kill_all_in(directory)


LATE = "a node is dead"
POINTS: dict[str, Callable[[RunningDemo], bool]] = {
    "initdb": lambda demo: (demo.directory / "postgres" / "data").exists(),
    "PostgreSQL runs": lambda demo: demo.runs("postgres"),
    "node processes": lambda demo: "\ndatabase" in demo.said,
    "Java": lambda demo: demo.runs("java"),
    LATE: lambda demo: "\nkill -9" in demo.said,
}


@pytest.mark.parametrize(
    "point",
    [
        *(point for point in POINTS if point != LATE),
        pytest.param(LATE, marks=pytest.mark.nightly("those before it end the same processes")),
    ],
)
def test_an_interrupted_demo_leaves_no_process(demo: RunningDemo, point: str) -> None:
    demo.await_(lambda: POINTS[point](demo))
    number = signal.SIGTERM if point == "Java" else signal.SIGINT
    assert demo.interrupted(number) == 128 + number
    assert processes_in(demo.directory) == []
    assert "all of its processes have ended" in demo.said


def test_next_demo_ends_the_processes_of_a_killed_one(demo: RunningDemo, tmp_path: Path) -> None:
    demo.await_(lambda: demo.runs("java"))
    demo.interrupted(signal.SIGKILL)
    left = set(processes_in(demo.directory))
    assert left
    with running(demo.directory, tmp_path / "said again") as again:
        again.await_(lambda: "\ndatabase" in again.said)
        assert not left & set(processes_in(demo.directory))
        assert again.interrupted(signal.SIGINT) == 130


def test_two_demos_in_one_directory_are_refused(demo: RunningDemo, tmp_path: Path) -> None:
    demo.await_(lambda: demo.said)
    with running(demo.directory, tmp_path / "said again") as again:
        wait_until(lambda: "another demo uses" in again.said, within=STEP_SECONDS_MAX)
        assert demo.interrupted(signal.SIGINT) == 130
