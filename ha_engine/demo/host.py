"""Measure the free resources of this machine, on which the duration of the demo depends."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

CORES_MIN = 2.0
MEMORY_MIN = 4 << 30
CONTROL_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class FreeResources:
    """The free cores and the free memory in bytes."""

    cores: float
    memory: int

    @property
    def warning(self) -> str | None:
        """A sentence for the user if the demo will take longer than usual, else None."""
        lacks = []
        if self.cores < CORES_MIN:
            lacks.append(f"{self.cores:.1f} of {CORES_MIN:.0f} cores")
        if self.memory < MEMORY_MIN:
            lacks.append(f"{self.memory / 2**30:.1f} of {MEMORY_MIN >> 30} GB of memory")
        if not lacks:
            return None
        return f"only {' and '.join(lacks)} are free on this host, so the demo takes longer"


def free_resources() -> FreeResources:
    groups = Path("/proc/self/cgroup").read_text(encoding="ascii")
    # Round the load, since an idle machine has a load of about 0.4 and all of its cores free.
    idle = (os.cpu_count() or 1) - round(os.getloadavg()[0])
    usable = len(os.sched_getaffinity(0))
    cores = min(usable, max(idle, 0), cpu_quota(groups, CONTROL_GROUPS))
    memory = min(psutil.virtual_memory().available, memory_left(groups, CONTROL_GROUPS))
    return FreeResources(cores, int(memory))


def cpu_quota(groups: str, root: Path) -> float:
    """The lowest limit of cores in this process's control groups; infinite without a limit.

    ``groups`` is the text of /proc/self/cgroup. ``root`` is the mount point of the control groups.
    """
    quotas = [float("inf")]
    for place in _places(groups, root, "cpu"):
        quota, period = _numbers(place / "cpu.max", 2)
        if period is None:
            [quota], [period] = (
                _numbers(place / "cpu.cfs_quota_us"),
                _numbers(place / "cpu.cfs_period_us"),
            )
        if quota is not None and period:
            quotas.append(quota / period)
    return min(quotas)


def memory_left(groups: str, root: Path) -> float:
    """The bytes that this process's control groups still allow; infinite without a limit."""
    left = [float("inf")]
    for place in _places(groups, root, "memory"):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            [most], [now] = _numbers(place / limit), _numbers(place / used)
            if most is not None and now is not None:
                left.append(max(most - now, 0.0))
    return min(left)


def _places(groups: str, root: Path, controller: str) -> list[Path]:
    """The directories of this process's control groups with ``controller``, up to the mount."""
    found = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [root / controllers, root / controller] if controllers else [root]
        mount = next((mount for mount in mounts if mount.is_dir()), root)
        inner = mount / path.lstrip("/")
        # In a container /proc/self/cgroup may name a path of the host, which is not mounted.
        while inner != mount and not inner.is_dir():
            inner = inner.parent
        found += [
            inner,
            *(parent for parent in inner.parents if mount in (parent, *parent.parents)),
        ]
    return found


def _numbers(file: Path, count: int = 1) -> list[float | None]:
    """The first ``count`` numbers in the file. A missing number, "max" or -1 is None."""
    try:
        words = file.read_text(encoding="ascii").split()
    except OSError:
        words = []
    numbers: list[float | None] = [
        float(word) if word.isdigit() else None for word in words[:count]
    ]
    return numbers + [None] * (count - len(numbers))
