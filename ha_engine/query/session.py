"""The one Spark session of the query process, with the settings that make its batches repeatable.

The session does not depend on any stream or query. ``check_java`` works without Spark.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from ha_engine.errors import JavaMissing, MasterUnavailable
from ha_engine.imports import gc_paused
from ha_engine.query.class_archive import installation
from ha_engine.query.kubernetes import KUBERNETES, Applications, kubernetes_settings, start_problem
from ha_engine.query.spark_home import lean_spark_home
from ha_engine.query.spark_logs import quiet_spark_logs
from ha_engine.query.yarn import YARN, use_installed_pyspark, yarn_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

log = structlog.get_logger(__name__)

JAVA_VERSION_MIN = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ADVICE = f"Spark needs Java {JAVA_VERSION_MIN} or newer; install it and set JAVA_HOME or PATH"
_LOGGING = Path(__file__).with_name("log4j2.properties").resolve()
_EXECUTOR_LOGGING = Path(__file__).with_name("executor_log4j2.properties").resolve()
_WORKER = Path(__file__).with_name("python_worker").resolve()
_STREAMING = "org.apache.spark.sql.execution.streaming"
_A_DAY = "86400s"
_JARS = "spark.jars"
_JVM_BYTES = 384 << 20
"""Memory of an executor's JVM beside its heap."""
_WORKER_BYTES = 256 << 20
"""Memory of a Python worker. Each core of an executor has one, and their daemon is another."""
_STOPPED = "Cannot call methods on a stopped SparkContext"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The executors of a cluster, and how they reach this driver.

    The driver listens on the address ``bind``, and the executors reach it at ``host``. ``memory``
    is the heap of an executor in bytes. On Kubernetes, ``image`` is that of the executors, and
    ``pod`` is the pod of the driver, or empty if it runs elsewhere.
    """

    secret: str = field(repr=False)
    bind: str
    host: str
    count: int = 2
    cores: int = 1
    memory: int = 1 << 30
    image: str = ""
    pod: str = ""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings for Spark from the sections ``query`` and ``execution`` of the config.

    ``heap`` is in bytes. ``spark`` has settings that add to the engine's own or override them.

    Only this process uses the directory ``scratch``. The start of Spark empties ``scratch``, since
    a killed Spark leaves files in it. If ``scratch`` is None, Spark uses the system's directory for
    temporary files. ``java_options`` are options of the JVM. ``jars`` have classes that the JVM
    needs besides Spark's. If ``cluster`` is None, this JVM runs the tasks.
    """

    master: str = "local[2]"
    heap: int = 1 << 30
    shuffle_partitions: int = 1
    state_store: str = "hdfs"
    spark: Mapping[str, str] = field(default_factory=dict)
    scratch: Path | None = None
    java_options: tuple[str, ...] = ()
    jars: tuple[Path, ...] = ()
    cluster: ClusterSettings | None = None

    @property
    def on_yarn(self) -> bool:
        return self.master == YARN

    @property
    def on_kubernetes(self) -> bool:
        return self.master.startswith(KUBERNETES)

    @property
    def in_containers(self) -> bool:
        """Whether each executor has a container of its own, with a limit of memory."""
        return self.on_yarn or self.on_kubernetes


def check_java() -> int:
    """The major version of the Java that Spark will start. Raises JavaMissing."""
    java = find_java()
    found = _VERSION.search(_version_text(java))
    if found is None or int(found[1]) < JAVA_VERSION_MIN:
        what = f"is version {found[1]}" if found else "reports no version"
        raise JavaMissing(f"{java} {what}: {_ADVICE}")
    return int(found[1])


