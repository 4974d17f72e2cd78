"""Starts, watches and stops the streaming queries, and reports their failures to the node.

The runner does not restart a failed query, because the node decides whether the query runs again
(RULES.md#r22). The other queries continue.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from ha_engine.errors import DiskFailed, Fenced, QueryProcessFailed, SinkUnavailable, StateLost
from ha_engine.jvm import engine_jar
from ha_engine.query.application import PythonFunction, QuerySpec, StreamSpec
from ha_engine.query.application_versions import ApplicationVersions, PythonChanged
from ha_engine.query.bucket_writer import BucketWriter
from ha_engine.query.checkpoints import Checkpoints
from ha_engine.query.failure import (
    detail,
    disk_failure,
    is_of_the_host,
    is_useless_checkpoint,
    is_worker_death,
    one_line,
)
from ha_engine.query.host import MemoryKills
from ha_engine.query.jvm import Jvm
from ha_engine.query.kafka_marks import KafkaMarks
from ha_engine.query.link import NodeLink, Superseded
from ha_engine.query.object_path import CheckpointPath
from ha_engine.query.offsets import add_sources, unfinished_mark
from ha_engine.query.outbox_writer import OutboxPlace, OutboxWriter, clear_pending
from ha_engine.query.parent_watchdog import ProcessId
from ha_engine.query.plan import PlannedQuery, plan_query, sources_of
from ha_engine.query.reports import Reports
from ha_engine.query.source_reader import SourceOptions
from ha_engine.query.state_limit import StateLimit
from ha_engine.query.state_partitions import (
    FIXED,
    SETTING,
    Partitions,
    RescaleDue,
    partitions_after,
    repartition,
)
from ha_engine.query.watermarks import OneWatermark, Watermarks
from ha_engine.v1 import local_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """A started query, and the command that started it."""

    command: pb.RunQuery
    planned: PlannedQuery
    writer: OutboxWriter
    checkpoint: CheckpointPath
    streaming: StreamingQuery


class QueryRunner:
    """The queries that run in this process.

    The runner calls ``ended`` with an error after which this process must end. ``read_parallelism``
    must not depend on the host, because the distribution of rows to tasks affects floating-point
    sums (RULES.md#i6). ``outbox`` is the directory of the outbox.
    """

    def __init__(
        self,
        spark: SparkSession,
        versions: ApplicationVersions,
        link: NodeLink,
        reports: Reports,
        outbox: Path,
        checkpoints: Checkpoints,
        ended: Callable[[BaseException], None],
        jvm: Jvm,
        kills: MemoryKills,
        *,
        read_parallelism: int,
    ) -> None:
        self._spark, self._versions = spark, versions
        self._read_parallelism = read_parallelism
        self._link, self._reports = link, reports
        self._outbox, self._checkpoints = outbox, checkpoints
        self._ended, self._jvm, self._kills = ended, jvm, kills
        self._me = ProcessId.of_this()
        self._running: dict[str, RunningQuery] = {}
        self._kafka_marks = KafkaMarks(link)
        # The shadow that runs, or ran last, and the versions of its application.
        self._shadow: tuple[str, ApplicationVersions] | None = None
        self._lock = threading.Lock()
        # Held while a query starts or stops, so that only the newest command has an effect.
        self._changing = threading.RLock()
        self._shuffle_partitions = spark.conf.get(SETTING)

    # -- commands of the node ----------------------------------------------------------------------

    def run(self, command: pb.RunQuery) -> None:
        """Start a query, unless the same command started it before.

        A failure of the query is reported to the node process and not raised.

        Raises Superseded.
        """
        running = self._running.get(command.query)
        if running is not None and running.command == command:
            # A restarted node process repeats its commands, and needs the schema of the query
            # again.
            self._stop_if_refused(running)
            return
        with self._changing:
            self.halt(command.query)
            try:
                self._start(command)
            except Superseded:
                raise
            except (DiskFailed, PythonChanged) as error:
                self._ended(error)
            except Exception as error:
                self._blame(command, 0, error)

    def halt(self, query: str) -> None:
        with self._changing:
            with self._lock:
                running = self._running.pop(query, None)
            if running is not None:
                running.streaming.stop()

    def report_halt(self, query: str) -> None:
        """Report that a query no longer writes to its checkpoint."""
        incarnation = self._link.address.incarnation
        request = pb.ReportQueryRequest(incarnation=incarnation, query=query, halted=pb.Empty())
        self._link.call(self._link.stub.ReportQuery, request)

    def halt_all(self) -> None:
        for query in list(self._running):
            self.halt(query)

    # -- a query's life ----------------------------------------------------------------------------

    def _start(self, command: pb.RunQuery) -> None:
        planned = self._plan(command)
        if self._refused(command, planned):
            return
        if command.adopts:
            self.halt(command.adopts)
            self._checkpoints.adopt(
                command.query, command.adopts, command.adopts_lineage, command.lineage
            )
        checkpoint = self._checkpoints.open(
            command.query, command.lineage, must_resume=command.must_resume
        )
        partitions = self._scale(command)
        if command.epoch:
            # Last, since a checkpoint that was renewed or rescaled has no epoch.
            self._checkpoints.offer(command.query, command.epoch)
        place = OutboxPlace(
            command.query,
            self._outbox,
            command.lineage,
            planned.spec.deterministic,
        )
        clear_pending(place)
        if planned.gets_sources:
            add_sources(checkpoint, sources_of(planned.frame))
        buckets = (
            BucketWriter(self._link, command.query, command.epoch) if command.buckets else None
        )
        limit = StateLimit(planned.spec.keys_max)
        watermarks = self._watermarks(planned, checkpoint)
        writer = OutboxWriter(
            place, checkpoint, self._link, self._reports, buckets, partitions, limit, watermarks
        )
        # Spark copies the session's settings when a query starts.
        self._spark.conf.set(SETTING, partitions.number or self._shuffle_partitions)
        limit.streaming = streaming = self._start_streaming(planned, writer, checkpoint)
        running = RunningQuery(command, planned, writer, checkpoint, streaming)
        with self._lock:
            self._running[command.query] = running
        threading.Thread(
            target=self._watch, args=(running,), name=f"watch {command.query}", daemon=True
        ).start()
        log.info("query started", query=command.query, after_mark=command.initial_mark)

    def _scale(self, command: pb.RunQuery) -> Partitions:
        """Give the state the partitions that the query's next batch needs."""
        if not command.partitions:
            return FIXED
        done = self._checkpoints.last_mark(command.query)
        partitions = partitions_after(
            command.initial_mark if done is None else done, command.partitions
        )
        if partitions.number is not None:
            change = partial(repartition, self._spark)
            self._checkpoints.rescale(command.query, partitions.number, change)
        return partitions

    def _watermarks(
        self, planned: PlannedQuery, checkpoint: CheckpointPath
    ) -> Watermarks | OneWatermark:
        """Return the object that keeps the streams' watermarks over a restart. Raises
        JarMissing."""
        if not planned.has_several_watermarks:
            return OneWatermark()
        engine_jar()
        return Watermarks(self._spark, planned.spec, checkpoint)

    def _plan(self, command: pb.RunQuery) -> PlannedQuery:
        if command.shadow_of:
            return self._plan_shadow(command)
        application = self._versions.holding(
            command.query,
            command.digest,
            Path(command.application) if command.application else None,
        )
        spec = application.queries[command.query]
        options = self._options_of(command, spec)
        return plan_query(self._spark, application, spec, options, self._kafka_marks)

    def _plan_shadow(self, command: pb.RunQuery) -> PlannedQuery:
        """Plan a shadow from its own application file, whose module may have the name of one of the
        live application."""
        if self._shadow is None or self._shadow[0] != command.query:
            self._shadow = command.query, ApplicationVersions(Path(command.application))
        application = self._shadow[1].holding(command.shadow_of, command.digest)
        spec = replace(application.queries[command.shadow_of], name=command.query)
        options = self._options_of(command, spec)
        module = spec.text.module if isinstance(spec.text, PythonFunction) else None
        former = sys.modules.get(module) if module else None
        try:
            return plan_query(self._spark, application, spec, options, self._kafka_marks)
        finally:
            if module and former is not None:
                sys.modules[module] = former
            elif module:
                sys.modules.pop(module, None)

    def _options_of(
        self, command: pb.RunQuery, spec: QuerySpec
    ) -> Callable[[StreamSpec], SourceOptions]:
        address = self._link.address
        return lambda stream: SourceOptions(
            socket=address.socket,
            incarnation=address.incarnation,
            query=command.query,
            stream=stream.name,
            schema=stream.arrow_schema,
            driver=self._me,
            lineage=command.lineage,
            initial_mark=command.initial_mark,
            initial_sequence=command.initial_sequence,
            parallelism=self._read_parallelism,
            tasks=spec.read_tasks,
        )

    def _start_streaming(
        self, planned: PlannedQuery, writer: OutboxWriter, checkpoint: CheckpointPath
    ) -> StreamingQuery:
        stream = planned.frame.writeStream.queryName(planned.spec.name)
        stream = stream.outputMode(planned.spec.output_mode.value)
        stream = stream.option("checkpointLocation", checkpoint.absolute().as_uri())
        return stream.foreachBatch(writer).start()

    def _watch(self, running: RunningQuery) -> None:
        try:
            running.streaming.awaitTermination()
            error: Exception = QueryProcessFailed(
                "Spark ended the query without a request; look for the cause in Spark's log"
            )
        except Exception as failure:
            error = running.writer.error or failure
        self._failed(running, error)

    def _failed(self, running: RunningQuery, error: BaseException) -> None:
        name = running.command.query
        if isinstance(error, RescaleDue):
            self._start_again(running)
            return
        with self._lock:
            if self._running.get(name) is not running:
                return
            del self._running[name]
        if isinstance(error, (Superseded, DiskFailed)):
            self._ended(error)
            return
        try:
            self._blame(running.command, self._batch_to_blame(running, error), error)
        except Exception as unreported:
            self._ended(unreported)

    def _start_again(self, running: RunningQuery) -> None:
        """Start a query after the last batch with its former number of partitions."""
        name = running.command.query
        with self._changing:
            if self._running.get(name) is not running:
                return
            self.halt(name)
            log.info("query rescales", query=name)
            try:
                self.run(running.command)
            except Superseded as error:
                self._ended(error)

    def _batch_to_blame(self, running: RunningQuery, error: BaseException) -> int:
        """Return the mark of the batch that failed, or 0 if no batch is to blame."""
        if is_useless_checkpoint(error):
            query, reason = running.command.query, one_line(error)
            log.error("checkpoint set aside", query=query, reason=reason)
            self._checkpoints.disown(query)
            return 0
        return unfinished_mark(running.checkpoint)

    def _blame(self, command: pb.RunQuery, number: int, error: BaseException) -> None:
        """Report a failure of the query. If the disk failed or the JVM died, end this process.

        No query is to blame for a failed disk or a dead JVM. The node process learns of a failed
        disk or a dead JVM from the end of this process.
        """
        if self._jvm.lives():
            if disk := disk_failure(error):
                self._ended(disk)
            else:
                self._report_failure(command, number, error)
        else:
            self._ended(self._jvm.failure())

    def _is_of_the_host(self, error: BaseException) -> bool:
        """Whether the host caused the failure.

        A worker's death without a reason counts as caused by the host only if the kernel killed a
        process for lack of memory.
        """
        # A sink that is away, or that another node has, is no fault of the batch either.
        if isinstance(error, StateLost | SinkUnavailable | Fenced):
            return True
        if is_of_the_host(error) or is_useless_checkpoint(error):
            return True
        return is_worker_death(error) and self._kills.rose()

    # -- reports -----------------------------------------------------------------------------------

    def _refused(self, command: pb.RunQuery, planned: PlannedQuery) -> str:
        report = pb.QueryPlanned(schema=planned.schema.serialize().to_pybytes())
        reply = self._report(command, planned=report)
        if reply.refused:
            log.warning("query refused", query=command.query, reason=reply.refused)
        return reply.refused

    def _stop_if_refused(self, running: RunningQuery) -> None:
        if self._refused(running.command, running.planned):
            self.halt(running.command.query)

    def _report_failure(self, command: pb.RunQuery, number: int, error: BaseException) -> None:
        reason = one_line(error)
        log.error("query failed", query=command.query, batch=number, reason=reason)
        failed = pb.QueryFailed(
            number=number,
            reason=reason,
            detail=detail(error),
            by_host=self._is_of_the_host(error),
        )
        self._report(command, failed=failed)

    def _report(
        self,
        command: pb.RunQuery,
        *,
        planned: pb.QueryPlanned | None = None,
        failed: pb.QueryFailed | None = None,
    ) -> pb.ReportQueryReply:
        request = pb.ReportQueryRequest(
            incarnation=self._link.address.incarnation,
            query=command.query,
            lineage=command.lineage,
            planned=planned,
            failed=failed,
        )
        return self._link.call(self._link.stub.ReportQuery, request)
