"""A real Spark standalone cluster for tests: masters, and workers that a test can kill."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pyspark

from tests.connectors.server import Server, free_port, new_directory

SECRET = "a-secret-of-the-cluster"
READY_SECONDS = 120.0
ANSWER_SECONDS = 5.0
_ENVIRONMENT = (
    "SPARK_LOCAL_IP=127.0.0.1",
    "SPARK_DAEMON_MEMORY=200m",
    "SPARK_DAEMON_JAVA_OPTS=-Xms32m -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
)

_CLEANUP = {"spark.worker.cleanup.enabled": "true"}


class ZooKeeper(Server):
    """The server in which masters choose their leader. It is among Spark's jars."""

    program = "java"
    ready_seconds = READY_SECONDS
    tick_ms = 500
    """ZooKeeper ends the session of a dead master after twenty ticks at most. Masters ask for a
    minute."""

    def arguments(self) -> list[str]:
        jars = Path(pyspark.__file__).parent / "jars" / "*"
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        heap = ["-Xmx128m", "-XX:+UseSerialGC", "-Dzookeeper.admin.enableServer=false"]
        data = str(self.directory / "data")
        return [*heap, "-cp", str(jars), main, str(self.port), data, str(self.tick_ms)]

    def answers(self, connection: socket.socket) -> bool:
        return True


class Daemon(Server):
    """A JVM of the cluster manager. It authenticates drivers and executors with SECRET."""

    program = "java"
    ready_seconds = READY_SECONDS
    main: str

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(directory)
        self.web_port = free_port()
        self._settings = directory / "spark.conf"
        secret = {"spark.authenticate": "true", "spark.authenticate.secret": SECRET}
        lines = (f"{name} {value}\n" for name, value in (secret | dict(settings)).items())
        self._settings.write_text("".join(lines))

    @property
    def name(self) -> str:
        return self.main.rpartition(".")[2].lower()

    @property
    def _log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def command(self) -> list[str]:
        # As docs/CLUSTER.md starts them: the script looks for PySpark with the first python.
        path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
        daemon = ["spark-class", f"org.apache.spark.deploy.{self.main}"]
        common = ["--properties-file", str(self._settings), "--host", "127.0.0.1"]
        return ["env", path, *_ENVIRONMENT, *daemon, *common, *self.arguments()]

    def answers(self, connection: socket.socket) -> bool:
        return True


class Master(Daemon):
    main = "master.Master"

    def arguments(self) -> list[str]:
        return ["--port", str(self.port), "--webui-port", str(self.web_port)]

    def leads(self) -> bool:
        """Return whether the master is the one that manages the cluster."""
        try:
            page = httpx.get(f"http://127.0.0.1:{self.web_port}/json/", timeout=ANSWER_SECONDS)
        except httpx.HTTPError:
            return False
        return page.is_success and bool(page.json()["status"] == "ALIVE")


class Worker(Daemon):
    """A worker with ``cores`` for executors, in directories of its own."""

    main = "worker.Worker"

    def __init__(
        self,
        directory: Path,
        master: str,
        cores: int,
        memory: str,
        settings: Mapping[str, str] = _CLEANUP,
    ) -> None:
        super().__init__(directory, settings)
        self._master, self._cores, self._memory = master, cores, memory

    def arguments(self) -> list[str]:
        place = ["--port", str(self.port), "--webui-port", str(self.web_port)]
        room = ["--cores", str(self._cores), "--memory", self._memory]
        return [*place, *room, "--work-dir", str(self.directory / "work"), self._master]

    def executors(self, application: str = "") -> list[psutil.Process]:
        """Return the executors that the worker runs, or those of one ``application``."""
        if self._process is None:
            return []
        signs = ("CoarseGrainedExecutorBackend", application)
        children = psutil.Process(self._process.pid).children()
        return [child for child in children if all(sign in _words(child) for sign in signs)]

    def _end(self, number: signal.Signals) -> None:
        # An executor outlives a worker that was killed, until it notices; a host does not.
        executors = self.executors()
        super()._end(number)
        for executor in executors:
            for one in (executor, *executor.children(recursive=True)):
                one.send_signal(number)
        psutil.wait_procs(executors)


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class Cluster:
    """A master and its workers."""

    def __init__(self, masters: list[Master], workers: list[Worker]) -> None:
        self.masters, self.workers = masters, workers

    @property
    def master(self) -> Master:
        return self.masters[0]

    @property
    def url(self) -> str:
        """The address of the masters, for ``spark.master``."""
        return url_of(self.masters)

    def workers_of(self, application: str = "") -> list[Worker]:
        """Return the workers that run executors, or those of one ``application``."""
        return [worker for worker in self.workers if worker.executors(application)]

    def kill_an_executor(self) -> None:
        self.workers[0].executors()[0].kill()

    def restart_a_worker(self) -> None:
        """Kill a worker with its executors, like the loss of a host, and start it again."""
        worker = self.workers[0]
        worker.kill()
        worker.start()


def url_of(masters: list[Master]) -> str:
    return "spark://" + ",".join(f"127.0.0.1:{master.port}" for master in masters)


@contextmanager
def running_cluster(
    workers: int = 2,
    cores: int = 1,
    memory: str = "1g",
    masters: int = 1,
    settings: Mapping[str, str] = {},
) -> Iterator[Cluster]:
    """Run masters, of which one leads, and ``workers``, each with ``cores`` and ``memory`` for
    executors. All have these ``settings``."""
    home = Path(tempfile.mkdtemp(prefix="spark-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        leading = stack.enter_context(_masters(home, masters, settings))
        started = list[Worker]()
        for number in range(1, workers + 1):
            directory = new_directory(home / f"worker-{number}")
            own = {**_CLEANUP, **settings}
            worker = Worker(directory, url_of(leading), cores, memory, own)
            stack.callback(worker.kill)
            worker.launch()
            started.append(worker)
        for worker in started:
            worker.await_ready()
        yield Cluster(leading, started)


@contextmanager
def _masters(home: Path, count: int, settings: Mapping[str, str]) -> Iterator[list[Master]]:
    with ExitStack() as stack:
        if count > 1:
            keeper = ZooKeeper(new_directory(home / "zookeeper"))
            stack.callback(keeper.kill)
            keeper.start()
            address = f"127.0.0.1:{keeper.port}"
            settings = {
                **settings,
                "spark.deploy.recoveryMode": "ZOOKEEPER",
                "spark.deploy.zookeeper.url": address,
            }
        masters = list[Master]()
        for number in range(1, count + 1):
            master = Master(new_directory(home / f"master-{number}"), settings)
            stack.callback(master.kill)
            master.start()
            masters.append(master)
        yield masters


def executor_settings(python: Path, modules: list[Path]) -> dict[str, str]:
    """Return the settings with which executors on this host run this project's Python."""
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": SECRET,
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(map(str, modules)),
        "spark.executorEnv.PYSPARK_PYTHON": str(python),
    }


def driver_settings(modules: list[Path]) -> dict[str, str]:
    """Return the settings of a driver on this host, whose executors have one core each."""
    return {
        **executor_settings(Path(sys.executable), modules),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "700m",
        "spark.executor.memory": "700m",
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "false",
    }


def ordered_shuffle(jar: Path) -> dict[str, str]:
    """Return the settings with which tasks read shuffles in one order. ``jar`` is the engine's."""
    manager = "haengine.shuffle.OrderedShuffleManager"
    return {"spark.jars": str(jar), "spark.shuffle.manager": manager}
