"""Limits of the kernel for some processes: control groups of version 1."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS = 100_000
EMPTY_SECONDS_MAX = 10.0


@contextlib.contextmanager
def limited_memory(pid: int, limit_bytes: int) -> Iterator[None]:
    """Let the kernel kill the process once it takes so much more memory than it has."""
    with _group("memory", {"memory.limit_in_bytes": limit_bytes}, [pid]):
        yield


@contextlib.contextmanager
def limited_cpu(pids: Iterable[int], share: float) -> Iterator[None]:
    """Give the processes together ``share`` of one core."""
    quota = int(share * PERIOD_MICROSECONDS)
    settings = {"cpu.cfs_period_us": PERIOD_MICROSECONDS, "cpu.cfs_quota_us": quota}
    with _group("cpu", settings, pids):
        yield


@contextlib.contextmanager
def _group(controller: str, settings: dict[str, int], pids: Iterable[int]) -> Iterator[None]:
    """Move the processes into a new group, and back at the end."""
    home = _home(controller)
    group = ROOT / controller / f"ha-engine-matrix-{os.getpid()}"
    group.mkdir()
    try:
        for file, value in settings.items():
            (group / file).write_text(str(value))
        for pid in pids:
            _move(pid, group)
        yield
    finally:
        until = time.monotonic() + EMPTY_SECONDS_MAX
        while living := (group / "cgroup.procs").read_text().split():
            assert time.monotonic() < until, f"{living} stay in {group}"
            for one in living:
                _move(int(one), home)
        group.rmdir()


def _move(pid: int, group: Path) -> None:
    with contextlib.suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))


def _home(controller: str) -> Path:
    """Return this process's own group, in which its nodes start."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return ROOT / controller / path.lstrip("/")
    return ROOT / controller
