"""The short Spark application of ``ha-engine cluster check``, on the executors of the config."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import httpx
from py4j.protocol import Py4JError, Py4JJavaError

from ha_engine.config import Config
from ha_engine.doctor import executor_probe
from ha_engine.doctor.check import Say
from ha_engine.doctor.executors import Worker, YarnWorker, workers_of_page, workers_of_yarn
from ha_engine.errors import ClusterCheckFailed
from ha_engine.jvm import engine_jar
from ha_engine.node.startup import driver_hosts
from ha_engine.query.check import BRIEF_JAVA
from ha_engine.query.kubernetes import delete_pods, executor_pods
from ha_engine.query.session import ClusterSettings, SparkSettings, StartingSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "ha-engine cluster check"
WAIT_SECONDS = 60.0
"""The time in which executors must start. A worker fetches the jars of the application first."""
_LOOK_SECONDS = 0.2
_PAGE_SECONDS = 5.0
_STOP_SECONDS = 10.0
_ONE_ATTEMPT = {
    "spark.app.name": NAME,
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "1",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.yarn.maxAppAttempts": "1",
    # Hadoop's clients wait a quarter of an hour for a ResourceManager.
    "spark.hadoop.yarn.resourcemanager.connect.max-wait.ms": "60000",
}
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor \S+\): (.*)")

Probe = Callable[[int], dict[str, Any]]
"""Called in a task of each executor, with the number of the task."""


class SparkApplication:
    """A Spark application that no node runs. ``close`` removes it from the master."""

    def __init__(self, config: Config, *modules: Path) -> None:
        self._config, self._modules = config, modules
        self._scratch: TemporaryDirectory[str] | None = None
        self._spark: SparkSession | None = None
        self._quiet = ExitStack()

    def start(self) -> str:
        """Register with a master, and return the id of the application.

        Raises JavaMissing, JarMissing, MasterUnavailable.
        """
        execution = self._config.execution
        bind, host = driver_hosts(self._config)
        cluster = ClusterSettings(
            execution.secret.get_secret_value(),
            bind,
            host,
            **execution.executors.model_dump(),
            **execution.kubernetes.model_dump(),
        )
        self._scratch = TemporaryDirectory(prefix="ha-engine-")
        settings = SparkSettings(
            master=execution.master,
            spark={**self._config.query.spark, **_ONE_ATTEMPT},
            scratch=Path(self._scratch.name) / "spark",
            java_options=BRIEF_JAVA,
            jars=(engine_jar(),),
            cluster=cluster,
        )
        # Spark writes the stacks of its errors to stderr, and the findings say what is wrong.
        self._quiet.enter_context(_stderr_in(Path(self._scratch.name) / "spark.log"))
        starting = StartingSpark(settings, *self._modules)
        self._spark = starting.session(java_started=self._quiet.close)
        return str(self._spark.sparkContext.applicationId)

    def await_executors(self, say: Say) -> int:
        """Wait until all executors of the config live, at most WAIT_SECONDS; return their number.

        Raises ClusterCheckFailed if the master ended the application.
        """
        wanted = self._config.execution.executors.count
        until = time.monotonic() + WAIT_SECONDS
        while (live := self._live()) < wanted and time.monotonic() < until:
            say(f"{live} of {wanted} have started")
            time.sleep(_LOOK_SECONDS)
        return live

    def _live(self) -> int:
        driver = self._session.sparkContext._jsc.sc()
        if driver.isStopped():
            raise ClusterCheckFailed(
                "the master removed the application, since its executors failed; look into the "
                "logs of the workers"
            )
        return int(driver.getExecutorIds().size())

    def pods(self) -> list[str]:
        """A line for each pod on Kubernetes whose executor did not register, with the reason."""
        with executor_pods(self._session) as pods:
            return list(pods.missing(self._session.sparkContext._jsc.sc()))

    def ask(self, probe: Probe) -> list[dict[str, Any]]:
        """Run ``probe`` in each executor, and return one answer of each.

        A stage in barrier mode runs all its tasks at the same time, so tasks on all cores reach all
        executors. Raises ClusterCheckFailed.
        """
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(executor_probe)
        context = self._session.sparkContext
        tasks = self._live() * self._config.execution.executors.cores

        def answers(number: int, _: Iterator[int]) -> Iterator[dict[str, Any]]:
            yield probe(number)

        rdd = context.parallelize(range(tasks), tasks)
        try:
            found = rdd.barrier().mapPartitionsWithIndex(answers).collect()
        except Py4JJavaError as error:
            raise _explained(str(error.java_exception.getMessage())) from None
        return list({(one["host"], one["process"]): one for one in found}.values())

    def write(self, url: str, content: str) -> None:
        """Let executors write ``content`` into objects below ``url``, and read them.

        The JVMs of driver and executors do, as for the state of a query. Raises ClusterCheckFailed.
        """
        from pyspark.sql.functions import lit

        tasks = self._live()
        try:
            self._session.range(0, tasks, 1, tasks).select(lit(content)).write.text(url)
            self._session.read.text(url).count()
        except Py4JJavaError as error:
            message = str(error.java_exception.toString()).partition("\n")[0]
            raise ClusterCheckFailed(f"Spark cannot use {url}: {message}") from None

    def workers(self) -> list[Worker] | None:
        """The workers of the cluster, or None if no master shows them."""
        execution = self._config.execution
        if execution.on_yarn:
            return workers_of_yarn(self._node_managers(), self._container())
        alive = (page for page in self._master_pages() if page.get("status") == "ALIVE")
        page = next(alive, None)
        return None if page is None else workers_of_page(page, execution.executors)

    def _node_managers(self) -> Iterator[YarnWorker]:
        context = self._session.sparkContext
        assert context._jvm is not None, "the session has a JVM"
        hadoop = context._jvm.org.apache.hadoop.yarn
        client = hadoop.client.api.YarnClient.createYarnClient()
        client.init(context._jsc.hadoopConfiguration())
        client.start()
        states = context._gateway.new_array(hadoop.api.records.NodeState, 1)
        states[0] = hadoop.api.records.NodeState.RUNNING
        for found in client.getNodeReports(states):
            memory, used = found.getCapability().getMemorySize(), found.getUsed()
            yield YarnWorker(
                found.getNodeId().getHost(), memory, used.getMemorySize() if used else 0
            )
        client.stop()

    def _container(self) -> int:
        """The memory of an executor's container in MiB. YARN gives multiples of its minimum."""
        java = self._session.sparkContext._jsc
        names = ("spark.executor.memory", "spark.executor.memoryOverhead")
        needed = sum(int(java.getConf().getSizeAsMb(name)) for name in names)
        least = int(java.hadoopConfiguration().getInt("yarn.scheduler.minimum-allocation-mb", 1024))
        return -(-needed // least) * least

    def _master_pages(self) -> Iterator[dict[str, Any]]:
        """Yield what the web page of each master says, as JSON, if this host may read it.

        The port of the page is in no setting of the driver, so the driver asks each master.
        """
        for master in self._config.execution.master.removeprefix("spark://").split(","):
            with suppress(Exception):  # Spark's messages are private, and the page may be closed
                host, _, port = master.partition(":")
                socket.create_connection((host, int(port)), _PAGE_SECONDS).close()
                url = f"http://{host}:{self._page_port(host, int(port))}/json/"
                yield httpx.get(url, timeout=_PAGE_SECONDS, trust_env=False).json()

    def _page_port(self, host: str, port: int) -> int:
        jvm, driver = self._session.sparkContext._jvm, self._session.sparkContext._jsc.sc()
        address = jvm.org.apache.spark.rpc.RpcAddress(host, port)
        environment = driver.schedulerBackend().rpcEnv()
        messages = "org.apache.spark.deploy.master.MasterMessages$BoundPorts"
        request = getattr(_class(jvm, f"{messages}Request$"), "MODULE$")
        tag = getattr(_class(jvm, "scala.reflect.ClassTag$"), "MODULE$")
        answers = tag.apply(jvm.java.lang.Class.forName(f"{messages}Response"))
        bound = environment.setupEndpointRef(address, "Master").askSync(request, answers)
        return int(bound.webUIPort())

    @property
    def _session(self) -> SparkSession:
        assert self._spark is not None, "the check application needs that Spark has started"
        return self._spark

    def close(self) -> None:
        """End the application, even while Spark starts. The master removes it with its driver."""
        self._quiet.close()
        if self._scratch is None:
            return
        from pyspark import SparkContext

        # A check that is late, or interrupted, may still use the JVM, whose end is then no error.
        logging.disable(logging.ERROR)
        if self._spark is not None:
            self._delete_pods()
            stopping = threading.Thread(target=self._spark.stop, name="stop Spark", daemon=True)
            stopping.start()
            stopping.join(_STOP_SECONDS)
        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.proc.kill()
            gateway.proc.wait()
        self._scratch.cleanup()

    def _delete_pods(self) -> None:
        """Delete the pods on Kubernetes, for which the end of Spark may have no time."""
        if self._config.execution.on_kubernetes:
            with suppress(Py4JError):
                delete_pods(self._session, [self._session.sparkContext.applicationId])


@contextmanager
def _stderr_in(file: Path) -> Iterator[None]:
    """Let a process that starts meanwhile write its stderr to ``file``."""
    kept = os.dup(2)
    with file.open("wb") as opened:
        os.dup2(opened.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _class(jvm: Any, name: str) -> Any:
    package = jvm
    for part in name.split("."):
        package = getattr(package, part)
    return package


def _explained(message: str) -> ClusterCheckFailed:
    """The error of a job that failed, from Spark's message, which has a stack."""
    lost = _LOST_TASK.search(message)
    if lost is None:
        reason = message.partition("\n")[0]
        return ClusterCheckFailed(f"Spark could not run a task: {reason}; look into Spark's logs")
    host, reason = lost.groups()
    return ClusterCheckFailed(
        f"the worker {host} could not run Python: {reason}; install the engine there at the path "
        "that it has on this host, and let the user of the worker run it"
    )