def find_java() -> str:
    """The path of the Java that Spark will start. Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"at {java} (JAVA_HOME)" if home else "on the PATH"
        raise JavaMissing(f"there is no java {where}: {_ADVICE}")
    return java


def _version_text(java: str) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise JavaMissing(f"{java} does not start ({error}): {_ADVICE}") from error
    return done.stderr + done.stdout


def spark_conf(settings: SparkSettings) -> dict[str, str]:
    """All settings of Spark. Settings that no user may change come last."""
    return {
        **_quiet(settings),
        **_fast(settings),
        **_patient(),
        **({} if settings.cluster else _patient_in_one_jvm()),
        **_places(settings.scratch),
        **_of_containers(settings),
        **settings.spark,
        **_repeatable(),
        **(_cluster(settings.cluster) if settings.cluster else _private()),
        **_jars(settings),
        "spark.driver.defaultJavaOptions": " ".join(_java_options(settings)),
    }


def _java_options(settings: SparkSettings) -> list[str]:
    options = [
        "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        # After an OutOfMemoryError any batch may fail, although the batch is not the cause. The JVM
        # exits after an OutOfMemoryError, which is never mistaken for the failure of a batch.
        "-XX:+ExitOnOutOfMemoryError",
        # A thread samples counters for jstat twenty times a second, a fifth of an idle JVM's CPU
        # time. The tools jcmd and jstack work without these counters.
        "-XX:-UsePerfData",
    ]
    if settings.scratch is not None:
        options.append(f"-Djava.io.tmpdir={settings.scratch}")
    return [f'"{option}"' for option in (*options, *settings.java_options)]


def _places(scratch: Path | None) -> dict[str, str]:
    if scratch is None:
        return {}
    return {
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
    }


def _quiet(settings: SparkSettings) -> dict[str, str]:
    return {
        "spark.master": settings.master,
        "spark.app.name": "ha-engine",
        "spark.driver.memory": f"{settings.heap >> 20}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.structuredLogging.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "4",
    }


def _fast(settings: SparkSettings) -> dict[str, str]:
    return {
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.checkpointFileManagerClass": (
            f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.streaming.pollingDelay": "1ms",
        "spark.sql.streaming.stateStore.providerClass": _state_store(settings.state_store),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # The fault handler distinguishes a worker that crashed from a worker that was killed.
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    }


def _patient() -> dict[str, str]:
    """Raise Spark's time limits for work that only waits, on a busy host or for an executor."""
    return {
        "spark.python.authenticate.socketTimeout": _A_DAY,
        "spark.sql.broadcastTimeout": _A_DAY,
    }


def _patient_in_one_jvm() -> dict[str, str]:
    """Raise the time limits with which Spark's driver and executors watch each other.

    Driver and executor are one JVM, so neither of the two outlives the other. The JVM and a Python
    worker learn of each other's end from their socket.
    """
    return {
        "spark.network.timeout": _A_DAY,
        "spark.rpc.askTimeout": _A_DAY,
        "spark.rpc.lookupTimeout": _A_DAY,
        "spark.executor.heartbeatInterval": "60s",
    }


def _state_store(kind: str) -> str:
    name = "RocksDB" if kind == "rocksdb" else "HDFSBacked"
    return f"{_STREAMING}.state.{name}StateStoreProvider"


def installation_of(settings: SparkSettings) -> str:
    """A digest of the installation that a class archive depends on. Raises JavaMissing."""
    from pyspark.find_spark_home import _find_spark_home

    jars = Path(_find_spark_home(), "jars").glob("*.jar")
    own = (f"{key}={value}" for key, value in settings.spark.items())
    where = str(settings.scratch)  # contains the Spark home that the class path names
    return installation(Path(find_java()), jars, (str(settings.heap), where, *own))


def _repeatable() -> dict[str, str]:
    return {
        # Spark's batches without data depend on timing, so the engine plans empty batches by marks.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # Spark's default is the number of cores, and a table in a query's text has as many parts.
        "spark.default.parallelism": "2",
        "spark.python.worker.reuse": "true",
    }


def _private() -> dict[str, str]:
    """Let Spark listen on loopback only, and only for its own processes.

    Spark's RPC port deserialises Java objects, so every user of the host could run code in the JVM.
    With authentication, Spark makes a secret in memory at each start in local mode.
    """
    return {
        "spark.authenticate": "true",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }


def _shared_secret(settings: SparkSettings) -> str | None:
    """The secret of the masters and workers of a standalone cluster.

    On YARN and Kubernetes, Spark makes a secret for each application, which they give to the
    executors.
    """
    return settings.cluster.secret if settings.cluster and not settings.in_containers else None


