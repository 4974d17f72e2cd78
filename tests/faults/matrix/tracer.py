"""System calls of a node's process that strace lets fail, last or kill."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.matrix.hosts import HostedNode, holds
from tests.faults.matrix.scene import TAKEOVER_SECONDS

ATTACH_SECONDS = 10.0


@contextlib.contextmanager
def injected(
    node: HostedNode, fault: str, *, what: str = "node", paths: tuple[str, ...] = ()
) -> Iterator[None]:
    """Let strace change what the system calls of the process ``what`` do: of all of them, or of
    those that use one of ``paths``."""
    pid = node.pid_of(what)
    assert pid is not None
    chosen = [word for path in paths for word in ("-P", path)]
    command = ["strace", "-f", "-qq", "-o", "/dev/null", *chosen, "-e", f"inject={fault}"]
    with subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.DEVNULL) as tracer:
        try:
            assert holds(lambda: _tracer(pid) == tracer.pid, ATTACH_SECONDS, every=0.01)
            yield
        finally:
            # A polite end would wait for the threads of a dead process, which nobody reaps before.
            tracer.kill()


def _tracer(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("TracerPid:")[2].split()[0])


def sockets(node: HostedNode, port: int) -> tuple[str, ...]:
    """Return the TCP sockets of the node's host with this port at either end, as strace names
    them."""
    ending = f":{port:04X}"
    lines = Path(f"/proc/{node.pid_of('node')}/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return tuple(
        f"socket:[{one[9]}]" for one in fields if one[1].endswith(ending) or one[2].endswith(ending)
    )


def until_it_dies(
    node: HostedNode,
    fault: str,
    *,
    what: str = "node",
    paths: tuple[str, ...] = (),
    begin: Callable[[], object] = lambda: None,
    within: float = TAKEOVER_SECONDS,
) -> None:
    """Inject ``fault``, then call ``begin``, and wait for the death of the process ``what``."""
    before = node.pid_of(what)
    with injected(node, fault, what=what, paths=paths):
        begin()
        died = holds(lambda: node.pid_of(what) != before, within)
        assert died, f"the {what} process of {node.name} survived {fault}"
