"""Find every process that a demo in a directory started, directly or not.

Every process that a node starts inherits an environment variable that names the directory.
PostgreSQL's processes overwrite their environment, so their working directory identifies them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import psutil
from tenacity import retry, retry_if_result, wait_fixed

VARIABLE = "FLIGHTS_DEMO_PLACE"


def marked_environment(directory: Path) -> dict[str, str]:
    return {**os.environ, VARIABLE: str(directory)}


def processes_in(directory: Path) -> list[psutil.Process]:
    """The running processes of the demo that belong to ``directory`` or to a directory below it."""
    return [one for one in psutil.process_iter() if _works_in(one, directory)]


def _works_in(process: psutil.Process, directory: Path) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        place = process.cwd() if process.name() == "postgres" else process.environ().get(VARIABLE)
    except (psutil.Error, OSError):
        return False
    return place is not None and Path(place).is_relative_to(directory)


@retry(retry=retry_if_result(bool), wait=wait_fixed(0.05))
def kill_all_in(directory: Path) -> bool:
    """Kill all processes of ``directory``.

    Repeat the search until it finds no process, because a process may start another one before it
    is killed.
    """
    found = processes_in(directory)
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return bool(found)


def cpu_of(directory: Path) -> Mapping[tuple[int, float], float]:
    """The seconds of CPU that each process of ``directory`` has used, by its (pid, start)."""
    usage = {}
    for process in processes_in(directory):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            usage[process.pid, process.create_time()] = times.user + times.system
    return usage
