"""What a second node costs in rows a second where the line to a host is the limit, not the CPU.

As in ``price``, but the loopback carries to each port where rows come in, that of HTTP and that of
event sync, no more than ``rate``: as if each node were on a host behind a line of its own. For that
it needs root, and a network that nobody else uses: ``unshare --net python -m benchmarks lines``.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence

import psutil
from rich.console import Console

from benchmarks.price import LOAD_SECONDS, Side, saturated
from benchmarks.report import Result

BURST = "256k"
"""The loopback's packets have up to 64 KB."""


def require_own_network() -> None:
    """Raises PermissionError, and has the loopback up otherwise."""
    if any(state.isup for name, state in psutil.net_if_stats().items() if name != "lo"):
        raise PermissionError(
            "this slows the loopback down; run it as root in a network of its own: "
            "unshare --net python -m benchmarks lines"
        )
    _run("ip", "link", "set", "lo", "up")


@contextlib.contextmanager
def limited(ports: Sequence[int], rate: str) -> Iterator[None]:
    """What goes to each of ``ports`` goes over a line of its own; the rest is not slowed down."""
    lo = ("dev", "lo")
    _run("tc", "qdisc", "add", *lo, "root", "handle", "1:", "htb", "default", "0")
    for number, port in enumerate(ports, 1):
        line = ("htb", "rate", rate, "burst", BURST, "cburst", BURST)
        _run("tc", "class", "add", *lo, "parent", "1:", "classid", f"1:{number}", *line)
        match = ("u32", "match", "ip", "dport", str(port), "0xffff", "flowid", f"1:{number}")
        _run("tc", "filter", "add", *lo, "parent", "1:", "protocol", "ip", "prio", "1", *match)
    try:
        yield
    finally:
        _run("tc", "qdisc", "del", *lo, "root")


def measure(
    sides: tuple[Side, Side], rate: str, rounds: int, result: Result, console: Console
) -> None:
    found: dict[str, list[float]] = {}
    with limited([port for side in sides for port in side.ports], rate):
        for number in range(rounds):
            for side in sides if number % 2 else sides[::-1]:
                psutil.cpu_percent()
                rows = saturated(side, seconds=LOAD_SECONDS)[0]
                busy = psutil.cpu_percent() / 100
                found.setdefault(f"{side.name}: rows/s", []).append(rows)
                found.setdefault(f"{side.name}: share of all cores in use", []).append(busy)
                console.print(
                    f"{number + 1}/{rounds} {side.name}: {rows:,.0f} rows/s", highlight=False
                )
    both = zip(found["pair: rows/s"], found["alone: rows/s"], strict=True)
    ratios = [pair / alone for pair, alone in both]
    result.at_least("rows/s of the pair over alone", ratios, 0.85, "ratio")
    for name, samples in found.items():
        result.add(name, "", samples)
    result.notes.append(f"To each host {rate}, for events and for records alike.")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
