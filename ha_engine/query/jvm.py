"""Spark's JVM as a child process: whether it lives, and why it ended."""

from __future__ import annotations

import signal
import subprocess

from ha_engine.errors import HostKilled, QueryProcessFailed

DEATH_SECONDS_MAX = 0.5
"""Time in which a dying JVM exits: it closes its sockets before its exit can be seen."""
_OUT_OF_MEMORY = 3
"""Java's exit code under ``-XX:+ExitOnOutOfMemoryError``."""


class Jvm:
    """The JVM process behind PySpark's gateway."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def lives(self) -> bool:
        """Wait at most DEATH_SECONDS_MAX for the JVM to end; return whether it still runs."""
        try:
            self._process.wait(DEATH_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return True
        return False

    def failure(self) -> QueryProcessFailed:
        """Why the JVM ended, as the error with which the query process ends."""
        match self._process.poll():
            case code if code == -signal.SIGKILL:
                return HostKilled("Spark's JVM was killed by SIGKILL; the host may lack memory")
            case code if code == _OUT_OF_MEMORY:
                return QueryProcessFailed("Spark's JVM ran out of memory; raise query.heap")
            case int(code) if code < 0:
                return QueryProcessFailed(f"Spark's JVM was killed by {signal.Signals(-code).name}")
            case code:
                return QueryProcessFailed(f"Spark's JVM ended with exit code {code}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
