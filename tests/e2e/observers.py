"""Real observers as users run them: ``ha-engine observe`` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.node_under_test import free_port
from tests.waiting import wait_ended, wait_until

START_SECONDS = 60.0


class Observer:
    """An observer of the nodes with these URLs by name, with its files in ``directory``."""

    def __init__(self, directory: Path, nodes: dict[str, str], **sections: dict[str, Any]) -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self.url = directory, f"http://127.0.0.1:{free_port()}"
        config: dict[str, Any] = {
            "watch": {"nodes": nodes, "data_dir": str(directory / "data"), "interval": "100ms"},
            "http": {"listen": self.url.removeprefix("http://")},
        }
        for name, section in sections.items():
            config[name] = {**config.get(name, {}), **section}
        self.config = directory / "observer.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the observer, and wait until it answers."""
        command = [sys.executable, "-m", "ha_engine", "observe", "--config", str(self.config)]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._lives, within=START_SECONDS)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=headers, timeout=START_SECONDS)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/v1/status").json()
        return found

    def query(self, name: str) -> dict[str, Any]:
        """What the observer has of a query; empty before its first batch."""
        found: dict[str, Any] = self.status()["queries"].get(name, {})
        return found

    def numbers(self, query: str) -> list[int]:
        """The numbers of the batches with rows, oldest first."""
        answer = self.get(f"/v1/output/{query}?limit=10000")
        return [one["number"] for one in reversed(answer.json()["batches"])]

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        """Stop the observer as systemd does. It must end without an error."""
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            assert wait_ended(self.process) == 0, self.log()

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def _lives(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            return self.get("/liveness").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False
