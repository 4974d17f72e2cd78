"""Detect whether the kernel killed a process of the host for lack of memory."""

from __future__ import annotations

from pathlib import Path

_VMSTAT = Path("/proc/vmstat")


class MemoryKills:
    """The kernel's count of processes that were killed for lack of memory, also within cgroups.

    In a container, the kernel's count covers the whole host. A kill outside the container may
    excuse one failure that a batch itself caused, but not the next.
    """

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._seen = self._count()

    def rose(self) -> bool:
        """Whether the kernel killed a process since the last call of ``rose``.

        The first call looks back to the creation of this object.
        """
        before, self._seen = self._seen, self._count()
        return self._seen > before

    def _count(self) -> int:
        try:
            lines = self._vmstat.read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        found = (line.split()[1] for line in lines if line.startswith("oom_kill "))
        return int(next(found, "0"))
