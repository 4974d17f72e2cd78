"""Spark's JVM as a child process: whether it works, and why it does not."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from ha_engine.errors import DriverRemoved, HostKilled, QueryProcessFailed
from ha_engine.query.failure import JVM_OUT_OF_MEMORY
from ha_engine.query.yarn import YARN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEATH_SECONDS_MAX = 0.5
"""Time in which a dying JVM exits: it closes its sockets before its exit can be seen."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The executors of a driver, and whether a master answers and knows its application.

    On YARN the master is Spark's ApplicationMaster. YARN starts another one if it ends
    (``master_returns``), or Spark stops the driver. On Kubernetes the driver is its own master,
    which makes pods again once the API answers.
    """

    application: str
    live: int
    wanted: int
    master_connected: bool
    master_returns: bool

    @property
    def is_lost(self) -> bool:
        """Whether the driver has no executor, and no master that would ever start one.

        A standalone master that restarts without its state knows no driver, and lets the workers
        end the executors. The driver would wait for ever, since it does not register again.
        """
        return not (self.live or self.master_connected or self.master_returns)


class Jvm:
    """The JVM process behind PySpark's gateway, with Spark's driver."""

    def __init__(self, spark: SparkSession) -> None:
        self._process: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc
        self._driver = spark.sparkContext._jsc.sc()
        self._classes = spark.sparkContext._jvm
        self._application = str(spark.sparkContext.applicationId)
        self._on_yarn = spark.sparkContext.master == YARN

    @property
    def pid(self) -> int:
        return self._process.pid

    def lives(self) -> bool:
        """Wait at most DEATH_SECONDS_MAX for the JVM to end; return whether its driver works."""
        try:
            self._process.wait(DEATH_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return not self.driver_ended()
        return False

    def driver_ended(self) -> bool:
        """Whether the JVM ended, or Spark stopped its driver.

        Spark stops the driver when the master removes the application. The JVM lives on then, but
        can run no query.
        """
        try:
            return bool(self._driver.isStopped())
        except Py4JError:
            return True

    def cluster(self, executors: int) -> ClusterState:
        """Look at the cluster. ``executors`` is their wanted number, which the call repeats to the
        master, since Spark has no other question that a master answers."""
        try:
            live = int(self._driver.getExecutorIds().size())
        except Py4JError:
            live = 0
        try:
            nowhere = self._classes.PythonUtils.toScalaMap(self._classes.java.util.HashMap())
            connected = bool(self._driver.requestTotalExecutors(executors, 0, nowhere))
        except Py4JError:
            connected = False  # the driver's connection to the master is closed
        return ClusterState(self._application, live, executors, connected, self._on_yarn)

    def failure(self) -> QueryProcessFailed:
        """Why the JVM or its driver ended, as the error with which the query process ends."""
        match self._process.poll():
            case None:
                return DriverRemoved(
                    "Spark's driver has no place on the cluster any more; the master ended, or "
                    "restarted without spark.deploy.recoveryMode, or removed the application since "
                    "no worker could start an executor, or YARN ended the application: look into "
                    "the logs of master and workers, or of the application in YARN"
                )
            case code if code == -signal.SIGKILL:
                return HostKilled("Spark's JVM was killed by SIGKILL; the host may lack memory")
            case code if code == JVM_OUT_OF_MEMORY:
                return QueryProcessFailed("Spark's JVM ran out of memory; raise query.heap")
            case int(code) if code < 0:
                return QueryProcessFailed(f"Spark's JVM was killed by {signal.Signals(-code).name}")
            case code:
                return QueryProcessFailed(f"Spark's JVM ended with exit code {code}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
