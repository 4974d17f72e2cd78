"""Start a plain job, measure the CPU of processes, and hold one side while the other runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil


@contextmanager
def plain_job(module: str, directory: Path, settings: dict[str, Any]) -> Iterator[psutil.Popen]:
    """Run a plain job of Spark with ``settings``, which its ``directory`` keeps beside its log. All
    processes of its session end with it."""
    file = directory / "settings.json"
    file.write_text(json.dumps(settings))
    with (directory / "plain.log").open("ab") as log:
        process = psutil.Popen(
            [sys.executable, "-m", module, str(file)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_session(process.pid)
        process.wait()


def kill_session(leader: int) -> None:
    """Kill every process of the session of ``leader``. Some end while others are killed."""
    for one in session_of(leader):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def session_of(leader: int) -> list[psutil.Process]:
    """Every living process of the session of ``leader``: Spark's workers leave its group."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == leader and lives(process):
                found.append(process)
    return found


def lives(process: psutil.Process) -> bool:
    """Neither gone nor a zombie."""
    with contextlib.suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def cpu_seconds(processes: Sequence[psutil.Process]) -> dict[int, float]:
    """User and system time of each, by pid."""
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = float(times.user + times.system)
    return found


def spent(before: dict[int, float], after: dict[int, float]) -> float:
    """Seconds between two looks; a process that came in between counts from its start."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def part_of(process: psutil.Process) -> str:
    """Which of the node's processes it is."""
    words = " ".join(process.cmdline())
    for sign, part in (
        ("ha_engine.node ", "node process"),
        ("ha_engine.query.main", "Spark driver"),
        ("SparkSubmit", "JVM"),
        ("ha_engine run", "supervisor"),
    ):
        if sign in words:
            return part
    return "Spark's Python workers"


def percent_by_part(processes: Sequence[psutil.Process], seconds: float) -> dict[str, float]:
    """Of a core, by part, over so long; what ended meanwhile does not count."""
    parts = {process.pid: part_of(process) for process in processes}
    before, began = cpu_seconds(processes), time.monotonic()
    time.sleep(seconds)
    after, took = cpu_seconds(processes), time.monotonic() - began
    found: dict[str, float] = defaultdict(float)
    for pid, used in after.items():
        found[parts[pid]] += (used - before[pid]) / took * 100
    return found


@contextmanager
def standing_still(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """They get no CPU inside, so that they do not disturb what is measured there."""
    _signal(processes, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(processes, signal.SIGCONT)


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