def _of_containers(settings: SparkSettings) -> dict[str, str]:
    """Settings of the containers in which YARN or Kubernetes runs the executors."""
    cluster = settings.cluster
    if cluster is None or not settings.in_containers:
        return {}
    # A container that uses more memory than it asked for is killed, Python workers included.
    overhead = _JVM_BYTES + (cluster.cores + 1) * _WORKER_BYTES
    return {
        "spark.executor.memoryOverhead": f"{overhead >> 20}m",
        # Spark ends an application after some failures. By default it counts those of all days.
        "spark.executor.failuresValidityInterval": "1h",
        **(
            yarn_settings() if settings.on_yarn else kubernetes_settings(cluster.image, cluster.pod)
        ),
    }


def _jars(settings: SparkSettings) -> dict[str, str]:
    """The jars of the user, such as those of Spark's Kafka source, and of the engine."""
    jars = [*filter(None, [settings.spark.get(_JARS)]), *map(str, settings.jars)]
    return {_JARS: ",".join(jars)} if jars else {}


def _cluster(cluster: ClusterSettings) -> dict[str, str]:
    """Let the executors of a cluster run the tasks, with the rows of a shuffle in one order.

    Messages between driver and executors are authenticated and encrypted. The interpreter and the
    engine have the same path on each worker.
    """
    java_options = (
        "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={_EXECUTOR_LOGGING.as_uri()}",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        # Java writes native libraries to this directory and loads them from there, such as those of
        # zstd and RocksDB. Containers and many hosts forbid that in /tmp.
        "-Djava.io.tmpdir=.",
    )
    executors = {
        "instances": cluster.count,
        "cores": cluster.cores,
        "memory": f"{cluster.memory >> 20}m",
        "defaultJavaOptions": " ".join(f'"{option}"' for option in java_options),
    }
    return {
        **{f"spark.executor.{name}": str(value) for name, value in executors.items()},
        "spark.cores.max": str(cluster.count * cluster.cores),
        "spark.dynamicAllocation.enabled": "false",
        "spark.speculation": "false",
        "spark.driver.bindAddress": cluster.bind,
        "spark.driver.host": cluster.host,
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.shuffle.manager": "haengine.shuffle.OrderedShuffleManager",
        "spark.executorEnv.HA_ENGINE_PYTHON": sys.executable,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }


def start_spark(settings: SparkSettings, *modules: Path) -> SparkSession:
    """Start Spark and wait for its session; raises what StartingSpark does."""
    return StartingSpark(settings, *modules).session()


class StartingSpark:
    """Starts Java in a thread, so that the caller can import modules meanwhile.

    ``modules`` are directories from which Python functions of queries are imported.
    """

    def __init__(self, settings: SparkSettings, *modules: Path) -> None:
        _equip_workers(modules, settings.cluster.bind if settings.cluster else "127.0.0.1")
        if settings.on_yarn:
            use_installed_pyspark()
        self._home = ExitStack()
        scratch = settings.scratch
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            self._home.enter_context(lean_spark_home(scratch / "home"))
        self._conf = spark_conf(settings)
        self._applications: Applications | None = None
        if settings.on_kubernetes and scratch is not None:
            # The start empties ``scratch``, and the file must stay.
            self._applications = Applications(scratch.with_name(".kubernetes-applications"))
            self._conf["spark.app.id"] = self._applications.add()
        # Other users can read the arguments of a program, so Java gets the secret after its start.
        self._secret = _shared_secret(settings)
        self._java = self._launched()

    def _launched(self) -> Future[None]:
        from pyspark import SparkConf, SparkContext

        java = Future[None]()
        conf = SparkConf().setAll(list(self._conf.items()))
        launch = partial(SparkContext._ensure_initialized, conf=conf)
        # The thread is a daemon, so that an interrupted process need not wait for Java.
        threading.Thread(target=_fulfil, args=(java, launch), name="Java", daemon=True).start()
        return java

    def session(self, java_started: Callable[[], None] = lambda: None) -> SparkSession:
        """Return Spark's session with the journal source registered.

        ``session`` calls ``java_started`` once the JVM answers. Raises JavaMissing and
        MasterUnavailable.
        """
        with gc_paused():
            # PySpark imports pyspark.testing.utils and pandas at its first call into Java. An
            # import while Java still starts saves time.
            import pyspark.testing.utils  # noqa: F401
            from pyspark.sql import SparkSession

            from ha_engine.query.source import JournalSource

        quiet_spark_logs()
        with self._home:
            _wait_for(self._java)
            java_started()
            # At its start, Java added the jars of spark.jars.packages to those of spark.jars.
            conf = {name: value for name, value in self._conf.items() if name != _JARS}
            if self._secret:
                conf["spark.authenticate.secret"] = self._secret
            with _explained(self._conf["spark.master"]):
                spark = SparkSession.builder.config(map=conf).getOrCreate()
        register_source(spark, JournalSource)
        if self._applications is not None:
            delete = partial(self._applications.delete_former, spark)
            threading.Thread(target=delete, name="delete pods", daemon=True).start()
        return spark


