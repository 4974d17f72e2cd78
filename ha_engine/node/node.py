"""Connect, start and stop the stages of a node process in order. The module ``build`` makes the
stages."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import structlog
from starlette.applications import Starlette

from ha_engine import logs
from ha_engine.api.cluster import cluster_of, report_of
from ha_engine.api.cluster_body import Cluster
from ha_engine.api.connection import ConnectionPool
from ha_engine.api.http import NodeView
from ha_engine.api.output import OutputReader
from ha_engine.api.page import WithPage
from ha_engine.api.prometheus import NodeMetrics
from ha_engine.api.server import WebServer
from ha_engine.api.shadows import Comparison
from ha_engine.api.status import Queues, Stages, status_of
from ha_engine.api.status_body import Status
from ha_engine.api.turns import Turns
from ha_engine.config import Config
from ha_engine.config.reload import Reloader
from ha_engine.core import ShadowLimits
from ha_engine.core import inputs as on
from ha_engine.errors import ConfigError, NotAllowed
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.node.adapters import LocalAnswers, OperatorRequests, QueryObserver, SyncOwner
from ha_engine.node.build import (
    backlog_of,
    checkpoints_of,
    core_of,
    gate_of,
    hello_of,
    places_of,
    plans_of,
    publisher_of,
    range_server_of,
    snapshot_service_of,
)
from ha_engine.node.connectors import (
    aggregation_readers_of,
    bucket_places_of,
    receivers_of,
    sinks_of,
)
from ha_engine.node.data_dir import DataDirectory
from ha_engine.node.database import lease_listener_of, lease_store_of, release_earlier
from ha_engine.node.deploying import Deployments, check_request
from ha_engine.node.driver import Driver
from ha_engine.node.forwarding import ActivePeer
from ha_engine.node.local_service import LocalServer, LocalService
from ha_engine.node.ports import Ports
from ha_engine.node.range_server import CONNECTIONS_MAX
from ha_engine.node.routes import web_application
from ha_engine.node.storage import NodeStorage, give_up, remove_old_shadows, replay
from ha_engine.node.stream_logs import StreamLogs
from ha_engine.node.supervisor_link import NoSupervisor, SupervisorLink
from ha_engine.outbox import Outbox
from ha_engine.outbox.published import PublishedBatches
from ha_engine.publish import Publisher, Sink
from ha_engine.query.application import StreamApplication
from ha_engine.query.range_endpoints import Endpoints
from ha_engine.receive.backlog import Disk
from ha_engine.receive.forwarding import ForwardingStore, store_forwarded
from ha_engine.receive.gate import Gate
from ha_engine.receive.ingest import IngestServer
from ha_engine.receive.intake import Intake
from ha_engine.snapshot.restore import finish
from ha_engine.stats.counters import NodeCounters
from ha_engine.sync import (
    ApplicationChecks,
    EventSync,
    Forwarder,
    GrpcTransport,
    PeerCalls,
    Report,
)
from ha_engine.system.systemd import Condition, ServiceManager
from ha_engine.types import Holder, Position
from ha_engine.web.connection_limits import OWN_FILES, connection_limits
from ha_engine.web.hosts import host_names_of
from ha_engine.web.listening import listen
from ha_engine.web.route import set_access

log = structlog.get_logger(__name__)

FORWARDED_SECONDS = 1.0
"""A node that stops waits so long for the answers of the active to what it has forwarded."""


def boottime() -> float:
    """The node's clock for leases. The boot clock keeps running while the host sleeps, and never
    jumps (RULES.md#i2)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Node:
    """All parts of one node process, from the locked data directory to the open HTTP port."""

    def __init__(
        self,
        config: Config,
        application: StreamApplication,
        read_config: Callable[[], Config],
        process_id: str,
        supervisor: SupervisorLink | NoSupervisor,
        service: ServiceManager,
    ) -> None:
        self.config, self.service, self.started_at = config, service, time.monotonic()
        self.supervisor, living = supervisor, supervisor.living
        self.application = application
        self.data = DataDirectory(config.node.data_dir, process_id)
        self.journal, self.outbox = self._open(living)
        self.published = self._published_batches()
        self.core = core_of(
            config, self.application, self.journal, process_id, self.data.high_water()
        )
        self.metrics = NodeMetrics(config.group, config.node.id, self.status)
        counters = NodeCounters(database_asked=self.metrics.database.observe)
        self.observer = QueryObserver(self.metrics, counters, boottime)
        self.driver = Driver(self.core, boottime, config.lease.db_timeout, counters, give_up)
        # The gate has a lower limit for pending events, so the writer can take every record of the
        # core.
        bound = 2 * config.receive.max_pending + (64 << 20)
        self.writer = JournalWriter(
            self.journal,
            on_durable=self.driver.durable,
            on_failed=self.driver.fail,
            on_stuck=give_up,
            pending_bytes_max=bound,
        )
        limits, size = config.journal, lambda: self.journal.size_bytes
        self.disk = Disk(self.data.path, limits.min_free, size, limits.max_size)
        backlog = backlog_of(config, self.core, self.disk)
        self.gate = gate_of(config, self.application, self.driver, backlog, self.metrics.gate)
        replay(self.data.base, self.journal, self.outbox, self.core, self.gate)
        if not config.checkpoint_url:
            remove_old_shadows(config.checkpoint_dir, self.core.deployment)
        self.sinks = sinks_of(config, self.application, self._last_mark)
        self.publisher = self._stopped_publisher()
        self.logs = StreamLogs(self.application, self.gate.logs, lambda: self.journal.first)
        self.answers = LocalAnswers(self.core, self.journal, self.gate.logs)
        self.local = self._local_service()
        self.ranges = range_server_of(config, self.answers, counters)
        self.lease_store = lease_store_of(config)
        self.closed = Counter[str]()
        """The connections that the node closed because of their clients, by reason."""
        parts = self.core, self.journal, self.writer, self.outbox, self.data.base
        self.snapshots = snapshot_service_of(config, self.application, *parts)
        self.forwarder = Forwarder(config.event_sync, config.node.id, process_id)
        self.peers = self._event_sync(process_id)
        self.store = self._store(process_id)
        self.intake = Intake(self.store, self.logs.refusing)
        self.receivers = receivers_of(config, self.application, self.gate, self.intake)
        own_files = OWN_FILES + (CONNECTIONS_MAX if config.execution.on_cluster else 0)
        connections = connection_limits(config.http, config.ingest, own_files)
        self.ingest = IngestServer(
            self.intake,
            config.ingest,
            config.access.checks,
            self._ingest_of,
            connections.ingest,
            self.closed,
        )
        # The node also polls the lease row, so the listener only makes the node read a change
        # sooner.
        self.listener = lease_listener_of(config, partial(self.driver.handle, on.LeaseChanged()))
        self.reloader = Reloader(config, read_config, self._take)
        # Operators' requests use a separate connection, so that no renewal of the lease waits for
        # them.
        self.lease_admin = lease_store_of(config)
        self.aggregations = aggregation_readers_of(config, self.application)
        self.deployments = self._deployments(process_id)
        self.served = self._served()
        page = WithPage(self.served, self.peers.urls)
        self.web = WebServer(
            Turns(page), config.http, ConnectionPool(connections.http, self.closed)
        )

    def _local_service(self) -> LocalService:
        shadow = self.application.shadow
        return LocalService(
            self.driver,
            self.answers,
            self.outbox,
            self._sinks_of,
            self.publisher.admitted,
            self.observer,
            give_up,
            endpoints=self._endpoints,
            check_logs=self.logs.require_same if self.logs.places else None,
            buckets=bucket_places_of(
                self.config, self.application, self.sinks, lambda: self.core.group_id
            ),
            claim_again=self.publisher.claim_again,
            application=self.application.path,
            shadow=None if shadow is None else shadow.application.path,
        )

    def _open(self, living: str | None) -> tuple[Journal, Outbox]:
        config, data = self.config, self.data
        if finish(places_of(config), checkpoints_of(config)):
            log.info("restored snapshot replaced journal, outbox and checkpoints")
        size = config.journal.segment_size
        journal = Journal.open(data.journal, group=config.group, segment_size=size)
        return journal, Outbox.open(data.outbox, living=living)

    def _published_batches(self) -> PublishedBatches:
        """The batches that are kept for observers, or to compare a shadow with its query."""
        kept, bounds = self.config.observe, ShadowLimits()
        batches, size = kept.keep_batches, kept.keep_size
        if self.application.shadow is not None:
            batches, size = max(batches, bounds.batches_max), max(size, bounds.bytes_max)
        return PublishedBatches(self.data.published, batches, size)

    def _storage(self) -> NodeStorage:
        checkpoints = self.config.checkpoint_dir
        parts = self.journal, self.writer, self.outbox, self.published
        return NodeStorage(self.data, *parts, checkpoints)

    def _event_sync(self, process_id: str) -> EventSync:
        def admits(node: str, process: str) -> bool:
            return self.peers.process_of(node) == process

        config = self.config.event_sync
        store = partial(store_forwarded, self.gate) if self.config.receive.forward else None
        calls = PeerCalls(admits, partial(check_request, self.config), store, self._runs_the_same)
        transport = GrpcTransport(config, calls)
        owner = self._sync_owner(process_id)
        return EventSync(config, self.journal, owner, self.closed, transport=transport)

    def _runs_the_same(self, peer: str) -> bool:
        """Whether ``peer`` runs the application of this node, so that streams have the same
        columns."""
        return self.core.rollout.archives.get(peer) == self.application.archive

    def _store(self, process_id: str) -> Gate | ForwardingStore:
        """Return the store for the events of producers."""
        if not self.config.receive.forward:
            return self.gate
        producer = f"forwarded-by-{self.config.node.id}-{process_id}"
        active = ActivePeer(self.peers, self.forwarder, self._runs_the_same)
        return ForwardingStore(self.gate, active, producer, self.metrics.gate.forwarded)

    def _deployments(self, process_id: str) -> Deployments:
        sync, driver = self.config.event_sync, self.driver
        checks = ApplicationChecks(sync, self.config.node.id, process_id)
        return Deployments(
            self.config,
            self.application,
            self.core,
            driver.handle,
            driver.committed,
            checks,
            plans_of,
            self._reports,
        )

    def _reports(self) -> Mapping[str, Report]:
        return {peer: report for peer, (_, report) in self.peers.reports().items()}

    def _sync_owner(self, process_id: str) -> SyncOwner:
        hello = hello_of(self.config, self.application, self.journal, process_id)
        return SyncOwner(self.driver, self.writer, hello, self.report)

    def _stopped_publisher(self) -> Publisher:
        parts = self.config, self.core, self.outbox, self.sinks, self
        return publisher_of(*parts, on_published=self._published, on_fenced=self._fenced)

    # -- life --------------------------------------------------------------------------------------

    async def run(self, earlier: str | None = None) -> None:
        """Run the node until it is asked to stop. Raises the error that made the node fail.

        ``earlier`` is the id of the dead node process that last used the data directory, or None.
        """
        last, streams = self.journal.last.sequence, self.application.streams
        self.driver.arrivals.start_at(boottime(), last, streams)
        for failed in (self.publisher.failed, self.receivers.failed):
            failed.add_done_callback(self._stage_died)
        self.driver.connect(
            Ports(
                self.writer,
                self.lease_store,
                self.lease_admin,
                self.receivers,
                self.publisher,
                self.supervisor,
                self.local,
                self._storage(),
                self.peers,
                self.snapshots,
                self._exit,
            )
        )
        if self.supervisor.living:
            self.driver.handle(on.QueryProcessAdopted(self.supervisor.living))
        web_socket = listen(self.config.http.listen)
        local_server = LocalServer(self.local, self.config.socket_path)
        await local_server.start()
        self.supervisor.send("served", {})
        await self.peers.start()
        await self.ingest.start()
        if self.ranges is not None:
            await self.ranges.start()
        if self.config.event_sync.peers:
            self.listener.start()
        self.driver.start()
        tasks = [
            self._watch(self.web.serve(sockets=[web_socket]), "http"),
            self._watch(self.supervisor.attend(self.driver, self.observer.stepped), "supervisor"),
            self._watch(self.snapshots.watch(self._revisions_listed), "revisions"),
            # The next ack reports to the peer whether this node's disk has space for events
            # (RULES.md#r30).
            self._watch(self.disk.watch(self._headroom_changed), "disk"),
            self._watch(self.service.attend(self._condition), "service manager"),
            self._watch(local_server.watch(), "local socket"),
            self._watch(self.logs.watch(), "retention"),
            self._watch(self._release(earlier), "release"),
        ]
        try:
            await self.driver.ended
        finally:
            await self._shut(local_server, tasks)

    async def _shut(self, local_server: LocalServer, tasks: list[asyncio.Task[None]]) -> None:
        self.web.stop()
        if isinstance(self.store, ForwardingStore):
            await self.store.stop(FORWARDED_SECONDS)
        await self.receivers.stop()
        await self.ingest.stop()
        if self.ranges is not None:
            await self.ranges.stop()
        await self.forwarder.close()
        await self.peers.stop()
        await asyncio.to_thread(self.listener.stop)
        await self.publisher.close()
        await self.writer.close()
        self.driver.close()
        self.lease_admin.close()
        for reader in self.aggregations.values():
            reader.close()
        self.snapshots.close()
        await local_server.stop()
        for task in tasks[1:]:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)
        self.journal.close()
        self.data.close()

    def _exit(self, reason: str) -> None:
        """End the node, because it was asked to stop or because the core cannot continue."""
        if self.core.stopping:
            self.driver.end()
        else:
            self.driver.fail(ConfigError(reason))

    def stop(self) -> None:
        log.info("stopping")
        self.service.stopping()
        self.driver.handle(on.StopAsked())

    def reload(self) -> None:
        """Read the config again, after SIGHUP."""
        self._reloading = self._watch(self.reloader.reload(), "reload")

    def _take(self, config: Config) -> None:
        """Apply the settings in ``config.reload.RELOADABLE``, which can change while the node runs.

        Certificates are the last settings, so a bad certificate prevents no other setting. Raises
        ConfigError for a bad certificate.
        """
        access = config.access.checks
        set_access(self.served, access)
        self.ingest.set_access(access)
        logs.configure(config.log, node=config.node.id, process="node")
        self.supervisor.send("log", config.log.model_dump())
        self.disk.min_free, self.disk.journal_max = config.journal.min_free, config.journal.max_size
        self.snapshots.keep = config.snapshot.revisions_to_keep
        self.driver.handle(on.SnapshotEvery(config.snapshot.interval))
        self.web.renew_certificate()
        self.ingest.look_at_certificate()
        if self.ranges is not None:
            self.ranges.look_at_certificate()

    async def _release(self, earlier: str | None) -> None:
        """Release the lease of the node process ``earlier``, whose supervisor also died."""
        if earlier is not None:
            dead = Holder(self.config.node.id, earlier)
            await release_earlier(self.config, dead)

    def _watch(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a background task. If the task fails, the node ends with the task's error."""

        async def run() -> None:
            try:
                await work
            except Exception as error:
                self.driver.fail(error)

        return asyncio.create_task(run(), name=name)

    def _served(self) -> Starlette:
        core, handle = self.core, self.driver.handle
        operator = OperatorRequests(core, handle, self.config.no_rescale)
        view = NodeView(
            self.status,
            self.cluster,
            self.metrics.exposition,
            operator.skip,
            operator.retry,
            operator.rescale,
            self._alive,
            operator.switch_over,
            self._version,
            lambda: self.intake.count("", NotAllowed("the token")),
        )
        access, names = self.config.access.checks, host_names_of(self.config.http)
        return web_application(
            view,
            core,
            handle,
            self.intake,
            self.config.http.max_body,
            self.lease_admin,
            self.snapshots,
            self.aggregations,
            self.application,
            self.deployments,
            OutputReader(
                tuple(core.deployment.marks),
                self.published,
                lambda: core.group_id or "",
                keeps_batches=self.config.observe.keep_batches > 0,
            ),
            Comparison(core, self.outbox, self.published),
            self.config.group,
            access,
            names,
        )

    # -- what stages ask ---------------------------------------------------------------------------

    def report(self) -> Report:
        return self._report_at(boottime())

    def _report_at(self, now: float) -> Report:
        to_restore, execution = self.snapshots.transfer.to_go, self.config.execution
        ranges = execution.address if execution.on_cluster else ""
        return report_of(self.core, now, to_restore, self.ingest.address, ranges)

    def status(self) -> Status:
        stages = Stages(
            self.metrics.gate,
            self.publisher.status(),
            self.receivers.status(),
            self.logs.headroom,
            self.observer.progress,
            self.observer.step,
            self.observer.executors,
            self.peers,
            self.driver.counters,
            self.snapshots,
            self.driver.arrivals,
            self._queues(),
            self.closed,
            self.driver.disk_is_late or self.writer.is_late or self.local.outbox_is_late,
            self.reloader.last,
            time.monotonic() - self.started_at,
        )
        now = boottime()
        return status_of(self.core, self.config.group, self._report_at(now), stages, now)

    def _version(self) -> object:
        """A value that changes with each input of the core, request of a producer and reload of the
        config. A client that knows of a change must find the change in the next status."""
        gate, driver = self.metrics.gate, self.driver
        refused = sum(gate.requests_rejected.values()) + sum(self.closed.values())
        taken = gate.rows_accepted, gate.rows_duplicate, gate.rows_forwarded
        return driver.steps, *taken, refused, self.reloader.last

    def _queues(self) -> Queues:
        writer, budget = self.writer, self.gate.budget
        polls = self.local.polls_pending
        acks, connections = self.driver.acks_waiting, self.web.open_connections
        return Queues(budget.taken, acks, writer.pending_bytes, polls, connections)

    def cluster(self) -> Cluster:
        return cluster_of(self.core, self.config.group, self.report(), self.peers)

    def _condition(self) -> Condition:
        core, lease = self.core, self.core.lease
        return Condition(core.role, core.reason, core.epoch, lease.protected, not lease.failing)

    def remaining_seconds(self) -> float:
        """The publisher's authority (RULES.md#r17)."""
        return self.core.authority_seconds(boottime())

    def _ingest_of(self, url: str) -> str:
        """The address for gRPC producers of the peer with the address ``url``, from the peer's last
        report."""
        reports = (report for _, report in self.peers.reports().values())
        return next((report.ingest for report in reports if report.url == url), "")

    def _endpoints(self, last: int) -> Endpoints | None:
        """The nodes from which executors of a cluster read records up to ``last``: this node, and
        its peers if it is away. None if Spark's tasks run on this host."""
        if self.ranges is None:
            return None
        others = (report.ranges for _, report in self.peers.reports().values())
        addresses = (self.config.execution.address, *filter(None, others))
        epoch = self.core.journal.position_at(last).epoch
        return self.ranges.endpoints(addresses, self.core.group_id or "", epoch)

    def highest_planned(self, query: str) -> float:
        return self.core.deployment.marks[query].ledger_end_max

    def _last_mark(self, query: str) -> int:
        return self.core.deployment.marks[query].last.number

    def _alive(self) -> bool:
        return not self.driver.ended.done()

    # -- what stages report ------------------------------------------------------------------------

    def _sinks_of(self, query: str) -> dict[str, Sink]:
        return {sink: opened for (name, sink), opened in self.sinks.items() if name == query}

    def _revisions_listed(self, places: tuple[tuple[Position, Position], ...]) -> None:
        self.driver.handle(on.RevisionsKept(places))

    def _headroom_changed(self, headroom: bool) -> None:
        self.driver.handle(on.HeadroomChanged(headroom))

    def _published(self, query: str, sink: str, batch: int) -> None:
        self.driver.handle(on.SinkPublished(query, sink, batch))

    def _stage_died(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None:
            self.driver.fail(error)

    def _fenced(self, epoch: int) -> None:
        self.driver.handle(on.HigherEpochSeen(epoch, "a sink's ledger"))
