"""The demo's two nodes: processes of their own, exactly as a user would run them."""

from __future__ import annotations

import contextlib
import importlib.resources
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from ha_engine.client.admin import fetch_status
from ha_engine.errors import EngineError, NodeUnreachable
from ha_engine.sessions import members

STOP_SECONDS_MAX = 30.0
NAMES = ("node-a", "node-b")
Status = dict[str, Any]


class DemoNode:
    """One node below ``directory``; may be started, killed and started again."""

    def __init__(self, name: str, directory: Path, config: dict[str, Any]) -> None:
        self.name, self.log = name, directory / "node.log"
        self.url = f"http://{config['http']['listen']}"
        self._data_dir = Path(config["node"]["data_dir"])
        self._config = directory / "ha-engine.yaml"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        self._config.write_text(yaml.safe_dump(config, sort_keys=False))

    def start(self) -> None:
        command = [sys.executable, "-m", "ha_engine", "run", "--config", str(self._config)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )

    def status(self) -> Status | None:
        """None while it does not answer."""
        try:
            return fetch_status(self.url)
        except NodeUnreachable:
            return None

    def require_alive(self) -> None:
        """Raises EngineError when it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            raise EngineError(f"{self.name} ended with exit code {code}; see {self.log}")

    def kill_everything(self) -> None:
        """kill -9 of each of its processes, as the loss of its host does."""
        assert self._process is not None
        supervisor = psutil.Process(self._process.pid)
        tree = [supervisor.pid, *(child.pid for child in supervisor.children(recursive=True))]
        for pid in {*tree, *members(str(self._data_dir.resolve()), None)}:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        self._process.wait()
        self._process = None

    def ask_to_stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def await_stopped(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill_everything()


class DemoPair:
    """Two nodes, each other's peers over loopback, and which of them is active."""

    def __init__(self, directory: Path, database_url: str, application: str) -> None:
        path = directory / application
        path.write_text(sample_application(application))
        listens = {name: f"127.0.0.1:{_free_port()}" for name in NAMES}
        self.nodes = [
            DemoNode(name, directory / name, _config(name, directory, path, database_url, listens))
            for name in NAMES
        ]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Both at once; none is left when it ends."""
        try:
            for node in self.nodes:
                node.start()
            yield
        finally:
            for node in self.nodes:
                node.ask_to_stop()
            for node in self.nodes:
                node.await_stopped()

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def statuses(self) -> dict[str, Status | None]:
        return {node.name: node.status() for node in self.nodes}

    def active(self) -> DemoNode | None:
        for node in self.nodes:
            status = node.status()
            if status is not None and status["role"] == "active":
                return node
        return None

    def other(self, node: DemoNode) -> DemoNode:
        return next(other for other in self.nodes if other is not node)

    def is_whole(self) -> bool:
        """Whether one is active, the other in sync, and the queries of both are warm."""
        statuses = self.statuses().values()
        roles = sorted(status["role"] if status else "" for status in statuses)
        return roles == ["active", "passive"] and all(
            status and status["warm"] for status in statuses
        )

    def wait(self, what: str, condition: Callable[[], object], within: float) -> None:
        """Raises EngineError when it takes longer than ``within`` seconds, or a node ends."""

        def asked() -> bool:
            for node in self.nodes:
                node.require_alive()
            return bool(condition())

        waiting = Retrying(
            retry=retry_if_result(lambda done: not done),
            stop=stop_after_delay(within),
            wait=wait_fixed(0.05),
        )
        try:
            waiting(asked)
        except RetryError as error:
            logs = " and ".join(str(node.log) for node in self.nodes)
            raise EngineError(f"{what} took more than {within:.0f} s; see {logs}") from error


def sample_application(name: str) -> str:
    """The text of a sample application: packaged in a wheel, in conf/ of a source tree."""
    packaged = importlib.resources.files("ha_engine") / "samples" / name
    if packaged.is_file():
        return packaged.read_text()
    return (Path(__file__).parents[2] / "conf" / "applications" / name).read_text()


def _config(
    name: str, directory: Path, application: Path, database_url: str, listens: dict[str, str]
) -> dict[str, Any]:
    peers = {peer: address for peer, address in listens.items() if peer != name}
    return {
        "group": "demo",
        "application": str(application),
        "node": {"id": name, "data_dir": str(directory / name / "data")},
        "database": {"url": database_url},
        "http": {"listen": f"127.0.0.1:{_free_port()}"},
        # Loopback needs no TLS. Two Sparks share this machine, so batches leave each other time.
        "event_sync": {"listen": listens[name], "peers": peers, "insecure": True},
        "query": {"min_batch_interval": "500ms", "heap": "768MiB", "class_archive": False},
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
