"""All checks of ``ha-engine cluster check``, in the order in which they run.

The checks change nothing that runs. They start a Spark application of their own, and write into a
directory of their own below ``execution.checkpoint``; both are gone when ``planned_cluster`` ends.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ha_engine.auth import token_of
from ha_engine.config import Config
from ha_engine.config.execution import ExecutionConfig
from ha_engine.config.quantities import split_address
from ha_engine.doctor import executor_probe, executors, kafka_logs, tools
from ha_engine.doctor.certificates import certificate
from ha_engine.doctor.check import Check, Say
from ha_engine.doctor.executors import Report
from ha_engine.doctor.finding import Finding, failed, ok, skipped
from ha_engine.doctor.object_storage import ObjectStorageCheck
from ha_engine.doctor.plan import application, check_of, config_check, read_config
from ha_engine.doctor.range_service import Services, services_of, serving
from ha_engine.doctor.spark_application import WAIT_SECONDS, SparkApplication
from ha_engine.errors import EngineError
from ha_engine.jvm import engine_jar
from ha_engine.node.check import read_application
from ha_engine.query.application import PythonFunction, StreamApplication, StreamSpec
from ha_engine.query.kubernetes import KUBERNETES
from ha_engine.query.yarn import hadoop_config
from ha_engine.web.certificates import presented

CONNECT_SECONDS = 5.0
START_SECONDS = 120.0
"""Spark asks the masters, or Hadoop's client YARN, for a minute before it gives up."""
JOB_SECONDS = 120.0
_DIRECTORY = ".cluster-check-"


@contextmanager
def planned_cluster(path: Path | None, environ: Mapping[str, str]) -> Iterator[list[Check]]:
    """Yield all checks for the config of ``path`` and ``environ``; see ``plan.planned``."""
    config, problem = read_config(path, environ)
    found = _application(config) if problem is None else None
    modules = found.directories if found else (config.application.resolve().parent,)
    run = _Run(config, SparkApplication(config, *modules), found)
    logged = list(_logged(found)) if found else []
    try:
        yield [
            config_check(path, problem),
            check_of("application", partial(application, config), "config"),
            check_of("cluster", partial(_configured, config, bool(logged)), "config"),
            *(_on_cluster(config, run) if config.execution.on_cluster else ()),
            *_of_logs(config, logged),
        ]
    finally:
        run.close()


def _logged(application: StreamApplication) -> Iterator[tuple[StreamSpec, Path]]:
    """Each stream with a log of its own, and the directory of its application."""
    for stream in application.streams.values():
        if stream.log is not None:
            yield stream, application.directory_of(stream)


def _of_logs(config: Config, logged: list[tuple[StreamSpec, Path]]) -> Iterator[Check]:
    for stream, directory in logged:
        run = partial(kafka_logs.log, config, stream, directory)
        yield check_of(f"kafka/{stream.name}", run, "application")
    if logged:
        yield check_of("kafka/jars", partial(kafka_logs.jars, config.query.spark), "config")


def _application(config: Config) -> StreamApplication | None:
    """The application, or None if the check ``application`` will say why it is wrong."""
    try:
        return read_application(config)
    except EngineError:
        return None


def _configured(config: Config, has_log: bool) -> Finding:
    execution = config.execution
    if execution.on_cluster:
        return ok(f"execution.master is {execution.master}")
    text = f"execution.master is {execution.master}, so the queries run on this host"
    if has_log:
        return skipped(text)
    return failed(
        f"{text}, and no stream has a log of type kafka",
        "set execution.master to spark://HOST:PORT, yarn or k8s://URL, and execution.executors, "
        "checkpoint, listen and secret, as docs/CLUSTER.md shows; then run this command again",
    )


def _on_cluster(config: Config, run: _Run) -> Iterator[Check]:
    objects = config.checkpoint_url is not None
    yield check_of("java", tools.java)
    yield check_of("spark", tools.spark)
    yield check_of("jar", lambda: ok(str(engine_jar())))
    for one in presented(config):
        if one.section == "execution.tls":
            yield check_of(
                f"certificate/{one.section}", partial(certificate, config, one), "config"
            )
    writes = run.objects.this_host if objects else run.make_directory
    yield check_of("checkpoint", writes, "cluster")
    yield check_of("masters", partial(_masters, config.execution), "cluster")
    needed = ("masters", "jar", "java", "spark", "application")
    yield Check("accepted", run.start, needed, START_SECONDS)
    yield check_of("workers", run.workers, "accepted")
    yield Check("executors", run.await_executors, ("accepted",), 2 * WAIT_SECONDS)
    yield Check("executors/software", lambda _: run.software(), ("executors",), JOB_SECONDS)
    # An executor with other software may still reach the nodes and the directory.
    yield check_of("executors/modules", run.modules, "executors")
    yield check_of("executors/nodes", run.nodes, "executors")
    share = run.objects.executors if objects else run.checkpoint
    yield check_of("executors/checkpoint", share, "executors", "checkpoint")
    yield check_of("executors/clocks", run.clocks, "executors")


