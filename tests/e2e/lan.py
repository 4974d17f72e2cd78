"""Hosts on one machine: network namespaces on a private bridge, which only root can create."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from tests.waiting import wait_until

_PREFIX_BITS = 24


class Lan:
    """``hosts``: names with their addresses. The hosts and this machine see each other only if this
    machine has an address too, ``own``."""

    def __init__(self, hosts: Mapping[str, str], own: str | None = None) -> None:
        self._hosts, self._own, self._mark = hosts, own, f"ha{os.getpid()}"

    def __enter__(self) -> Self:
        switch = self._name("switch")
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for host, address in self._hosts.items():
            self._plug(host, address, switch)
        if self._own is not None:
            other_end = ("peer", "name", self._mark, "netns", str(os.getpid()))
            _ip("-n", switch, "link", "add", "to-here", "type", "veth", *other_end)
            _ip("-n", switch, "link", "set", "to-here", "master", "bridge", "up")
            _ip("address", "add", f"{self._own}/{_PREFIX_BITS}", "dev", self._mark)
            _ip("link", "set", self._mark, "up")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self._hosts:
            self.lose(host)
        for host in ("switch", *self._hosts):
            _ip("netns", "del", self._name(host))

    def on(self, host: str, *command: str) -> list[str]:
        """Return a command that runs ``command`` on ``host`` by an exec."""
        return ["ip", "netns", "exec", self._name(host), *command]

    def path(self, host: str) -> str:
        """Return the file of the host's network namespace."""
        return f"/run/netns/{self._name(host)}"

    def lose(self, host: str) -> None:
        """Kill all processes of the host with SIGKILL; it has only those started there."""
        for pid in self._pids(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not list(self._pids(host)), within=30, every=0.05)

    # -- faults of the network ---------------------------------------------------------------------

    def unplug(self, host: str) -> None:
        """Pull the cable of ``host`` out of the switch."""
        _ip("-n", self._name("switch"), "link", "set", f"to-{host}", "down")

    def drop(self, *rules: str) -> None:
        """Drop the frames that match one of the rules of nft, in silence."""
        lines = "\n".join(f"{rule} drop" for rule in rules)
        chain = f"chain faults {{\ntype filter hook forward priority 0\n{lines}\n}}"
        self._nft(f"flush ruleset\ntable bridge faults {{\n{chain}\n}}")

    def throttle(self, host: str, rate: str) -> None:
        """Bound the bandwidth from and to ``host``, such as ``200kbit``."""
        switch, queue = self._name("switch"), ("root", "tbf", "rate", rate, "burst", "8kb")
        late = ("latency", "2s")
        _run("tc", "-n", switch, "qdisc", "replace", "dev", f"to-{host}", *queue, *late)
        _run("tc", "-n", self._name(host), "qdisc", "replace", "dev", "eth0", *queue, *late)

    def heal(self) -> None:
        """End every fault of the network."""
        self._nft("flush ruleset")
        for host in self._hosts:
            switch, port = self._name("switch"), f"to-{host}"
            _ip("-n", switch, "link", "set", port, "up")
            for place, device in ((switch, port), (self._name(host), "eth0")):
                if "tbf" in _run("tc", "-n", place, "qdisc", "show", "dev", device):
                    _run("tc", "-n", place, "qdisc", "del", "dev", device, "root")

    def _nft(self, rules: str) -> None:
        _run(*self.on("switch", "nft", "-f", "-"), text=rules)

    # -- internals ---------------------------------------------------------------------------------

    def _name(self, host: str) -> str:
        return f"{self._mark}-{host}"

    def _plug(self, host: str, address: str, switch: str) -> None:
        name, port = self._name(host), f"to-{host}"
        _ip("netns", "add", name)
        other_end = ("peer", "name", "eth0", "netns", name)
        _ip("-n", switch, "link", "add", port, "type", "veth", *other_end)
        _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
        _ip("-n", name, "address", "add", f"{address}/{_PREFIX_BITS}", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def _pids(self, host: str) -> Iterator[int]:
        for pid in _ip("netns", "pids", self._name(host)).split():
            if not _is_dead(int(pid)):
                yield int(pid)


def _is_dead(pid: int) -> bool:
    """Return whether the process is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _ip(*words: str) -> str:
    return _run("ip", *words)


def _run(*words: str, text: str | None = None) -> str:
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout
