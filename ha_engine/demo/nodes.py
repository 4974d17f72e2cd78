"""The demo's two nodes: separate processes, exactly as a user would run them."""

from __future__ import annotations

import contextlib
import importlib.resources
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from ha_engine.demo.interrupts import Interrupts
from ha_engine.demo.movement import Status
from ha_engine.demo.ports import FreePorts
from ha_engine.demo.processes import kill_all_in, marked_environment
from ha_engine.errors import EngineError

STOP_SECONDS_MAX = 60.0
"""The demo kills a node that has not stopped within this time, since it no longer needs the node's
data."""
ANSWER_SECONDS_MAX = 5.0
NAMES = ("node-a", "node-b")


class DemoNode:
    """One node with its files below ``directory``. The node can be started, killed and started
    again."""

    def __init__(self, name: str, directory: Path, config: dict[str, Any]) -> None:
        self.name, self.log = name, directory / "node.log"
        self.url = f"http://{config['http']['listen']}"
        self._directory = directory
        self._config = directory / "ha-engine.yaml"
        self._process: subprocess.Popen[bytes] | None = None
        # Use one client without certificates for all requests, because the node is on loopback.
        self._http = httpx.Client(
            verify=False,  # noqa: S501 - the URL is plain HTTP
            trust_env=False,
            timeout=ANSWER_SECONDS_MAX,
        )
        directory.mkdir(parents=True)
        self._config.write_text(yaml.safe_dump(config, sort_keys=False))

    def start(self) -> None:
        command = [sys.executable, "-m", "ha_engine", "run", "--config", str(self._config)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=marked_environment(self._directory),
            )

    def status(self) -> Status | None:
        """The node's status. Returns None while the node does not answer."""
        try:
            answer = self._http.get(f"{self.url}/v1/status")
        except httpx.HTTPError:
            return None
        status: Status = answer.json()
        return status if answer.is_success else None

    def require_alive(self) -> None:
        """Raise EngineError if the node's process has ended, for example after an error."""
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            raise EngineError(f"{self.name} ended with exit code {code}; see {self.log}")

    def lose(self) -> None:
        """Kill all processes of the node, as a loss of its host does.

        The call does nothing if the node is stopped, since the search for its processes is slow.
        """
        if not self.is_stopped:
            self.kill_everything()

    def kill_everything(self) -> None:
        """Kill each process of the node with kill -9."""
        kill_all_in(self._directory)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def ask_to_stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    @property
    def is_stopped(self) -> bool:
        return self._process is None or self._process.poll() is not None


class DemoPair:
    """Two nodes that are peers over loopback.

    A signal that ``interrupts`` has noted ends the wait for a graceful stop early.
    """

    def __init__(
        self, directory: Path, database_url: str, application: str, interrupts: Interrupts
    ) -> None:
        path = directory / application
        path.write_text(sample_application(application))
        ports = FreePorts()
        listens = {name: f"127.0.0.1:{ports.next()}" for name in NAMES}
        self._interrupts = interrupts
        self.nodes = [
            DemoNode(
                name,
                directory / name,
                _config(name, directory, path, database_url, listens, ports.next()),
            )
            for name in NAMES
        ]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start both nodes for a ``with`` block, and kill both nodes at the end of the block."""
        try:
            for node in self.nodes:
                node.start()
            yield
        finally:
            for node in self.nodes:
                node.kill_everything()

    def stop(self) -> None:
        """Ask both nodes to stop, and wait at most ``STOP_SECONDS_MAX``.

        The end of the ``running`` block kills a node that has not stopped.
        """
        for node in self.nodes:
            node.ask_to_stop()
        until = time.monotonic() + STOP_SECONDS_MAX
        while not all(node.is_stopped for node in self.nodes) and time.monotonic() < until:
            self._interrupts.require_none()
            time.sleep(0.1)

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def other(self, node: DemoNode) -> DemoNode:
        return next(other for other in self.nodes if other is not node)


def sample_application(name: str) -> str:
    """The text of a sample application, from the installed package or from the source tree."""
    packaged = importlib.resources.files("ha_engine") / "samples" / name
    if packaged.is_file():
        return packaged.read_text()
    return (Path(__file__).parents[2] / "conf" / "applications" / name).read_text()


def _config(
    name: str,
    directory: Path,
    application: Path,
    database_url: str,
    listens: dict[str, str],
    http_port: int,
) -> dict[str, Any]:
    peers = {peer: address for peer, address in listens.items() if peer != name}
    return {
        "group": "demo",
        "application": str(application),
        "node": {"id": name, "data_dir": str(directory / name / "data")},
        "database": {"url": database_url},
        "http": {"listen": f"127.0.0.1:{http_port}"},
        # Loopback needs no TLS. Each query pauses between batches, since two Sparks share the CPU.
        "event_sync": {"listen": listens[name], "peers": peers, "insecure": True},
        "query": {"min_batch_interval": "500ms", "heap": "768MiB", "class_archive": False},
    }
