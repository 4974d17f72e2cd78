"""Mutants test the tests of the edges: a test detects each breakage of a rule outside the core.

The core has mutants in ``tests.core`` and ``tests.sim``; here are those of the core that a unit
test detects and no history does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.broken import BrokenRuns
from tests.connectors.kafka_jars import needs_kafka
from tests.mutation import Mutation

HERE = Path(__file__).parent
TESTS_FAILED = 1


@dataclass(frozen=True, slots=True)
class Breakage:
    """A mutation of a module of the engine, with which ``killer`` must fail.

    ``killer`` is a file or a test of it, which needs a broker of Kafka if ``in_kafka``.
    """

    rule: str
    module: str
    function: str
    old: str
    new: str
    killer: str
    in_kafka: bool = False

    @property
    def mutation(self) -> Mutation:
        return Mutation(f"ha_engine.{self.module}", self.function, self.old, self.new)

    def __str__(self) -> str:
        return f"{self.rule}: {self.mutation}"


BREAKAGES = (
    Breakage(
        "R1",
        "postgres.lease_store",
        "PostgresLeaseStore._build_update",
        "*unchanged",
        "",
        "postgres/test_lease_contract.py",
    ),
    Breakage(
        "R5",
        "postgres.lease_store",
        "PostgresLeaseStore._build_update",
        "*here",
        "",
        "postgres/test_lease_contract.py",
    ),
    Breakage(
        "R5",
        "postgres.lease_store",
        "PostgresLeaseStore.create",
        "select(*values.values()).where(*here)",
        "select(*values.values())",
        "postgres/test_lease_contract.py",
    ),
    Breakage(
        "R37",
        "core.replication",
        "Replication._with_progress",
        "self._is_regular(member)",
        "member != self.me",
        "core/test_backup.py",
    ),
    Breakage(
        "R37",
        "core.replication",
        "Replication.candidates",
        "self._is_regular(member)",
        "member != self.me",
        "core/test_backup.py",
    ),
    Breakage(
        "R37",
        "core.replication",
        "Replication.wanted",
        "member in listed",
        "True",
        "core/test_backup.py",
    ),
    Breakage(
        "R37",
        "core.progress",
        "Peer._waits_since",
        "self._first_need_at if self.is_backup else self._progress_at",
        "self._progress_at",
        "core/test_backup.py",
    ),
    Breakage(
        "R2",
        "system.file_lock",
        "lock_directory",
        "fcntl.LOCK_EX",
        "fcntl.LOCK_SH",
        "journal/test_data_dir.py",
    ),
    Breakage(
        "R4",
        "system.file_lock",
        "earlier_process",
        "name if here == _whereabouts(lock) else None",
        "name or None",
        "journal/test_data_dir.py",
    ),
    Breakage(
        "R5",
        "core.high_water",
        "HighWater.released_row",
        "self.above(row)",
        "",
        "component/test_releasing.py",
    ),
    Breakage(
        "R5",
        "core.high_water",
        "HighWater.released_row",
        "row.identity != identity",
        "",
        "component/test_releasing.py",
    ),
    Breakage(
        "R8",
        "journal.journal",
        "Journal.give_up_after",
        "self.retire()",
        "",
        "journal/test_given_up.py",
    ),
    Breakage(
        "R16",
        "node.driver",
        "Driver._call_lease",
        "await self._kept",
        "pass",
        "postgres/test_takeover.py",
    ),
    Breakage(
        "R16",
        "core.replication",
        "Replication._promised_at",
        "peer.promised_at(member.journal_id)",
        "max((peer.promised_at(name) for name in (*peer._promised_at, '')))",
        "core/test_promises.py",
    ),
    Breakage(
        "I15",
        "core.progress",
        "Peer.makes_progress",
        "self._batch_at.get(query, self._linked_at)",
        "max(self._batch_at.values(), default=self._linked_at)",
        "core/test_catching_up.py",
    ),
    Breakage(
        "R9",
        "core.replication",
        "Replication.__init__",
        "self._goal = self._next_goal = last",
        "self._goal = self._next_goal = 0",
        "core/test_catching_up.py",
    ),
    Breakage(
        "R17",
        "publish.sink",
        "Deadline.remaining_seconds",
        "min(self._until - time.monotonic(), self._authority.remaining_seconds())",
        "self._until - time.monotonic()",
        "publish/test_publisher.py",
    ),
    Breakage(
        "I9",
        "postgres.snapshot_store",
        "SnapshotStore.complete",
        "chunk_rows.sound_of(draft) == chunks",
        "true()",
        "postgres/test_snapshot_store.py",
    ),
    Breakage(
        "I10",
        "snapshot.chunks",
        "unpack",
        "digest_of(content) != chunk.digest",
        "False",
        "snapshot/test_chunks_and_manifest.py",
    ),
    Breakage(
        "I10",
        "snapshot.verification",
        "manifest_of",
        "manifest.position != revision.position",
        "False",
        "snapshot/test_archive.py",
    ),
    Breakage(
        "R18", "query.offsets", "mark_of_batch", "len(marks) != 1", "False", "query/test_offsets.py"
    ),
    Breakage(
        "R19",
        "outbox.outbox",
        "Outbox.admit",
        "number <= query_outbox.last",
        "False",
        "publish/test_outbox.py",
    ),
    Breakage(
        "R23",
        "node.local_service",
        "LocalService._admit",
        "self._answers.may_be_of_other_code(r.query, r.number)",
        "False",
        "component/test_local_service.py",
    ),
    Breakage(
        "R23",
        "core.query_control",
        "QueryControl._is_present",
        "lineage is None or lineage == self._lineage(query)",
        "True",
        "core/test_former_version.py",
    ),
    Breakage(
        "R23",
        "core.deployment",
        "Deployment._apply_application",
        "self.lives[version.query].superseded()",
        "pass",
        "core/test_former_version.py",
    ),
    Breakage(
        "R21",
        "query.checkpoints",
        "open_checkpoint",
        "if not usable:\n    _set_aside(directory, files)",
        "if False:\n    _set_aside(directory, files)",
        "query/test_checkpoints.py",
    ),
    Breakage(
        "R21",
        "query.checkpoints",
        "open_checkpoint",
        "_delete_unfinished(directory, files)",
        "pass",
        "query/test_checkpoints.py",
    ),
    Breakage(
        "R21",
        "node.local_service",
        "LocalService.AwaitMark",
        "self._answers.lacks_mark_after(request.query, request.after)",
        "False",
        "component/test_local_service.py",
    ),
    Breakage(
        "R24",
        "postgres.ledger",
        "Ledger.advance",
        "ledger.epoch == epoch",
        "",
        "publish/test_postgres_sink.py",
    ),
    Breakage(
        "R24",
        "postgres.ledger",
        "Ledger.advance",
        "ledger.batch == batch - 1",
        "",
        "publish/test_postgres_sink.py",
    ),
    Breakage(
        "R24",
        "postgres.ledger",
        "Ledger.claim",
        "self.table.c.epoch <= epoch",
        "",
        "publish/test_postgres_sink.py",
    ),
    Breakage(
        "R27",
        "receive.producers",
        "require_same",
        "submission.digest != digest",
        "False",
        "receive/test_receive_producers.py",
    ),
    Breakage(
        "R27",
        "receive.producers",
        "ProducerTable.find",
        "submission.sequence <= self._floor(producer)",
        "False",
        "receive/test_receive_producers.py",
    ),
    Breakage(
        "R27",
        "receive.producers",
        "ProducerTable._remember",
        "self._producers.move_to_end(name)",
        "pass",
        "receive/test_receive_producers.py",
    ),
    Breakage(
        "I7",
        "publish.delivery",
        "Delivery._advance",
        "self._ledger_known = False",
        "",
        "dst/test_publish_histories.py",
    ),
    Breakage(
        "R24",
        "publish.publisher",
        "Publisher.stop",
        "task.cancel()",
        "pass",
        "dst/test_publish_histories.py",
    ),
    Breakage(
        "R31",
        "journal.journal",
        "Journal.sync",
        "self._files.fsync_directory(self._directory)",
        "",
        "journal/test_journal_durability.py",
    ),
    Breakage(
        "R31",
        "journal.journal",
        "Journal._roll",
        "self._tail.sync()",
        "",
        "journal/test_journal_durability.py",
    ),
    Breakage(
        "R5",
        "system.files",
        "replace_file",
        "files.fsync_directory(path.parent)",
        "",
        "dst/test_journal_histories.py",
    ),
    Breakage(
        "R5",
        "node.data_dir",
        "_make_durable",
        "files.fsync_directory(path)",
        "",
        "journal/test_data_dir.py",
    ),
    Breakage(
        "R19",
        "outbox.query_outbox",
        "QueryOutbox.add",
        "self._make_durable()",
        "",
        "dst/test_outbox_histories.py",
    ),
    Breakage(
        "R19",
        "outbox.query_outbox",
        "QueryOutbox._make_durable",
        "self._files.fsync_directory(self._place.parent)",
        "",
        "dst/test_outbox_histories.py",
    ),
    Breakage(
        "R26",
        "snapshot.restore",
        "_keep_what_was_given_up",
        "files.fsync_directory(fresh)",
        "",
        "dst/test_finish_restore.py",
    ),
    Breakage(
        "R31",
        "journal.journal",
        "Journal.open",
        "settle(segment_paths(directory)[-1], files)",
        "",
        "dst/test_journal_histories.py",
    ),
    Breakage(
        "R31",
        "journal.journal",
        "Journal._drop_tail",
        "self._files.fsync_directory(self._directory)",
        "",
        "dst/test_journal_histories.py",
    ),
    Breakage(
        "R31",
        "journal.segment",
        "Segment.truncate_after",
        "self._writable().fsync()",
        "",
        "dst/test_journal_histories.py",
    ),
    Breakage(
        "I3",
        "core.progress",
        "Peer.acked",
        "ack.journal_id != self.journal_id",
        "False",
        "core/test_progress.py",
    ),
    Breakage(
        "R8",
        "core.follower",
        "Follower._make_prefix",
        "not lease.row_is_current",
        "",
        "dst/test_pair_histories.py",
    ),
    Breakage(
        "R29",
        "core.retention",
        "Retention._through",
        "retain_after",
        "",
        "core/test_retention.py",
    ),
    Breakage(
        "R24",
        "postgres.ledger",
        "require_has",
        "found_batch < batch - 1",
        "False",
        "dst/test_pair_histories.py",
    ),
    Breakage(
        "R32",
        "sync.hello",
        "speak_alike",
        "min(one.protocol_max, other.protocol_max)",
        "other.protocol_max",
        "sync/test_sync_links.py",
    ),
    Breakage(
        "R32",
        "postgres.schema_version",
        "admit",
        "refuse_below_floor(engine, floor)",
        "pass",
        "postgres/test_schema_floor.py",
    ),
    Breakage(
        "R32",
        "postgres.upgrade",
        "_refuse_older",
        "one.schema_version < newest()",
        "False",
        "postgres/test_schema_floor.py",
    ),
    Breakage(
        "R34",
        "publish.sinks.buckets",
        "BucketedSink.claim",
        "highest <= self._last_mark()",
        "True",
        "publish/test_bucketed_sink.py",
    ),
    Breakage(
        "R34",
        "publish.sinks.buckets",
        "BucketedSink.is_ready",
        "self._claimed == epoch",
        "True",
        "publish/test_bucketed_sink.py",
    ),
    Breakage(
        "R34",
        "postgres.bucket_store",
        "PostgresBucketStore.publish",
        "not all(advanced)",
        "False",
        "publish/test_bucketed_sink.py",
    ),
    Breakage(
        "R34",
        "buckets.task",
        "_require_size",
        "rows != size",
        "False",
        "publish/test_bucketed_sink.py",
    ),
    Breakage(
        "R34",
        "postgres.bucket_store",
        "PostgresBucketStore.claim",
        "min(last)",
        "max(last)",
        "publish/test_bucketed_sink.py",
    ),
    Breakage(
        "R34",
        "postgres.ledger",
        "require_same_buckets",
        "found is not None",
        "False",
        "publish/test_bucketed_sink.py",
    ),
    Breakage(
        "I7",
        "postgres.aggregation_tables",
        "AggregationStore.publish",
        "not self._ledgers.ledger.advance(connection, epoch, batch)",
        "self._ledgers.ledger.advance(connection, epoch, batch) is None",
        "publish/test_aggregation_sink.py::test_batch_counts_once_however_often_it_is_delivered",
    ),
    Breakage(
        "R34",
        "postgres.staged_store",
        "StagedSinkStore.begin",
        "self._ledgers.ledger.has(connection, epoch, batch)",
        "False",
        "publish/test_atomic_batches.py",
    ),
    Breakage(
        "R34",
        "postgres.staged_store",
        "StagedSinkStore.begin",
        "secrets.token_hex(8)",
        "''",
        "publish/test_atomic_batches.py",
    ),
    Breakage(
        "R34",
        "postgres.staged_store",
        "StagedSinkStore.commit",
        "not self._ledgers.ledger.advance(connection, epoch, batch) or stage is None",
        "stage is None",
        "publish/test_atomic_batches.py",
    ),
    Breakage(
        "R34",
        "postgres.staged_store",
        "StagedSinkStore.commit",
        "_require_whole(connection, stage, staged)",
        "connection.connection.driver_connection.commit()\n"
        "_require_whole(connection, stage, staged)",
        "publish/test_atomic_batches.py",
    ),
    Breakage(
        "R34",
        "postgres.staged_store",
        "StagedSinkStore.commit",
        "_require_whole(connection, stage, staged)",
        "pass",
        "publish/test_atomic_batches.py",
    ),
    Breakage(
        "R34",
        "postgres.staged_store",
        "StagedSinkStore.commit",
        "_rows_of(stage, staged)",
        "Target(stage).quoted",
        "publish/test_atomic_batches.py",
    ),
    Breakage(
        "R34",
        "postgres.staged_store",
        "_require_whole",
        "found != wanted",
        "not found",
        "publish/test_atomic_batches.py",
    ),
    Breakage(
        "R34",
        "buckets.plugin",
        "bucket_of",
        'replace(place, sink=name, bucket=f"{bucket}-of-{buckets}")',
        "replace(place, sink=name)",
        "connectors/test_bucketed_plugins.py::test_bucket_is_written_once_and_the_node_publishes_it[files]",
    ),
    Breakage(
        "R34",
        "buckets.plugin",
        "PluginBucket.require_seen",
        "not has(number)",
        "False",
        "connectors/test_bucketed_plugins.py::test_directory_that_this_host_does_not_share_is_refused",
    ),
    Breakage(
        "R34",
        "publish.sinks.files",
        "FilesSink.deliver",
        "target.read_bytes() == content",
        "True",
        "connectors/test_bucketed_plugins.py::test_late_task_with_other_rows_changes_nothing[files]",
    ),
    Breakage(
        "R34",
        "publish.sinks.files",
        "FilesSink._create",
        "not self._bucket",
        "True",
        "connectors/test_bucketed_plugins.py::test_late_task_that_saw_no_file_replaces_none",
    ),
    Breakage(
        "R34",
        "connectors.s3.store",
        "Store.create",
        "'create'",
        "'overwrite'",
        "connectors/test_bucketed_plugins.py::test_late_task_with_other_rows_changes_nothing[s3]",
    ),
    Breakage(
        "R34",
        "publish.sinks.plugin_buckets",
        "BucketedPluginSink.is_ready",
        "self._claimed == epoch",
        "True",
        "connectors/test_bucketed_plugins.py::test_sink_is_ready_once_prepared_and_claimed[files]",
    ),
    Breakage(
        "R34",
        "publish.sinks.plugin_buckets",
        "BucketedPluginSink.claim",
        "self._claimed = 0",
        "",
        "connectors/test_bucketed_plugins.py::test_sink_is_ready_once_prepared_and_claimed[files]",
    ),
    Breakage(
        "R34",
        "buckets.plugin",
        "bucket_of",
        'replace(place, sink=name, bucket=f"{bucket}-of-{buckets}")',
        'replace(place, bucket=f"{bucket}-of-{buckets}")',
        "connectors/test_bucketed_plugins.py::test_bucket_is_written_once_and_the_node_publishes_it[kafka]",
        in_kafka=True,
    ),
    Breakage(
        "R34",
        "buckets.plugin",
        "PluginBucket.deliver",
        "self._place.epoch",
        "1_000",
        "connectors/test_bucketed_plugins.py::test_task_of_a_former_active_is_fenced_by_kafka",
        in_kafka=True,
    ),
    Breakage(
        "R34",
        "publish.sinks.plugin_buckets",
        "Buckets.claim",
        "max(last) <= self._last_mark()",
        "True",
        "connectors/test_bucketed_plugins.py::test_claim_names_a_batch_that_the_journal_does_not_have",
        in_kafka=True,
    ),
    Breakage(
        "R34",
        "publish.sinks.plugin_buckets",
        "Buckets.claim",
        "min(last)",
        "max(last)",
        "connectors/test_bucketed_plugins.py::test_claim_names_a_batch_that_the_journal_does_not_have",
        in_kafka=True,
    ),
    Breakage(
        "R34",
        "connectors.kafka.sink",
        "KafkaSink._require_ours",
        "reader.divides_otherwise",
        "False",
        "connectors/test_bucketed_plugins.py::test_number_of_buckets_of_a_plugin_cannot_change[kafka]",
        in_kafka=True,
    ),
)


@pytest.fixture(scope="module")
def broken_runs(postgres: EmbeddedPostgres) -> Iterator[BrokenRuns]:
    with BrokenRuns(postgres.directory) as runs:
        yield runs


@pytest.mark.parametrize("breakage", BREAKAGES, ids=str)
def test_place_of_each_breakage_exists(breakage: Breakage) -> None:
    """A change runs the tests of an eighth of the breakages, but checks the places of all."""
    breakage.mutation.tree()


@pytest.mark.rotates
@pytest.mark.parametrize(
    "breakage",
    [pytest.param(one, marks=needs_kafka() if one.in_kafka else ()) for one in BREAKAGES],
    ids=str,
)
def test_each_broken_edge_is_detected(breakage: Breakage, broken_runs: BrokenRuns) -> None:
    run = broken_runs.run(breakage.mutation, HERE / breakage.killer)
    assert run.code == TESTS_FAILED, run.output[-4000:]
    assert "ImportError" not in run.output