def _fulfil(future: Future[None], work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)


def _wait_for(java: Future[None]) -> None:
    """Wait until the JVM answers. Raises JavaMissing if a missing Java explains the failure."""
    from pyspark.errors import PySparkRuntimeError

    try:
        java.result()
    except PySparkRuntimeError:
        check_java()
        raise


@contextmanager
def _explained(master: str) -> Iterator[None]:
    """Say why Spark stopped while it started. Spark itself says only that it was stopped."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        reason = str(error.java_exception.getMessage()).partition("\n")[0]
        if master.startswith(KUBERNETES):
            raise MasterUnavailable(start_problem(error)) from error
        if master == YARN:
            raise MasterUnavailable(
                f"YARN did not start Spark's application ({reason}); check that its programs run "
                "and reach this host, and look into the application's logs in YARN"
            ) from error
        if _STOPPED not in reason:
            raise
        raise MasterUnavailable(
            f"no master of {master} accepted Spark's driver; check that a master runs, that this "
            "host reaches it, and that execution.secret is its spark.authenticate.secret"
        ) from error


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register ``source`` with a map of environment variables that several threads may write.

    Spark's own map is a HashMap, which fails as follows. 1. Spark keeps one map for all workers of
    a source. 2. Each query that starts puts its variables into the map, in its own thread. 3. Two
    threads that write at once may leave the HashMap with a wrong count. 4. The wrong count makes
    every task of every query fail with OptionalDataException until the JVM ends.
    """
    context = spark.sparkContext
    plain = context.environment
    context.environment = context._jvm.java.util.concurrent.ConcurrentHashMap(plain)
    try:
        spark.dataSource.register(source)
    finally:
        context.environment = plain


def _equip_workers(modules: tuple[Path, ...], listen: str) -> None:
    """Set the environment that Spark's workers inherit. Spark listens on the address ``listen``.

    Spark's workers must run the same Python as this process and import the same modules. The
    setting ``spark.pyspark.python`` does not reach the workers. Without the variable PYSPARK_PYTHON
    the workers run the first ``python3`` on the PATH, which may be of another version.
    """
    for directory in map(str, modules):
        if directory not in sys.path:
            sys.path.append(directory)
    os.environ["PYSPARK_PYTHON"] = _worker_program()
    os.environ["HA_ENGINE_PYTHON"] = sys.executable
    # The web interface of Spark, which a user may enable, listens on this address.
    os.environ["SPARK_LOCAL_IP"] = listen
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    # A module named pyspark_* may be a data source. To look for data sources, Spark starts another
    # worker, but only if the command in PYSPARK_DRIVER_PYTHON exists. The engine does not use
    # PYSPARK_DRIVER_PYTHON otherwise.
    may_be = any(name.startswith("pyspark_") for path in sys.path for name in _names_in(path))
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable if may_be else "no-module-is-a-data-source"


def _worker_program() -> str:
    """The program of Spark's Python workers, which connects before it imports (see ``worker``).

    If the program is not executable, Spark's workers start as plain Python.
    """
    if os.access(_WORKER, os.X_OK):
        return str(_WORKER)
    log.warning("Spark's Python workers may connect too late", not_executable=str(_WORKER))
    return sys.executable


def _names_in(path: str) -> list[str]:
    try:
        return os.listdir(path or ".")
    except OSError:
        return []
