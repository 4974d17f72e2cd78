"""Run the commands of the node process on a running Spark, until the stream of commands ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from ha_engine import __version__
from ha_engine.errors import DriverRemoved, EngineError, HostKilled, ObjectStorageFailed
from ha_engine.query.application_versions import ApplicationVersions
from ha_engine.query.checkpoints import Checkpoints, CheckpointsOnDisk
from ha_engine.query.class_archive import AnyArchive
from ha_engine.query.failure import one_line
from ha_engine.query.host import MemoryKills
from ha_engine.query.jvm import Jvm
from ha_engine.query.link import Address, NodeLink, Superseded, is_refusal, open_channel
from ha_engine.query.parent_watchdog import ProcessId, end_with_parent
from ha_engine.query.reports import Reports
from ha_engine.query.runner import QueryRunner
from ha_engine.query.session import ClusterSettings
from ha_engine.query.settings import Settings
from ha_engine.query.start_report import READY, StartReport
from ha_engine.query.weight import Weight
from ha_engine.v1 import local_pb2 as pb
from ha_engine.v1.local_pb2_grpc import LocalStub

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

STOP_SECONDS_MAX = 3.0
HALT_SECONDS_MAX = 1.0
ATTEND_AGAIN_SECONDS = 0.2
HALT_QUERY_SECONDS_MAX = 60.0
"""A query that Spark does not stop blocks all later commands, so the process then ends."""
DRIVER_LOOK_SECONDS = 5.0
FAILED_EXIT_CODE = 1
_NO_FAULT_OF_A_BATCH = (HostKilled, DriverRemoved)


class Attendance:
    """The node process's stream of commands, which is reopened until ``end`` is called."""

    def __init__(self, address: Address, channel: grpc.Channel) -> None:
        self._stub = LocalStub(channel)
        self._request = pb.AttendRequest(incarnation=address.incarnation, release=__version__)
        self._ended = threading.Event()
        self._call: Any = None

    def commands(self) -> Iterator[pb.QueryCommand]:
        """Yield commands until the node process ends the stream or ``end`` is called.

        Raises Superseded.
        """
        while not self._ended.is_set():
            self._call = call = self._stub.Attend(self._request)
            if self._ended.is_set():
                return
            try:
                yield from call
                return
            except grpc.RpcError as error:
                if is_refusal(error):
                    raise Superseded("the node refused this query process") from error
            self._ended.wait(ATTEND_AGAIN_SECONDS)

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def end(self) -> None:
        self._ended.set()
        if self._call is not None:
            self._call.cancel()


