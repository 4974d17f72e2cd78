"""Read the kernel's files of a process below /proc, see proc(5)."""

from __future__ import annotations

import os
from dataclasses import dataclass

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_DEAD = "ZX"


@dataclass(frozen=True, slots=True)
class Stat:
    """The state of one process.

    ``started`` is the start time of the process, in the kernel's ticks since boot. ``cpu_ticks``
    counts the ticks of the process and of the children that it has waited for.
    """

    state: str
    session: int
    started: int
    cpu_ticks: int

    @property
    def is_alive(self) -> bool:
        return self.state not in _DEAD


def read_stat(pid: int) -> Stat:
    """Read the state of ``pid``. Raises ProcessLookupError."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"there is no process {pid}") from None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may have blanks and brackets
    ticks = sum(map(int, fields[11:15]))
    return Stat(fields[0], int(fields[3]), int(fields[19]), ticks)


def read_environment(pid: int) -> bytes:
    """The environment of ``pid``: ``NAME=value`` entries, each ended by a zero byte.

    Raises OSError.
    """
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()


def read_bytes_read(pid: int) -> int:
    """The bytes that ``pid`` read by system calls, plus those read from the disk. Raises OSError.

    Bytes from the disk include pages of mapped files.
    """
    with open(f"/proc/{pid}/io", "rb") as file:
        counts = dict(line.split(b":") for line in file)
    return int(counts[b"rchar"]) + int(counts[b"read_bytes"])


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
