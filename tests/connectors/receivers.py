"""Real receivers as users run them: ``ha-engine receive`` as a process."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.connectors.server import free_port
from tests.waiting import wait_ended, wait_until

START_SECONDS = ANSWER_SECONDS = 60.0
SCHEMA = {
    "number": "bigint not null",
    "name": "string",
    "price": "decimal(9,2)",
    "at": "timestamp",
}


def application(brokers: list[str], topic: str, **log: Any) -> str:
    """An application with the stream ``orders``, whose log is ``topic``, and the stream ``other``,
    whose events are in the journal."""
    options = {"type": "kafka", "brokers": brokers, "topic": topic, **log}
    streams = {"orders": {"schema": SCHEMA, "log": options}, "other": {"schema": SCHEMA}}
    queries = {"all": {"sql": "SELECT number FROM orders"}}
    tree = {"name": "shop", "streams": streams, "queries": queries}
    return yaml.safe_dump(tree, sort_keys=False)


class Receiver:
    """A receiver with its files in ``directory``. The authority ``ca`` has signed its certificate,
    if it has one."""

    def __init__(
        self, directory: Path, text: str, ca: Path | None = None, **sections: dict[str, Any]
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        scheme = "https" if "tls" in sections.get("http", {}) else "http"
        self.url = f"{scheme}://127.0.0.1:{free_port()}"
        self._trust: ssl.SSLContext | bool = (
            True if ca is None else ssl.create_default_context(cafile=ca)
        )
        self.grpc = f"grpc://127.0.0.1:{free_port()}"
        (directory / "application.yaml").write_text(text)
        config: dict[str, Any] = {
            "http": {"listen": self.url.partition("://")[2]},
            "ingest": {"listen": self.grpc.removeprefix("grpc://")},
        }
        for name, section in sections.items():
            config[name] = {**config.get(name, {}), **section}
        self.config = directory / "receiver.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the receiver, whether its brokers answer or not."""
        command = [sys.executable, "-m", "ha_engine", "receive", "--config", str(self.config)]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(lambda: self.answers("liveness"), within=START_SECONDS)

    def start(self) -> None:
        """Start the receiver, and wait until it takes events."""
        self.launch()
        self.await_ready()

    def await_ready(self) -> None:
        wait_until(lambda: self.answers("readiness"), within=START_SECONDS)

    def answers(self, check: str) -> bool:
        """Whether a check of a balancer succeeds."""
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            return self.request("GET", f"/{check}").status_code == 200
        except httpx.TransportError:
            return False

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request to the receiver."""
        return httpx.request(
            method, self.url + path, verify=self._trust, timeout=ANSWER_SECONDS, **more
        )

    def metric(self, name: str) -> float:
        """The sum of the values of ``ha_engine_receiver_NAME``."""
        lines = self.request("GET", "/metrics").text.splitlines()
        begins = f"ha_engine_receiver_{name}{{", f"ha_engine_receiver_{name} "
        return sum(float(one.split()[-1]) for one in lines if one.startswith(begins))

    def terminate(self) -> None:
        """Ask the receiver to stop."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Wait for the end, and return the exit code."""
        assert self.process is not None
        return wait_ended(self.process)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.terminate()
            assert self.ended() == 0, self.log()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")
