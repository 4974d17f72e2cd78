"""A real node on a host that is a network namespace."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psutil
import yaml

from ha_engine.client.token import authorization
from ha_engine.journal.segment import segment_paths
from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.pair import NAMES
from tests.faults.matrix.credentials import Credentials
from tests.faults.matrix.disks import MIN_FREE_BYTES, Disk

TTL_SECONDS = 2.0
HTTP_PORT, SYNC_PORT = 8080, 9893
REFUSAL_SECONDS = 60.0
PATIENCE = 5
KILLED = "code=-9"
"""The supervisor logs it when a SIGKILL has ended the node process."""


class HostedNode(NodeUnderTest):
    """A node on the host ``name``, whose query process is the stand-in."""

    program: tuple[str, ...] = ("-m", "tests.faults.matrix.supervised")
    signs: ClassVar[Mapping[str, str]] = {
        **NodeUnderTest.signs,
        "query": r"tests\.faults\.matrix\.stand_in",
    }

    def __init__(
        self,
        launchers: Mapping[str, Sequence[str]],
        addresses: Mapping[str, str],
        directory: Path,
        application: str,
        database_url: str,
        name: str,
        **sections: dict[str, Any],
    ) -> None:
        super().__init__(directory, application, database_url, name, **sections)
        self.address = addresses[name]
        self.launcher = tuple(launchers[name])
        listen = f"{self.address}:{HTTP_PORT}"
        peers = {other: f"{addresses[other]}:{SYNC_PORT}" for other in NAMES if other != name}
        self.url = f"http://{listen}"
        self.http = httpx.Client(base_url=self.url, timeout=30.0)
        self.reconfigure(
            http={"listen": listen, "insecure": True},
            event_sync={"listen": f"{self.address}:{SYNC_PORT}", "peers": peers},
        )

    def tree(self) -> list[psutil.Process]:
        """Return the supervisor and all processes below it."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor = psutil.Process(self.process.pid)
            return [supervisor, *supervisor.children(recursive=True)]
        return []

    def segments(self) -> list[Path]:
        """Return the files of its journal, the newest last."""
        return segment_paths(self.data_dir / "journal")

    def config_for(self, name: str, **sections: Any) -> Path:
        """Write a config that differs from its own in ``sections``, and return the file."""
        path = self.directory / name
        path.write_text(yaml.safe_dump(self.changed_config(**sections)))
        return path

    @contextlib.contextmanager
    def twin(self, directory: Path, launcher: Sequence[str], address: str) -> Iterator[HostedNode]:
        """Run a node with its name and config on another host, with its own data."""
        directory.mkdir()
        text, url = self.application_path.read_text(), self.changed_config()["database"]["url"]
        peers = self.changed_config()["event_sync"]["peers"]
        addresses = {peer: listen.rpartition(":")[0] for peer, listen in peers.items()}
        others = {self.name: address, **addresses}
        twin = type(self)({self.name: launcher}, others, directory, text, url, self.name)
        own = twin.changed_config()
        given = {key: own[key] for key in ("application", "node", "http", "event_sync")}
        twin.config_path.write_text(yaml.safe_dump(self.changed_config(**given)))
        with running(twin):
            yield twin

    def put_on(self, disk: Disk) -> None:
        """Let the data directory be on ``disk``, before the first start."""
        self.data_dir = disk.mount_point / self.name
        self.reconfigure(
            node={"data_dir": str(self.data_dir)}, journal={"min_free": f"{MIN_FREE_BYTES}B"}
        )

    def prove_itself(self, credentials: Credentials) -> None:
        """Let the node, which is not started yet, and its clients use ``credentials``."""
        self.url = self.url.replace("http://", "https://")
        self.http = httpx.Client(base_url=self.url, timeout=30.0, headers=authorization())
        self.reconfigure(**credentials.sections(self.name, self.address))

    def signal(self, number: signal.Signals, what: str | None = None) -> None:
        """Send a signal to the process ``what``, or to all processes of the node."""
        pids = [self.pid_of(what)] if what else [process.pid for process in self.tree()]
        for pid in filter(None, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def require(self) -> None:
        """Start the node unless it runs, as a service manager does."""
        assert self.process is not None
        if self.process.poll() is not None:
            self.start()

    def refuses(self, reason: str, begin: Callable[[], object] | None = None) -> None:
        """Start the node, or ``begin`` otherwise; wait until its supervisor ends, and require this
        reason in its log."""
        before = len(self.log_text())
        (begin or self.start)()
        assert self.process is not None
        process = self.process
        assert holds(lambda: process.poll() is not None, REFUSAL_SECONDS), f"{self.name} runs"
        assert reason in self.log_text()[before:], f"{self.name} did not say '{reason}'"

    def kill_node(self) -> None:
        """Kill the node process, which the supervisor replaces."""
        self.kill("node")

    def reinit(self) -> None:
        """Delete the node's data, as an operator does."""
        ended = self.command("reinit", self.name, "--yes", "-c", str(self.config_path))
        assert ended.code == 0, ended.err


class SparkNode(HostedNode):
    """A node of tier 2."""

    program = NodeUnderTest.program
    signs = NodeUnderTest.signs


def holds(
    condition: Callable[[], object],
    within: float,
    every: float = 0.1,
    progress: Callable[[], object] = lambda: None,
) -> bool:
    """Return whether the condition becomes true, on a slow host too.

    The limit is ``within`` seconds after the last change of ``progress``, and PATIENCE times as
    much in all.
    """
    began = changed_at = time.monotonic()
    reached = progress()
    while not condition():
        now, former, reached = time.monotonic(), reached, progress()
        if reached != former:
            changed_at = now
        if now > min(changed_at, began + (PATIENCE - 1) * within) + within:
            return False
        time.sleep(every)
    return True
