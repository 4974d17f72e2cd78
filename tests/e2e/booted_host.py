"""A host that systemd has booted: a container of systemd-nspawn on a network namespace."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.e2e.lan import Lan
from tests.waiting import wait_until

WHEELS = "/usr/src/wheels"
SHELL = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    # The hosts reach no package index, so pip finds the same packages in a directory.
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": WHEELS,
}
BOOT_SECONDS = 300.0
_ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
"""Moves the shell into the control groups before ``--``, and executes the command after it."""


class BootedHost:
    """The host ``name`` of ``lan``, whose disk is ``tree``. ``wheels`` has Python packages."""

    def __init__(self, name: str, tree: Path, lan: Lan, wheels: Path) -> None:
        self.name, self.tree, self._lan, self._wheels = name, tree, lan, wheels
        self.console = tree.parent / f"{name}.console"
        # With --keep-unit the host's systemd makes its control groups below that of systemd-nspawn.
        # If two hosts shared one, each systemd would find processes of the other in its services.
        unique = f"{tree.parent.name}-{name}"
        self._control_groups = [place / unique for place in _systemd_hierarchies()]
        self._machine: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Return when systemd runs the host and takes commands."""
        for group in self._control_groups:
            group.mkdir(exist_ok=True)
        with self.console.open("ab") as console:
            self._machine = subprocess.Popen(
                [
                    *("/bin/sh", "-c", _ENTER, "enter", *map(str, self._control_groups), "--"),
                    "systemd-nspawn",
                    "--quiet",
                    "--register=no",
                    "--keep-unit",
                    "--boot",
                    f"--directory={self.tree}",
                    f"--machine={self.name}",
                    f"--hostname={self.name}",
                    f"--network-namespace-path={self._lan.path(self.name)}",
                    f"--bind-ro={self._wheels}:{WHEELS}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

        # A node may wait for its peer or the database for long, and with it multi-user.target.
        up = "systemctl is-active --quiet basic.target dbus.service"
        wait_until(lambda: self.shell(up).returncode == 0, within=BOOT_SECONDS, every=0.5)

    def failed_units(self) -> str:
        """Return a line for each failed unit."""
        return self.type("systemctl --failed --no-legend --plain")

    def reboot(self) -> None:
        self.type("systemctl reboot")
        self._ended()
        self.boot()

    def lose_power(self) -> None:
        """End all processes at once, if the host has booted. What they wrote is on the disk of this
        machine, since its kernel lives."""
        if self._machine is None:
            return
        if self._machine.poll() is None:
            self._machine.kill()
        self._lan.lose(self.name)
        self._ended()

    def _ended(self) -> None:
        machine = self._machine
        assert machine is not None
        wait_until(lambda: machine.poll() is not None, within=BOOT_SECONDS, every=0.1)
        wait_until(self._has_no_process, within=BOOT_SECONDS, every=0.1)
        for group in self._control_groups:
            for directory, _, _ in os.walk(group, topdown=False):
                os.rmdir(directory)

    def _has_no_process(self) -> bool:
        files = (file for group in self._control_groups for file in group.rglob("cgroup.procs"))
        return not any(file.read_text() for file in files)

    def type(self, line: str, within: float = 3600.0) -> str:
        """Type a line into root's shell and return its output. Fail unless its exit code is 0."""
        done = self.shell(line, within)
        assert done.returncode == 0, f"{self.name}# {line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def shell(self, line: str, within: float = 3600.0) -> subprocess.CompletedProcess[str]:
        """Type a line into root's shell."""
        spaces = ("--mount", "--uts", "--ipc", "--pid", "--net", "--cgroup")
        enter = ["nsenter", f"--target={self._first_process()}", *spaces]
        return subprocess.run(
            [*enter, "/bin/bash", "-c", line],
            env=SHELL,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )

    def _first_process(self) -> int:
        """Return the pid of the host's systemd, once it exists."""
        machine = self._machine
        assert machine is not None
        pids: list[int] = []

        def exists() -> bool:
            assert machine.poll() is None, f"{self.name} ended: {self.console.read_text()[-2000:]}"
            pids.extend(_children_named(machine.pid, "systemd"))
            return bool(pids)

        wait_until(exists, within=BOOT_SECONDS)
        return pids[0]


def _children_named(pid: int, program: str) -> Iterator[int]:
    """Yield the children that run ``program``, without those that end meanwhile."""
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            command = child.cmdline()
            if command and Path(command[0]).name == program:
                yield child.pid


def _systemd_hierarchies() -> list[Path]:
    """Return the mounted hierarchies of control groups in which systemd tracks processes."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [
        Path(place)
        for _, place, kind, options, *_ in mounts
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(","))
    ]
