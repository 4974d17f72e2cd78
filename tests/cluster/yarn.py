"""A real YARN for tests: a ResourceManager, and NodeManagers that a test can kill.

One jar of Hadoop has both programs, and Spark's jars have the rest of Hadoop.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import httpx
import psutil
import pyspark
import pytest

from ha_engine.query.session import find_java
from tests.connectors.kafka_jars import fetch, paths
from tests.connectors.server import Server, free_port, new_directory
from tests.waiting import wait_until

JARS = Path(__file__).parent / "yarn_jars.txt"
READY_SECONDS = 120.0
ANSWER_SECONDS = 5.0
LOST_MS = 10_000
"""The silence after which a NodeManager counts as lost, instead of ten minutes."""
_HEAP = ("-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_EXECUTOR, _MASTER = "YarnCoarseGrainedExecutorBackend", "ExecutorLauncher"
"""The classes of executors and of ApplicationMasters."""


class Daemon(Server):
    """A JVM of YARN. Its ``directory`` has its config and the files of its web page."""

    program = "java"
    ready_seconds = READY_SECONDS
    main: str
    page: str

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.web_port = free_port()
        (directory / "webapps" / self.page).mkdir(parents=True)
        write_config(directory / "core-site.xml", {"hadoop.tmp.dir": directory / "tmp"})

    def command(self) -> list[str]:
        java = Path(find_java()).resolve()
        jars = [self.directory, *paths(JARS), Path(pyspark.__file__).parent / "jars" / "*"]
        classpath = os.pathsep.join(map(str, jars))
        # Containers run the Java of their NodeManager.
        start = ["env", f"JAVA_HOME={java.parents[1]}", str(java), *_HEAP, "-cp", classpath]
        return [*start, f"org.apache.hadoop.yarn.server.{self.main}"]

    def answers(self, connection: socket.socket) -> bool:
        return True


class ResourceManager(Daemon):
    main = "resourcemanager.ResourceManager"
    page = "cluster"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        ports = {"": self.port, "webapp.": self.web_port}
        ports |= {f"{name}.": free_port() for name in ("scheduler", "resource-tracker", "admin")}
        self.config: dict[str, object] = {
            f"yarn.resourcemanager.{name}address": f"127.0.0.1:{port}"
            for name, port in ports.items()
        }
        """The settings that NodeManagers and clients need too."""
        self.config["yarn.scheduler.minimum-allocation-mb"] = 128
        self.config["yarn.nm.liveness-monitor.expiry-interval-ms"] = LOST_MS
        write_config(directory / "yarn-site.xml", self.config)
        queues = {
            "root.queues": "default",
            "root.default.capacity": 100,
            # By default, ApplicationMasters get a tenth of the memory.
            "maximum-am-resource-percent": 1,
        }
        write_config(
            directory / "capacity-scheduler.xml",
            {f"yarn.scheduler.capacity.{name}": value for name, value in queues.items()},
        )

    def ask(self, resource: str) -> Any:
        """Return what the web page says of ``resource``, or None while it does not answer."""
        url = f"http://127.0.0.1:{self.web_port}/ws/v1/cluster/{resource}"
        try:
            answer = httpx.get(url, timeout=ANSWER_SECONDS, trust_env=False)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.is_success else None


class NodeManager(Daemon):
    """A NodeManager with ``memory_mb`` for containers, which are its children."""

    main = "nodemanager.NodeManager"
    page = "node"

    def __init__(self, directory: Path, master: ResourceManager, memory_mb: int) -> None:
        super().__init__(directory)
        ports = {"": self.port, "webapp.": self.web_port, "localizer.": free_port()}
        own = {
            **{f"{name}address": f"127.0.0.1:{port}" for name, port in ports.items()},
            "local-dirs": directory / "local",
            "log-dirs": directory / "logs",
            "resource.memory-mb": memory_mb,
            # A JVM reserves gigabytes of addresses that it does not use.
            "vmem-check-enabled": "false",
            # The disk of a test's host may be nine tenths full.
            "disk-health-checker.enable": "false",
        }
        settings = {f"yarn.nodemanager.{name}": value for name, value in own.items()}
        write_config(directory / "yarn-site.xml", {**master.config, **settings})

    def executors(self) -> list[psutil.Process]:
        return [one for one in self._children() if _runs(one, _EXECUTOR)]

    def masters(self) -> list[psutil.Process]:
        """Return the ApplicationMasters."""
        return [one for one in self._children() if _runs(one, _MASTER)]

    def _children(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        return psutil.Process(self._process.pid).children(recursive=True)

    def _end(self, number: signal.Signals) -> None:
        # Containers outlive a NodeManager that was killed; those of a host do not.
        children = self._children()
        super()._end(number)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children)


def _runs(process: psutil.Process, java_class: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    # The shells that started the JVM have the class among their arguments too.
    is_java = Path(words[0] if words else "").name == "java"
    return is_java and any(java_class in word for word in words)


class Yarn:
    """A ResourceManager and its NodeManagers."""

    url = "yarn"
    """The value of ``execution.master``."""

    def __init__(self, manager: ResourceManager, workers: list[NodeManager]) -> None:
        self.manager, self.workers = manager, workers

    def executors(self) -> list[psutil.Process]:
        return [one for worker in self.workers for one in worker.executors()]

    def applications(self) -> set[str] | None:
        """Return the ids of the applications that run, or None while YARN does not answer."""
        answer = self.manager.ask("apps?states=RUNNING")
        if answer is None:
            return None
        found = answer.get("apps") or {}
        return {app["id"] for app in found.get("app", [])}

    def has_workers(self, number: int) -> bool:
        metrics = (self.manager.ask("metrics") or {}).get("clusterMetrics", {})
        return bool(metrics.get("activeNodes") == number)

    def kill_an_executor(self) -> None:
        self.executors()[0].kill()

    def kill_a_master(self) -> None:
        next(one for worker in self.workers for one in worker.masters()).kill()

    def restart_a_worker(self) -> None:
        """Kill a NodeManager with its containers, like the loss of a host, and start it again."""
        worker = self.workers[0]
        worker.kill()
        worker.start()


@contextmanager
def running_yarn(workers: int = 2, memory_mb: int = 5120) -> Iterator[Yarn]:
    """Run a ResourceManager and NodeManagers, whose addresses are in HADOOP_CONF_DIR meanwhile."""
    fetch(JARS)
    home = Path(tempfile.mkdtemp(prefix="yarn-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        manager = ResourceManager(new_directory(home / "resource-manager"))
        stack.callback(manager.kill)
        manager.launch()
        started = []
        for number in range(1, workers + 1):
            worker = NodeManager(new_directory(home / f"worker-{number}"), manager, memory_mb)
            stack.callback(worker.kill)
            worker.launch()
            started.append(worker)
        yarn = Yarn(manager, started)
        for daemon in (manager, *started):
            daemon.await_ready()
        wait_until(lambda: yarn.has_workers(workers), within=READY_SECONDS)
        clients = new_directory(home / "clients")
        write_config(clients / "core-site.xml", {"hadoop.tmp.dir": home / "tmp"})
        write_config(clients / "yarn-site.xml", manager.config)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("HADOOP_CONF_DIR", str(clients))
        yield yarn


def write_config(file: Path, properties: Mapping[str, object]) -> None:
    """Write a config file of Hadoop."""
    entries = (
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>\n"
        for name, value in properties.items()
    )
    file.write_text(f"<configuration>\n{''.join(entries)}</configuration>\n")
