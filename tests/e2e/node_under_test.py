"""A real node as users run it: ``ha-engine run`` as a process, observed through HTTP only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psutil
import yaml

from ha_engine.demo.ports import FreePorts
from ha_engine.system.process_group import members
from tests.waiting import wait_ended, wait_until

SPARK_SECONDS = 120.0
"""The limit without progress: a start takes some 10 s, on a slow host a hundred times that."""
POLL_SECONDS = 0.1
ANSWER_SECONDS = 5.0
"""A node that takes longer counts as not answering."""
COMMAND_SECONDS = 1200.0
"""The limit for a hanging command; on a slow host some commands take minutes."""
GONE_SECONDS = 30.0
"""An orphaned JVM sees the end of its Python within 3 s, its workers a little later."""


class NodeUnderTest:
    """One node below ``directory``; a test may start, kill and restart it.

    ``program`` is what Python runs. ``launcher`` is a command that runs the program elsewhere by an
    exec. ``signs`` are patterns of the command lines of the node's processes.
    """

    program: tuple[str, ...] = ("-m", "ha_engine")
    launcher: tuple[str, ...] = ()
    signs: ClassVar[Mapping[str, str]] = {
        "node": r"ha_engine\.node(?!\.lease_release)",
        "query": r"ha_engine\.query\.main",
        "jvm": "SparkSubmit",
    }

    def __init__(
        self,
        directory: Path,
        application: str,
        database_url: str,
        name: str = "node-a",
        **sections: dict[str, Any],
    ) -> None:
        self.directory = directory
        self.url = f"http://127.0.0.1:{free_port()}"
        self.name, self.data_dir = name, directory / name
        self.application_path = directory / "application.yaml"
        self.application_path.write_text(application)
        config: dict[str, Any] = {
            "group": "test",
            "application": str(self.application_path),
            "node": {"id": name, "data_dir": str(self.data_dir)},
            "database": {"url": database_url},
            "http": {"listen": self.url.removeprefix("http://")},
            "lease": {"ttl": "2s", "renew_interval": "300ms", "db_timeout": "500ms"},
            # A node that lives for a minute pays for the class archive without a benefit. Beside
            # other tests, a Spark of lower priority would get only a thirtieth of a core.
            "query": {"heap": "768MiB", "class_archive": False, "nice": 5},
        }
        for key, section in sections.items():
            config[key] = {**config.get(key, {}), **section}
        self.config_path = directory / "ha-engine.yaml"
        self.config_path.write_text(yaml.safe_dump(config))
        self.process: subprocess.Popen[bytes] | None = None
        self.code: Path | None = None
        """The directory of the engine that runs; None: the one under test."""
        self.http = httpx.Client(base_url=self.url, timeout=30.0)

    def reconfigure(self, **sections: Any) -> None:
        """Change the config file; the change takes effect at the next start."""
        self.config_path.write_text(yaml.safe_dump(self.changed_config(**sections)))

    def changed_config(self, **sections: Any) -> dict[str, Any]:
        """Return the content of the config file with these changes."""
        config: dict[str, Any] = yaml.safe_load(self.config_path.read_text())
        for key, section in sections.items():
            merged = {**config.get(key, {}), **section} if isinstance(section, dict) else section
            config[key] = merged
        return config

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        log = (self.directory / "node.log").open("ab")
        command = [*self.launcher, sys.executable, *self.program]
        command += ["run", "--config", str(self.config_path)]
        environ = dict(os.environ) if self.code is None else _of_engine(self.code)
        self.process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env=environ, cwd=self.code
        )
        log.close()

    def stop(self, within: float = 40.0) -> int:
        """Stop the node with the signal that systemd sends; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return wait_ended(self.process, within=within)

    def kill_everything(self) -> None:
        """Kill supervisor, node process and query process at once, like the loss of a host."""
        assert self.process is not None
        everything = [psutil.Process(self.process.pid), *self._descendants()]
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def _descendants(self) -> list[psutil.Process]:
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def pid_of(self, what: str) -> int | None:
        """Return the pid of ``node``, ``query`` or ``jvm`` among the living descendants."""
        for process in self._descendants():
            with contextlib.suppress(psutil.Error):
                if any(re.search(self.signs[what], word) for word in process.cmdline()):
                    return process.pid
        return None

    def kill(self, what: str) -> None:
        pid = self.pid_of(what)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left_over(self) -> list[int]:
        """Return the living processes of this node: supervisor, node process, and all below
        Spark."""
        return [*members(str(self.data_dir.resolve()), None), *self._named_processes()]

    def _named_processes(self) -> list[int]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                living = process.status() != psutil.STATUS_ZOMBIE
                if living and str(self.config_path) in process.cmdline():
                    found.append(process.pid)
        return found

    def kill_supervisor(self) -> None:
        """Kill the supervisor alone; return when no process of the node is left."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not self.left_over(), within=GONE_SECONDS, every=POLL_SECONDS)

    # -- interface for users -----------------------------------------------------------------------

    def status(self) -> dict[str, Any] | None:
        """Return the status of the node, None while it does not answer."""
        try:
            answer = self.http.get("/v1/status", timeout=ANSWER_SECONDS)
        except httpx.HTTPError:
            return None
        found: dict[str, Any] = answer.json()
        return found

    def require_status(self, within: float = 30.0) -> dict[str, Any]:
        """Return the status of the node, once it answers."""
        found: dict[str, Any] = {}

        def answers() -> bool:
            found.update(self.status() or {})
            return bool(found)

        wait_until(answers, within=within, every=POLL_SECONDS)
        return found

    def is_active(self) -> bool:
        status = self.status()
        return status is not None and status["role"] == "active"

    def wait_active(self, within: float = 30.0) -> None:
        wait_until(lambda: self.lives() and self.is_active(), within=within, every=POLL_SECONDS)

    def lives(self) -> bool:
        """Return True while the node lives; fail at once where waiting is useless."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}"
        return True

    def queries_run(self) -> bool:
        status = self.status()
        return status is not None and all(
            query["state"] == "running" for query in status["queries"].values()
        )

    def wait_running(self) -> None:
        self.wait_active()
        wait_until(self.queries_run, within=SPARK_SECONDS, every=POLL_SECONDS)

    def settled(self) -> bool:
        """Return whether every sink has the whole output of the events so far."""
        status = self.status()
        return status is not None and all(query["settled"] for query in status["queries"].values())

    def wait_settled(self) -> None:
        wait_until(self.settled, within=SPARK_SECONDS, every=POLL_SECONDS)

    def send(
        self, stream: str, rows: list[dict[str, Any]], identity: tuple[str, int] | None = None
    ) -> httpx.Response:
        """Send rows; ``identity`` is the producer's id and the sequence of the request."""
        headers = {}
        if identity is not None:
            headers = {"X-Producer-Id": identity[0], "X-Sequence": str(identity[1])}
        return self.post(stream, json.dumps(rows).encode(), "application/json", **headers)

    def post(self, stream: str, body: bytes, content_type: str, **headers: str) -> httpx.Response:
        path = f"/v1/streams/{stream}/events"
        return self.http.post(path, content=body, headers={"Content-Type": content_type, **headers})

    def command(self, *words: str, environ: dict[str, str] | None = None) -> Ended:
        """Run ``ha-engine`` with these words to its end."""
        return command(*words, environ={"HA_ENGINE_URL": self.url, **(environ or {})})

    def log_text(self) -> str:
        return (self.directory / "node.log").read_text(errors="replace")


@contextlib.contextmanager
def running(node: NodeUnderTest) -> Iterator[NodeUnderTest]:
    """Start the node, and leave no process behind on any failure."""
    node.start()
    try:
        yield node
    except BaseException as error:
        error.add_note("\n".join(["the node's log ends:", *node.log_text().splitlines()[-60:]]))
        raise
    finally:
        if node.process is not None and node.process.poll() is None:
            try:
                node.stop()
            except AssertionError:
                node.kill_everything()
        wait_until(lambda: not node.left_over(), within=GONE_SECONDS, every=POLL_SECONDS)


@dataclass(frozen=True)
class Ended:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


def command(
    *words: str, environ: dict[str, str] | None = None, within: float = COMMAND_SECONDS
) -> Ended:
    """Run ``ha-engine`` with these words to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "ha_engine", *words],
        capture_output=True,
        text=True,
        timeout=within,
        env={**os.environ, **(environ or {})},
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _of_engine(code: Path) -> dict[str, str]:
    """Return the environment of processes that import the engine from ``code``; that must also be
    the working directory, since ``python -m`` searches it first."""
    return {**os.environ, "PYTHONPATH": str(code)}


free_port = FreePorts().next