class QueryProcess:
    """The parts of the query process that live as long as Spark."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        classes: AnyArchive,
        weight: Weight,
        report: StartReport,
        kills: MemoryKills,
    ) -> None:
        address = Address(settings.socket, settings.incarnation)
        self._channel = open_channel(address)
        self._attendance = Attendance(address, self._channel)
        self._failure: BaseException | None = None
        self._spark, self._classes, self._report = spark, classes, report
        self._jvm = Jvm(spark)
        self._checkpoints = checkpoints_of(settings, spark)
        link = NodeLink(address, channel=self._channel)
        reports = Reports(link, self._fail)
        self._watch_jvm(settings.spark.cluster, reports)
        self._listen(reports, weight)
        self._runner = QueryRunner(
            spark,
            ApplicationVersions(settings.application),
            link,
            reports,
            settings.directories.outbox,
            self._checkpoints,
            self._fail,
            self._jvm,
            kills,
            read_parallelism=settings.read_parallelism,
        )

    def serve(self) -> int:
        """Run the commands of the node process, and return the exit code."""
        signal.signal(signal.SIGTERM, lambda *_: self._asked_to_end())
        self._report.step(READY)
        try:
            for command in self._attendance.commands():
                self._obey(command)
        except Superseded as error:
            self._fail(error)
        self._attendance.end()
        failure = self._failure
        _exit_at_the_latest(_exit_code(failure))
        if failure is None:
            self._leave_checkpoints_whole()
        else:
            log.error("query process ends", reason=str(failure))
            self._report.end(str(failure), by_host=isinstance(failure, _NO_FAULT_OF_A_BATCH))
        self._channel.close()
        return _exit_code(failure)

    def _asked_to_end(self) -> None:
        _exit_at_the_latest(0)
        self._attendance.end()

    def _obey(self, command: pb.QueryCommand) -> None:
        match command.WhichOneof("command"):
            case "run":
                self._report.step(f"starting query {command.run.query}")
                self._runner.run(command.run)
                self._report.step(READY)
            case "halt":
                with exit_if_late(HALT_QUERY_SECONDS_MAX, partial(self._not_halted, command.halt)):
                    self._runner.halt(command.halt.query)
                self._runner.report_halt(command.halt.query)

    def _not_halted(self, halt: pb.HaltQuery) -> None:
        reason = f"Spark did not stop query {halt.query} within {HALT_QUERY_SECONDS_MAX:g} s"
        log.error("query process ends", reason=reason)
        self._report.end(reason, by_host=True)

    def _watch_jvm(self, cluster: ClusterSettings | None, reports: Reports) -> None:
        end_with_parent(ProcessId.of(self._jvm.pid), end=self._jvm_ended)
        if cluster is not None:
            watch = partial(self._watch_driver, cluster.count, reports)
            threading.Thread(target=watch, name="watch driver", daemon=True).start()

    def _watch_driver(self, executors: int, reports: Reports) -> None:
        """End this process if Spark's driver has lost the cluster, since idle queries go on."""
        while not self._jvm.driver_ended():
            state = self._jvm.cluster(executors)
            reports.executors(state)
            if state.is_lost:
                break
            time.sleep(DRIVER_LOOK_SECONDS)
        self._jvm_ended()

    def _jvm_ended(self) -> None:
        self._jvm.lives()
        self._fail(self._jvm.failure())

    def _listen(self, reports: Reports, weight: Weight) -> None:
        from ha_engine.query.progress import ProgressListener
        from ha_engine.query.skew import SkewWatch

        def ended() -> None:
            self._classes.batch_ended(self._jvm.pid)
            weight.batch_ended()

        self._spark.streams.addListener(ProgressListener(reports, ended, SkewWatch(self._spark).of))

    def _fail(self, error: BaseException) -> None:
        """Keep the first error and end the process.

        Later errors are only consequences of the first.
        """
        if not self._attendance.has_ended:
            self._failure = error
            self._attendance.end()

    def _leave_checkpoints_whole(self) -> None:
        """Halt the queries, kill the JVM and mark the checkpoints clean.

        A batch may wait for a node process that has ended, so halting takes at most
        HALT_SECONDS_MAX. Killing the JVM does not harm the checkpoints unless the host crashes too.
        """
        halting = threading.Thread(target=self._halt, name="halt all", daemon=True)
        halting.start()
        halting.join(HALT_SECONDS_MAX)
        self._jvm.kill()
        self._checkpoints.mark_clean()

    def _halt(self) -> None:
        try:
            self._runner.halt_all()
        except Exception as error:
            log.debug("queries not halted", reason=str(error))


def _exit_code(failure: BaseException | None) -> int:
    match failure:
        case None:
            return 0
        case EngineError():
            return failure.exit_code
        case _:
            return FAILED_EXIT_CODE


@contextmanager
def exit_if_late(seconds: float, late: Callable[[], None]) -> Iterator[None]:
    """Call ``late`` and exit if the context takes more than ``seconds``, whatever it waits for."""

    def end() -> None:
        late()
        os._exit(FAILED_EXIT_CODE)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _exit_at_the_latest(code: int) -> None:
    """Exit after STOP_SECONDS_MAX, even if threads still run.

    A checkpoint that was not marked clean before the exit costs a replay if the host reboots.
    """
    timer = threading.Timer(STOP_SECONDS_MAX, os._exit, (code,))
    timer.daemon = True
    timer.start()


def checkpoints_of(settings: Settings, spark: SparkSession) -> Checkpoints:
    """The checkpoints of this node's queries."""
    directories = settings.directories
    if directories.objects is not None:
        from ha_engine.query.object_checkpoints import Bucket, ObjectCheckpoints

        bucket = Bucket(directories.objects, settings.spark.spark)
        delete = partial(_delete_by_hadoop, spark)
        return ObjectCheckpoints(bucket, settings.log.node, delete_folder=delete)
    if settings.spark.cluster is None:
        return CheckpointsOnDisk(directories.checkpoints)
    # A query that starts again in this process must not meet its own earlier tasks either.
    starts = count(1)
    return CheckpointsOnDisk(
        directories.checkpoints, lambda: f"{settings.incarnation}-{next(starts)}"
    )


def _delete_by_hadoop(spark: SparkSession, url: str) -> None:
    """Delete a folder and all below it. Raises ObjectStorageFailed."""
    from py4j.protocol import Py4JError

    context = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(url)
    try:
        path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)
    except Py4JError as error:
        raise ObjectStorageFailed(
            f"{url} cannot be deleted: {one_line(error)}; give the credentials the right to delete "
            "objects, and delete the folder by hand"
        ) from error
