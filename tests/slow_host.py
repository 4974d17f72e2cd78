"""Run a command and its children with a share of one core, as on a slow host.

    python -m tests.slow_host --share 0.33 -- make demo

The limit is a quota of a control group, version 1 or 2, where this user may make one. Elsewhere
busy loops compete for the command's one core: enough to leave it about the share.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

ROOT = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS = 100_000
EMPTY_SECONDS_MAX = 30.0
"""The time that killed processes may take to leave their group."""


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; after a signal that of a shell."""
    parser = argparse.ArgumentParser(prog="python -m tests.slow_host", description=__doc__)
    parser.add_argument("--share", type=float, default=0.33, help="of one core (default: 0.33)")
    parser.add_argument("--busy-loops", action="store_true", help="even where there are quotas")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    with limited(options.share, quota=not options.busy_loops) as said:
        print(f"slow host: {said}", file=sys.stderr, flush=True)
        return _run(options.command)


def _run(command: Sequence[str]) -> int:
    """Run the command to its end, and forward the signals to this process to it."""
    child = subprocess.Popen(command)

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    code = child.wait()
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def limited(share: float, *, quota: bool = True) -> Iterator[str]:
    """Limit this process and its children to ``share`` of a core; yield the means."""
    group = _made_group(share) if quota else None
    if group is None:
        with _busy_loops(share) as said:
            yield said
        return
    home = _current(group)
    (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    try:
        yield f"{share:g} of one core, a quota of {group}"
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        _remove(group)


# -- a quota of a control group --------------------------------------------------------------------


def _made_group(share: float) -> Path | None:
    """Return a new group below the root of the CPU's hierarchy; None where that is impossible."""
    quota = max(1_000, int(share * PERIOD_MICROSECONDS))
    name = f"ha-engine-slow-host-{os.getpid()}"
    for mount, files in (
        (ROOT / "cpu", {"cpu.cfs_period_us": PERIOD_MICROSECONDS, "cpu.cfs_quota_us": quota}),
        (ROOT, {"cpu.max": f"{quota} {PERIOD_MICROSECONDS}"}),
    ):
        group = mount / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for file, value in files.items():
                if not (group / file).exists():
                    raise FileNotFoundError(file)
                (group / file).write_text(str(value), encoding="ascii")
        except OSError:
            group.rmdir()
            continue
        return group
    return None


def _current(group: Path) -> Path:
    """Return the group of this process in the hierarchy of ``group``."""
    wanted = "cpu" if group.parent.name == "cpu" else ""
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if wanted in controllers.split(","):
            return group.parent / path.lstrip("/")
    return group.parent


def _remove(group: Path) -> None:
    """Kill the processes that the command left, and remove the empty group."""
    until = time.monotonic() + EMPTY_SECONDS_MAX
    while time.monotonic() < until:
        for pid in (group / "cgroup.procs").read_text(encoding="ascii").split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
    raise RuntimeError(f"{group} does not become empty")


# -- busy loops that compete -----------------------------------------------------------------------


@contextlib.contextmanager
def _busy_loops(share: float) -> Iterator[str]:
    """Run all loops on one core, each in a separate session: where the kernel groups processes by
    session, it shares the core among sessions; elsewhere a loop counts as one process of many."""
    count = max(1, round(1 / share) - 1)
    before = os.sched_getaffinity(0)
    core = min(before)
    try:
        os.sched_setaffinity(0, {core})
        with busy(count):
            yield f"about {share:g} of core {core}, which {count} busy loops use too"
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run processes that compete for the cores of this one, each like a login or a daemon."""
    code = "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGKILL)\nwhile True: pass"
    loops = []
    try:
        for _ in range(count):
            loops.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
