"""Make the parts of a node from its config and application, without opening files or
connections."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ha_engine import __version__
from ha_engine.auth import token_of
from ha_engine.config import Config
from ha_engine.config.group import group_digest
from ha_engine.core import (
    Core,
    Deployment,
    HighWater,
    LeaseTiming,
    MarkLimits,
    NodeIdentity,
    PeerTiming,
    QueryPlan,
    RestartPolicy,
    ShadowLimits,
)
from ha_engine.journal import Journal
from ha_engine.journal.identity import JournalIdentity
from ha_engine.journal.writer import JournalWriter
from ha_engine.node.database import database_engine
from ha_engine.node.range_server import JournalRecords, RangeServer, RangeService
from ha_engine.node.snapshot_actions import facts_of
from ha_engine.outbox import Outbox
from ha_engine.postgres.snapshot_store import CALL_SECONDS, SnapshotStore
from ha_engine.publish import Publisher, Sink
from ha_engine.publish.delivery import Timing
from ha_engine.publish.publisher import QuerySink
from ha_engine.publish.sink import Authority
from ha_engine.query.application import Standby, StreamApplication
from ha_engine.query.object_checkpoints import Bucket, ObjectCheckpoints
from ha_engine.query.runtime import checkpoint_versions, runtime_versions, why_not_continued
from ha_engine.receive.backlog import Disk, NodeBacklog
from ha_engine.receive.gate import Backlog, Counters, Gate, GroupJournal
from ha_engine.receive.producers import ProducerTable
from ha_engine.snapshot.base_builder import BaseBuilder
from ha_engine.snapshot.capture import Capture
from ha_engine.snapshot.checkpoint_storage import CheckpointDirectories, CheckpointStorage
from ha_engine.snapshot.object_storage import ObjectStates
from ha_engine.snapshot.restore import Places, Restoring
from ha_engine.snapshot.service import SnapshotService
from ha_engine.stats.counters import NodeCounters
from ha_engine.sync import Hello
from ha_engine.types import Holder


def core_of(
    config: Config,
    application: StreamApplication,
    journal: Journal,
    process_id: str,
    high_water: HighWater,
) -> Core:
    """Make the core of this node, before the node replays its journal into the core."""
    lease = config.lease
    identity = NodeIdentity(
        config.node.id,
        process_id,
        journal.journal_id,
        journal.group_id,
        str(uuid.uuid4()),
        config.http.url,
        tuple(sorted(config.event_sync.peers)),
        config.event_sync.backup,
    )
    timing = LeaseTiming(lease.ttl, lease.renew_interval, lease.margin)
    sync = config.event_sync
    peers = PeerTiming(sync.heartbeat_interval, sync.sync_timeout, sync.backup_after)
    deployment = _deployment(config, application)
    return Core(identity, timing, high_water, deployment, peers, config.snapshot.interval)


def hello_of(
    config: Config,
    application: StreamApplication,
    journal: Journal | JournalIdentity,
    process_id: str,
) -> Hello:
    """Make the Hello message that this node sends to its peers. Blocks until Java has printed its
    version."""
    sync = config.event_sync
    return Hello(
        engine=__version__,
        group=config.group,
        group_id=journal.group_id or "",
        node=config.node.id,
        process=process_id,
        journal_id=journal.journal_id,
        application=application.digest,
        archive=application.archive or "",
        config=group_digest(config),
        runtime=runtime_versions() if sync.peers else {},
        address=sync.advertise or sync.listen,
    )


def _deployment(config: Config, application: StreamApplication) -> Deployment:
    query, outbox = config.query, config.outbox
    limits = MarkLimits(
        query.max_events_per_batch,
        query.min_batch_interval,
        query.idle_batch_interval,
        outbox.max_batches,
        outbox.max_bytes,
    )
    restarts = RestartPolicy(query.attempts_per_batch, backoff_max=query.restart_backoff_max)
    shadow = application.shadow
    return Deployment(
        application.digest,
        plans_of(application, only_active=config.is_backup),
        limits,
        restarts,
        application.archive,
        None if shadow is None else (shadow.record, shadow.spec.digest),
        ShadowLimits(behind_max=2 * config.receive.max_backlog_events),
    )


def plans_of(application: StreamApplication, *, only_active: bool = False) -> tuple[QueryPlan, ...]:
    """The plans of the queries. With ``only_active``, this node runs a query only as the active, as
    the backup does (RULES.md#r37)."""
    return tuple(
        QueryPlan(
            query.name,
            query.digest,
            frozenset(query.streams),
            tuple(sink.name for sink in query.sinks),
            query.on_change.value if query.on_change else None,
            only_active or query.standby is Standby.WARM,
            query.state_partitions,
        )
        for query in application.queries.values()
    )


def snapshot_service_of(
    config: Config,
    application: StreamApplication,
    core: Core,
    journal: Journal,
    writer: JournalWriter,
    outbox: Outbox,
    base_path: Path,
) -> SnapshotService:
    """Make the node's snapshot service, which connects to the database at its first call."""
    home, receive, store = config.node.data_dir, config.receive, snapshot_store_of(config)
    base_builder = BaseBuilder(
        base_path,
        journal,
        lambda: _deployment(config, application),
        lambda: ProducerTable(receive.max_producers, receive.dedup_window),
    )
    checkpoints = checkpoints_of(config)
    objects = checkpoints if isinstance(checkpoints, ObjectStates) else None
    return SnapshotService(
        store,
        Capture(config.checkpoint_dir, home, outbox, objects=objects),
        base_builder,
        writer,
        Holder(core.identity.node, core.identity.process),
        lambda place: facts_of(
            core, application.digest, checkpoint_versions(), place, application.archive
        ),
        restoring_of(config, application, store, checkpoints),
        config.snapshot.revisions_to_keep,
    )


def restoring_of(
    config: Config,
    application: StreamApplication,
    store: SnapshotStore,
    checkpoints: CheckpointStorage,
) -> Restoring:
    """Make the object that restores a snapshot on this node."""
    return Restoring(
        store,
        places_of(config),
        checkpoints,
        config.group,
        application.digest,
        lambda manifest: why_not_continued(manifest.runtime),
        application.archive,
    )


def checkpoints_of(config: Config) -> CheckpointStorage:
    """The checkpoints of this node. Raises ObjectStorageFailed."""
    if (url := config.checkpoint_url) is None:
        shared = partial(_shared_checkpoints, config)
        return CheckpointDirectories(config.checkpoint_dir, shared=shared)
    checkpoints = ObjectCheckpoints(Bucket(url, config.query.spark), config.node.id)
    return ObjectStates(checkpoints, config.node.data_dir)


def _shared_checkpoints(config: Config) -> list[Path]:
    """The directories with the checkpoints of all nodes of the group, which share them only on a
    cluster. Raises OSError."""
    if not config.execution.on_cluster:
        return []
    return [one for one in config.checkpoint_dir.parent.iterdir() if one.is_dir()]


def places_of(config: Config) -> Places:
    """The directories that a restored snapshot replaces."""
    return Places(config.node.data_dir, config.checkpoint_dir)


def snapshot_store_of(config: Config) -> SnapshotStore:
    """The database store of the group's snapshot revisions."""
    engine = database_engine(config, None, CALL_SECONDS)
    return SnapshotStore(engine, config.group, schema=config.database.schema_name)


def backlog_of(config: Config, core: Core, disk: Disk) -> NodeBacklog:
    """Make the back-pressure of the gate. The gate refuses events if too many events are in no
    batch yet. The gate also refuses events if the disk of this node or of an in-sync member is
    full."""
    return NodeBacklog(
        core.deployment.backlog_events,
        config.receive.max_backlog_events,
        disk,
        lambda: core.term.full_member() if core.term else None,
    )


def range_server_of(
    config: Config, records: JournalRecords, counters: NodeCounters
) -> RangeServer | None:
    """Make the server from which executors read the journal; None if Spark needs none."""
    execution = config.execution
    if not execution.on_cluster:
        return None

    def sent(size: int) -> None:
        counters.executor_bytes += size

    token = token_of(execution.secret.get_secret_value())
    return RangeServer(RangeService(records, token, sent), execution.listen, execution.tls)


def gate_of(
    config: Config,
    application: StreamApplication,
    journal: GroupJournal,
    backlog: Backlog,
    counters: Counters,
) -> Gate:
    """Make the gate of the receive stage, closed to events."""
    schemas = {name: stream.arrow_schema for name, stream in application.streams.items()}
    return Gate(schemas, journal, backlog, config.receive, lambda: time.time_ns() // 1000, counters)


def publisher_of(
    config: Config,
    core: Core,
    outbox: Outbox,
    sinks: Mapping[QuerySink, Sink],
    authority: Authority,
    *,
    on_published: Callable[[str, str, int], None],
    on_fenced: Callable[[int], None],
) -> Publisher:
    """Make the publish stage, without starting it. The node must have replayed its journal into
    ``core``."""
    return Publisher(
        outbox,
        sinks,
        authority,
        on_published=on_published,
        on_fenced=on_fenced,
        group_id=lambda: core.group_id or "",
        timing=Timing(config.publish.timeout, config.publish.retry_backoff_max),
        start_after=lambda query, sink: core.deployment.marks[query].start_after(sink),
    )
