"""CPU of each command of ``ha-engine`` until it ends, where no node answers and no Spark starts."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Result

NOBODY = ("--url", "http://127.0.0.1:1")
COMMANDS = (
    ("--help",),
    ("status", *NOBODY),
    ("switchover", *NOBODY),
    ("failover", "--force", *NOBODY),
    ("query", "retry", "flights", *NOBODY),
    ("snapshot", "now", *NOBODY),
    ("config", "token"),
    ("config", "show"),
    ("app", "check", "--help"),
    ("publish", "--help"),
)
ONE_REQUEST = """
import httpx
try:
    httpx.get("http://127.0.0.1:1", verify=False)
except httpx.ConnectError:
    pass
"""
HERE = Path(__file__).parents[1]


def measure(code: Path | None, rounds: int, result: Result) -> None:
    """Beside them a Python that does nothing, and one that asks once over httpx; ``code`` is the
    directory of another release, which is measured in turns with this one."""
    programs = {"python -c pass": ("pass", HERE), "one request of httpx": (ONE_REQUEST, HERE)}
    releases = {"": HERE} if code is None else {"": HERE, ", other release": code.resolve()}
    for words in COMMANDS:
        program = f"from ha_engine.cli import main\nmain({list(words)!r})"
        name = " ".join(word for word in words if word not in NOBODY)
        programs |= {f"{name}{which}": (program, where) for which, where in releases.items()}
    for _ in range(rounds):
        for name, (program, where) in programs.items():
            used = _cpu_seconds([sys.executable, "-c", program], where)
            result.extend(name, "ms of CPU", used * 1e3)


def _cpu_seconds(command: Sequence[str], directory: Path) -> float:
    """Of one program that is run to its end there; whether it succeeds does not matter."""
    before, quiet = _children(), subprocess.DEVNULL
    subprocess.run(command, cwd=directory, stdout=quiet, stderr=quiet, check=False)
    return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