def _masters(execution: ExecutionConfig) -> Finding:
    """Whether a master listens, of which several may be standbys, or the API of Kubernetes does.

    On YARN, whether this host knows its addresses. Raises HadoopConfigMissing.
    """
    if execution.on_yarn:
        return ok(f"{hadoop_config()} has the addresses of YARN")
    if execution.on_kubernetes:
        return _kubernetes(execution.master.removeprefix(KUBERNETES))
    problems = {}
    addresses = execution.master.removeprefix("spark://").split(",")
    for address in addresses:
        try:
            socket.create_connection(split_address(address), CONNECT_SECONDS).close()
        except OSError as error:
            problems[address] = str(error)
    if len(problems) < len(addresses):
        silent = f"; no answer from {', '.join(problems)}" if problems else ""
        return ok(f"{', '.join(one for one in addresses if one not in problems)} answers{silent}")
    return failed(
        "no master answers: " + "; ".join(f"{one}: {why}" for one, why in problems.items()),
        "start a master as docs/CLUSTER.md shows, open its port for this host, or correct "
        "execution.master",
    )


def _kubernetes(url: str) -> Finding:
    api = urlsplit(url if "://" in url else f"https://{url}")
    port = api.port or {"http": 80}.get(api.scheme, 443)
    try:
        socket.create_connection((str(api.hostname), port), CONNECT_SECONDS).close()
    except OSError as error:
        return failed(
            f"the API of Kubernetes at {url} does not answer: {error}",
            "correct execution.master; inside a pod it is k8s://https://kubernetes.default.svc",
        )
    return ok(f"the API of Kubernetes at {url} answers")


class _Run:
    """The check application and what its executors have reported."""

    def __init__(
        self, config: Config, spark: SparkApplication, application: StreamApplication | None
    ) -> None:
        self._config, self._spark, self._application = config, spark, application
        self._directory: Path | None = None
        self._content = secrets.token_hex(16)
        self._services = Services({}, {}, "")
        self._reports: list[Report] = []
        self.objects = ObjectStorageCheck(config, spark)

    def start(self, say: Say) -> Finding:
        say("starts Spark")
        application, execution = self._spark.start(), self._config.execution
        if execution.on_kubernetes:
            return ok(f"Kubernetes lets this node make the application {application}")
        by = "YARN accepted" if execution.on_yarn else "the master accepted the secret, and"
        return ok(f"{by} the application {application}")

    def workers(self) -> Finding:
        execution = self._config.execution
        if execution.on_kubernetes:
            return skipped("Kubernetes does not say how many executors have room")
        masters = 1 if execution.on_yarn else 0
        return executors.capacity(self._spark.workers(), execution.executors, masters)

    def await_executors(self, say: Say) -> Finding:
        live, wanted = self._spark.await_executors(say), self._config.execution.executors.count
        some_miss = live < wanted and self._config.execution.on_kubernetes
        pods = self._spark.pods() if some_miss else None
        return executors.enough(live, wanted, WAIT_SECONDS, pods)

    def make_directory(self) -> Finding:
        """Write the file that each executor must find."""
        root = self._config.execution.checkpoint
        assert isinstance(root, Path), "the config of a cluster names a directory"
        if not root.is_dir():
            return failed(
                f"{root} is no directory on this host",
                "mount the directory there on this host and on each worker",
            )
        directory = root / f"{_DIRECTORY}{secrets.token_hex(8)}"
        directory.mkdir()
        self._directory = directory
        (directory / executor_probe.DRIVER_FILE).write_text(self._content)
        return ok(f"this host writes to {root}")

    def software(self) -> Finding:
        self._services = services_of(self._config)
        with serving(self._config, self._services.group_id) as ca:
            probe = partial(
                executor_probe.look,
                modules=self._module_names(),
                nodes=dict.fromkeys(self._services.names, self._services.group_id),
                token=token_of(self._config.execution.secret.get_secret_value()),
                ca=ca,
                directory=str(self._directory),
                content=self._content,
            )
            self._reports = [Report(**one) for one in self._spark.ask(probe)]
        return executors.software(self._reports, executor_probe.versions())

    def _module_names(self) -> list[str]:
        queries = self._application.queries.values() if self._application else ()
        functions = (query.text for query in queries)
        return sorted({one.module for one in functions if isinstance(one, PythonFunction)})

    def modules(self) -> Finding:
        if not self._reports:
            return _UNASKED
        directories = self._application.directories if self._application else ()
        named = " and ".join(map(str, directories))
        return executors.modules(self._reports, self._module_names(), named)

    def nodes(self) -> Finding:
        if not self._reports:
            return _UNASKED
        return executors.nodes(self._reports, self._services.names, self._services.unasked)

    def checkpoint(self) -> Finding:
        if not self._reports or self._directory is None:
            return _UNASKED
        problems: dict[str, str] = {}
        owners: dict[str, int] = {}
        for report in self._reports:
            file = self._directory / report.file
            try:
                owners[report.file] = file.stat().st_uid
                if file.read_text() != self._content:
                    problems[report.file] = f"{file} has other content"
            except OSError as error:
                problems[report.file] = str(error)
        ours = (self._directory / executor_probe.DRIVER_FILE).stat().st_uid
        return executors.checkpoint(self._reports, problems, owners, ours)

    def clocks(self) -> Finding:
        if not self._reports:
            return _UNASKED
        before = time.time()
        readings: list[dict[str, Any]] = self._spark.ask(executor_probe.now)
        return executors.clocks(readings, before, time.time())

    def close(self) -> None:
        if self._config.checkpoint_url is not None:
            with suppress(EngineError):  # the check has said that the storage fails
                self.objects.close()
        self._spark.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


_UNASKED = skipped("no executor has answered")
