"""The wall clock of each host, which a fault moves while the processes run."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
_OFFSET = struct.Struct("q")


class Clock:
    """The clock of one host; ``launcher`` is a command that runs another one under this clock."""

    def __init__(self, directory: Path, host: str) -> None:
        self._library = directory / "clock.so"
        self._file = directory / f"{host}.clock"
        self.launcher = ("env", f"LD_PRELOAD={self._library}", f"CLOCK_OFFSET={self._file}")
        if not self._library.exists():
            command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(self._library), str(SOURCE)]
            subprocess.run(command, check=True)
        self._file.write_bytes(_OFFSET.pack(0))
        self._file.chmod(0o644)

    def move(self, seconds: int) -> None:
        """Let the clock be off by so many seconds from now on."""
        with self._file.open("r+b") as file:
            file.write(_OFFSET.pack(seconds))
