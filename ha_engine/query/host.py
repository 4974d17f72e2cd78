"""Whether the host killed a process of this node for lack of memory."""

from __future__ import annotations

from pathlib import Path

_VMSTAT = Path("/proc/vmstat")


class MemoryKills:
    """The kernel's count of processes that it killed for lack of memory, cgroups included.

    In a container the count is that of the whole host. A kill elsewhere may then excuse one failure
    that a batch caused; the next failure of that batch counts.
    """

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._seen = self._count()

    def rose(self) -> bool:
        """Whether the kernel killed since the last call, or since this object was made."""
        before, self._seen = self._seen, self._count()
        return self._seen > before

    def _count(self) -> int:
        try:
            lines = self._vmstat.read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        found = (line.split()[1] for line in lines if line.startswith("oom_kill "))
        return int(next(found, "0"))
