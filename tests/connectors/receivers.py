"""Real receivers as users run them: ``ha-engine receive`` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.connectors.server import free_port
from tests.waiting import wait_ended, wait_until

START_SECONDS = 60.0
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
    """A receiver with its files in ``directory``."""

    def __init__(self, directory: Path, text: str, **sections: dict[str, Any]) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.url = f"http://127.0.0.1:{free_port()}"
        self.grpc = f"grpc://127.0.0.1:{free_port()}"
        self.events = f"{self.url}/v1/streams/orders/events"
        (directory / "application.yaml").write_text(text)
        config: dict[str, Any] = {
            "http": {"listen": self.url.removeprefix("http://")},
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
            return httpx.get(f"{self.url}/{check}", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def metric(self, name: str) -> float:
        """The sum of the values of ``ha_engine_receiver_NAME``."""
        lines = httpx.get(f"{self.url}/metrics", timeout=20).text.splitlines()
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
