"""Breakages test the histories: a few of them detect each breakage of the code that uses the disk.

A breakage that no history can see names the test that detects it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.broken import BrokenRuns
from tests.dst.kinds import KINDS
from tests.mutation import Mutation

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Breakage:
    """A mutation of ``place``, a module and a function, that ``killer`` detects.

    ``killer`` is a kind of histories, of which one of the first ``seeds`` fails, or a test file.
    """

    place: str
    old: str
    new: str
    killer: str
    seeds: int = 0

    @property
    def mutation(self) -> Mutation:
        module, _, function = self.place.partition(":")
        return Mutation(f"ha_engine.{module}", function, self.old, self.new)

    def __str__(self) -> str:
        return f"{self.mutation} -> {self.new}"


# Some breakages are not here, because nothing can detect them. Without the fsync of the journal's
# parent in ``_create_at``, the next start makes the entry durable. Damage before the last segment
# is noticed in the next segment too. A delivery that does not wait for its cancelled call waits
# for the end of its one thread.
B = Breakage
JOURNAL, OUTBOX, PUBLISH, SNAPSHOT = "journal", "outbox", "publish", "snapshot"
KAFKA, KAFKA_SINK = "kafka", "kafka-sink"
BREAKAGES: tuple[Breakage, ...] = (
    B("journal.journal:Journal.open", "_mend(found[-1], identity, files)", "", JOURNAL, 60),
    B("journal.journal:Journal.open", "files.fsync_directory(directory)", "", JOURNAL, 60),
    B("journal.journal:Journal.sync", "self._tail.sync()", "", JOURNAL, 60),
    B("journal.journal:Journal._roll", "self._entry_pending = True", "", JOURNAL, 60),
    B(
        "journal.journal:Journal.truncate_after",
        "self._tail.first > sequence",
        "self._tail.first >= sequence",
        JOURNAL,
        60,
    ),
    B("journal.journal:Journal.truncate_after", "sequence < self._tail.last", "False", JOURNAL, 60),
    B("journal.journal:Journal.truncate_after", "start.sequence <= sequence", "True", JOURNAL, 60),
    B("journal.journal:Journal.give_up_after", "self.retire()", "", JOURNAL, 60),
    B("journal.journal:Journal.give_up_after", "self.truncate_after(sequence)", "", JOURNAL, 60),
    B(
        "journal.journal:Journal.set_aside_after",
        "self.locate(first.sequence, self._last.sequence)",
        "self.locate(first.sequence, self._last.sequence - 1)",
        JOURNAL,
        60,
    ),
    B(
        "journal.journal:Journal.trim_before",
        "one.last >= sequence",
        "one.last > sequence",
        JOURNAL,
        60,
    ),
    B(
        "journal.journal:Journal.trim_before",
        "self._store(replace(self._identity, epochs=trimmed))",
        "",
        JOURNAL,
        60,
    ),
    B(
        "journal.journal:Journal._note",
        "frame.position.epoch > self._epochs[-1].epoch",
        "False",
        JOURNAL,
        60,
    ),
    B("journal.journal:Journal._drop_tail", "self._tail.open_for_append()", "", JOURNAL, 60),
    B("journal.journal:Journal._store", "self._identity = identity", "", JOURNAL, 60),
    B(
        "journal.journal:Journal._fatal",
        "self._failure = str(failed)",
        "",
        "journal/test_journal_faults.py",
    ),
    B(
        "journal.journal:Journal._fatal",
        "self._failure = str(error)",
        "",
        "journal/test_journal_faults.py",
    ),
    B(
        "journal.journal:Journal.bind_group",
        "self._store(replace(self._identity, group_id=group_id))",
        "",
        JOURNAL,
        60,
    ),
    B("journal.journal:Journal.retire", "former", "", JOURNAL, 60),
    B(
        "journal.journal:Journal.__init__",
        "(*epochs_before(identity, self.first), *starts)",
        "tuple(starts)",
        JOURNAL,
        60,
    ),
    B("journal.journal:_mend", "tail.headless", "False", JOURNAL, 60),
    B("journal.opening:_check_follows", "first != last.sequence + 1", "False", JOURNAL, 60),
    B(
        "journal.opening:_check_place",
        "header.journal_id not in (identity.journal_id, *identity.former)",
        "False",
        "journal/test_journal_damage.py",
    ),
    B("journal.opening:look", "last = found.outline.last", "", JOURNAL, 60),
    B(
        "journal.reading:_check_parts",
        "_read_payload(file, header)",
        "file.read(header.payload_length)",
        JOURNAL,
        60,
    ),
    B(
        "journal.reading:_require_sequence",
        "header.sequence != expected",
        "False",
        "journal/test_journal_damage.py",
    ),
    B("journal.reading:_extend", "header.epoch > epoch", "", JOURNAL, 60),
    B(
        "journal.reading:_read_rest",
        "_read_payload(file, header)",
        "file.read(header.payload_length)",
        JOURNAL,
        60,
    ),
    B(
        "journal.reading:_read_head",
        "_read_meta(file, header)",
        "file.read(header.meta_length)",
        JOURNAL,
        200,
    ),
    B(
        "journal.reading:_read_frame",
        "_read_payload(file, header)",
        "file.read(header.payload_length)",
        JOURNAL,
        60,
    ),
    B("journal.reading:_read_rest", "file.seek(header.payload_length, 1)", "", JOURNAL, 60),
    B("journal.reading:offset_of", "at < sequence", "at < sequence - 1", JOURNAL, 60),
    B("journal.record:decode_header", "crc32c(raw[_START.size :]) != crc", "False", JOURNAL, 60),
    B("journal.record:verified", "length and crc32c(part) != crc", "False", JOURNAL, 60),
    B(
        "journal.record:_read_events",
        "tuple([Pulled(*one) for one in pulled]) if pulled else ()",
        "()",
        JOURNAL,
        60,
    ),
    B("journal.record:_written", "_flag(forced)", "_flag(False)", JOURNAL, 60),
    B("journal.record:_written_version", "_flag(version.reset)", "_flag(False)", JOURNAL, 60),
    B("journal.segment:Segment.sync", "self._writable().fdatasync()", "", JOURNAL, 60),
    B("journal.segment:Segment.truncate_after", "self._writable().truncate(end)", "", JOURNAL, 60),
    B("journal.segment:settle", "file.evict()", "", JOURNAL, 100),
    B("journal.segment:settle", "file.fsync()", "", JOURNAL, 60),
    B("journal.segment:_write_frames", "written < sum(map(len, some))", "False", JOURNAL, 60),
    B(
        "journal.tail:describe_torn",
        "_record_follows(rest, expected) or not _is_truncated(rest, offset)",
        "False",
        JOURNAL,
        60,
    ),
    B("journal.tail:_is_truncated", "end > len(rest)", "False", JOURNAL, 60),
    B(
        "journal.tail:is_torn_file_header",
        "len(read_file(path, files).rstrip(b'\\0')) <= FILE_HEADER_BYTES",
        "False",
        JOURNAL,
        60,
    ),
    B("journal.writer:JournalWriter._ran", "self._fail(error)", "pass", JOURNAL, 60),
    B(
        "journal.writer:JournalWriter._ran",
        "DiskFailed | JournalDamaged",
        "DiskFailed",
        JOURNAL,
        200,
    ),
    B("journal.writer:JournalWriter._submit", "self._watch.begin()", "", JOURNAL, 200),
    B("journal.writer:JournalWriter._write", "self._journal.sync()", "", JOURNAL, 60),
    B("journal.writer:JournalWriter._written", "self._fail(failed)", "pass", JOURNAL, 60),
    B(
        "journal.writer:JournalWriter._written",
        "self._pending_bytes -= sum(frame.length for frame in frames)",
        "",
        "journal/test_journal_writer.py",
    ),
    B("system.files:replace_file", "file.fsync()", "", JOURNAL, 60),
    B(
        "system.files:write_all",
        "while rest: rest = rest[file.write(rest) :]",
        "file.write(rest)",
        JOURNAL,
        100,
    ),
    B("node.driver:Driver._call_lease", "_begins_an_epoch(action)", "False", "test_driver.py"),
    B("node.driver:_begins_an_epoch", "wanted.epoch > expected.epoch", "True", "test_driver.py"),
    B("node.driver:Driver._on_disk", "self._disk_watch.begin()", "", "test_driver.py"),
    B("system.stuck_watch:StuckWatch.end", "self._look_later()", "", "test_driver.py"),
    B(
        "receive.producers:ProducerTable.require_room",
        "evicted <= 0",
        "True",
        "receive/test_receive_producers.py",
    ),
    B(
        "receive.producers:ProducerTable.require_room",
        "newest is None or abs(now_us - newest.newest_us) < KEPT_SECONDS * 1_000_000",
        "True",
        "receive/test_receive_producers.py",
    ),
    B(
        "receive.producers:ProducerTable.require_room",
        "abs(now_us - newest.newest_us)",
        "now_us - newest.newest_us",
        "receive/test_receive_producers.py",
    ),
    B(
        "receive.producers:ProducerTable.load_base",
        "_Producer(newest_us=now_us)",
        "_Producer()",
        "receive/test_receive_producers.py",
    ),
    B(
        "receive.gate:Gate.load_base",
        "self._wall_clock_us()",
        "0",
        "receive/test_receive_gate.py",
    ),
    B(
        "receive.gate:Gate._require_room",
        "len(self._newcomers) + 1",
        "1",
        "receive/test_receive_gate.py",
    ),
    B(
        "outbox.query_outbox:QueryOutbox.open",
        "query_outbox._make_durable()",
        "",
        "publish/test_outbox.py",
    ),
    B(
        "outbox.query_outbox:QueryOutbox.open",
        "query_outbox.require_no_gap()",
        "",
        "publish/test_outbox.py",
    ),
    B(
        "outbox.query_outbox:QueryOutbox.open",
        "query_outbox._sweep(living)",
        "",
        "publish/test_outbox.py",
    ),
    B(
        "outbox.query_outbox:QueryOutbox.open",
        "max(query_outbox.last, query_outbox.trimmed_through)",
        "query_outbox.last",
        "publish/test_outbox.py",
    ),
    B("outbox.query_outbox:QueryOutbox.add", "replace(pending, path=path)", "pending", OUTBOX, 60),
    B(
        "outbox.query_outbox:QueryOutbox.trim",
        "self._note_trimmed(through)",
        "",
        "publish/test_outbox.py",
    ),
    B(
        "outbox.query_outbox:QueryOutbox.trim",
        "min(through, self.last) + 1",
        "min(through, self.last)",
        "publish/test_outbox.py",
    ),
    B(
        "core.versions:Versions.apply",
        "self._changed_after[name] = last_mark(name)",
        "pass",
        "core/test_deployment.py",
    ),
    B(
        "core.marks:QueryMarks.need",
        "min(finished, self.published_through)",
        "finished",
        "core/test_deployment.py",
    ),
    B(
        "core.marks:QueryMarks.in_flight",
        "self.admitted if self.passed is None else self.passed",
        "self.admitted",
        "core/test_deployment.py",
    ),
    B(
        "outbox.query_outbox:QueryOutbox._take",
        "self._files.unlink(batch.path, missing_ok=True)",
        "",
        "publish/test_outbox.py",
    ),
    B(
        "outbox.query_outbox:QueryOutbox.remove",
        "self._files.fsync_directory(self._place.parent)",
        "",
        OUTBOX,
        200,
    ),
    B(
        "outbox.query_outbox:QueryOutbox.remove",
        "self._files.rename(self._place, dropped)",
        "dropped = self._place",
        OUTBOX,
        200,
    ),
    B(
        "outbox.query_outbox:read_digest",
        "int(checksum, 16) == crc32c(digest.encode())",
        "True",
        "publish/test_outbox.py",
    ),
    B("outbox.outbox:Outbox.open", "files.rmtree(dropped)", "pass", "publish/test_outbox.py"),
    B(
        "outbox.outbox:Outbox.open",
        "files.fsync_directory(outbox._directory)",
        "",
        "dst/test_interrupted_drop.py",
    ),
    B(
        "outbox.outbox:Outbox._admit_again",
        "Admission.DONE if same else Admission.MISMATCH",
        "Admission.DONE",
        OUTBOX,
        60,
    ),
    B(
        "outbox.outbox:Outbox._admit_again",
        "known is None and admitted is None",
        "known is None",
        OUTBOX,
        60,
    ),
    B(
        "outbox.outbox:Outbox.admit",
        "number <= query_outbox.last",
        "number < query_outbox.last",
        OUTBOX,
        60,
    ),
    B(
        "outbox.outbox:Outbox.admit",
        "number > query_outbox.last + 1",
        "False",
        "publish/test_outbox.py",
    ),
    B("outbox.batch_file:write_batch_file", "raw.fsync()", "", OUTBOX, 60),
    B("outbox.batch_file:write_batch_file", "file.flush()", "", OUTBOX, 60),
    B("outbox.batch_file:_verified_length", "_sum_of(file, length) != wanted", "", OUTBOX, 60),
    B(
        "publish.delivery:Delivery._advance",
        "(self._through or 0) + 1",
        "(self._through or 0) + 2",
        PUBLISH,
        60,
    ),
    B("publish.delivery:Delivery._claim", "self._reached(through, published)", "", PUBLISH, 60),
    B("publish.delivery:Delivery._call", "await self._authorized()", "", PUBLISH, 60),
    B("publish.delivery:Delivery._call", "deadline.cancel()", "", "publish/test_publisher.py"),
    B("publish.publisher:Publisher.admitted", "delivery.wake()", "", "publish/test_publisher.py"),
    B(
        "publish.publisher:Publisher._ended",
        "self._on_fenced(fenced.epoch)",
        "",
        "publish/test_publisher.py",
    ),
    B(
        "publish.delivery:Delivery._with_retries",
        "(SinkUnavailable, SinkRefused)",
        "SinkRefused",
        PUBLISH,
        60,
    ),
    B(
        "publish.delivery:Delivery._authorized",
        "self._authority.remaining_seconds() < LEAST_SECONDS",
        "False",
        PUBLISH,
        60,
    ),
    B(
        "publish.delivery:Delivery.run",
        "self._ledger_known, self._through = False, None",
        "",
        PUBLISH,
        60,
    ),
    B(
        "publish.delivery:Delivery._require_ours",
        "through > last",
        "False",
        "publish/test_publisher.py",
    ),
    B("publish.delivery:_over", "not running.done()", "False", PUBLISH, 60),
    B("publish.publisher:Publisher.start", "task.cancel()", "pass", PUBLISH, 130),
    B("publish.publisher:Publisher._deliver", "await _all_over(before)", "pass", PUBLISH, 130),
    B(
        "publish.publisher:Publisher.stop",
        "_all_over(list(self._running))",
        "_all_over([])",
        PUBLISH,
        60,
    ),
    B(
        "publish.sink:Deadline.remaining_seconds",
        "self._authority.remaining_seconds()",
        "",
        PUBLISH,
        60,
    ),
    B("node.driver:Driver.handle", "not self.ended.done()", "", "test_driver.py"),
    B("node.driver:Driver.offer", "self.ended.done()", "", "test_driver.py"),
    B(
        "node.driver:Driver.committed",
        "sequence <= self.core.journal.committed",
        "False",
        "test_driver.py",
    ),
    B("node.driver:Driver.committed", "not self.core.holds_epoch", "", "test_driver.py"),
    B(
        "node.driver:Driver._answer_commits",
        "self._waiters[0][0] <= sequence",
        "self._waiters[0][0] < sequence",
        "test_driver.py",
    ),
    B("node.driver:Driver._perform", "self._refuse_commits(reason)", "", "test_driver.py"),
    B("node.driver:Driver.fail", "self._refuse_commits(str(error))", "", "test_driver.py"),
    B("node.driver:Driver._append", "not self.core.holds_epoch", "False", "test_driver.py"),
    B("node.driver:Driver._on_disk", "self._disk_watch.end()", "None", "test_driver.py"),
    B(
        "node.local_service:LocalService._on_disk",
        "self._outbox_watch.begin()",
        "",
        "component/test_local_service.py",
    ),
    B(
        "node.local_service:LocalService._on_disk",
        "self._outbox_watch.end()",
        "None",
        "component/test_local_service.py",
    ),
    B("node.driver:Driver._on_disk", "self._spawn(done, 'small file work')", "", "test_driver.py"),
    B("node.driver:Driver._call_lease", "await self._kept", "pass", "test_driver.py"),
    B("node.driver:Driver._spawn", "self.fail(error)", "pass", "test_driver.py"),
    B("snapshot.restore:finish", "checkpoints.put_all(places.whole)", "", SNAPSHOT, 40),
    B("snapshot.restore:finish", "_keep_what_was_given_up(places, files)", "", SNAPSHOT, 40),
    B(
        "snapshot.restore:finish",
        "(OUTBOX, JOURNAL)",
        "(JOURNAL, OUTBOX)",
        "dst/test_finish_restore.py",
    ),
    B(
        "snapshot.restore:Restoring.restore.bring",
        "self.files.sync(self.places.coming)",
        "pass",
        SNAPSHOT,
        40,
    ),
    B(
        "snapshot.checkpoint_storage:CheckpointDirectories.seal",
        "self.sync()",
        "pass",
        SNAPSHOT,
        100,
    ),
    B(
        "snapshot.restore:Restoring.restore.bring",
        "keep(self.places.coming / JOURNAL)",
        "",
        SNAPSHOT,
        40,
    ),
    B(
        "snapshot.restore:Restoring._newest",
        "not history.has_all(revision.position, revision.last_mark)",
        "False",
        SNAPSHOT,
        40,
    ),
    B(
        "snapshot.restore:Restoring._bring_with",
        "self._clear()",
        "",
        SNAPSHOT,
        40,
    ),
    B(
        "snapshot.restore:Restoring._stamp_state",
        "self.checkpoints.stamp(query, lineage)",
        "",
        SNAPSHOT,
        40,
    ),
    B(
        "snapshot.restore:Restoring._bring_state",
        "outbox.last_admitted(captured.query) < captured.number",
        "False",
        "snapshot/test_archive.py",
    ),
    B(
        "outbox.query_outbox:QueryOutbox.restore",
        "self.trim(left)",
        "",
        "snapshot/test_archive.py",
    ),
    B(
        "snapshot.restore:finish",
        "files.fsync_directory(places.home)",
        "",
        "dst/test_finish_restore.py",
    ),
    B("outbox.query_outbox:QueryOutbox.open", "query_outbox._trim_again()", "", OUTBOX, 200),
    B(
        "outbox.query_outbox:QueryOutbox.open",
        "query_outbox._forget_digests_beyond_last()",
        "",
        "publish/test_outbox.py",
    ),
    B(
        "core.marks:QueryMarks.outbox_restored",
        "self._begin_after(left)",
        "",
        "core/test_restored_outbox.py",
    ),
    B(
        "query.checkpoints:_may_be_complete",
        "last_finished(directory) is None",
        "False",
        "query/test_checkpoints.py",
    ),
    B(
        "snapshot.checkpoint_storage:replace_directory",
        "files.fsync_directory(old.parent)",
        "",
        "dst/test_finish_restore.py",
    ),
    B("snapshot.restore:Restoring._make_journal", "base.epochs", "()", SNAPSHOT, 40),
    B(
        "snapshot.checkpoint_storage:CheckpointDirectories.stamp",
        "checkpoints.stamp_restored(self._fresh(query), lineage, self.files)",
        "",
        SNAPSHOT,
        40,
    ),
    B(
        "snapshot.files:_missing",
        "missing |= store.refer(draft, wanted[at:at + REFERRED_TOGETHER])",
        "store.refer(draft, wanted[at:at + REFERRED_TOGETHER])",
        SNAPSHOT,
        5,
    ),
    B("snapshot.files:in_portions", "len(portion) == 1", "False", "snapshot/test_slow_line.py"),
    B("snapshot.files:_contents", "digest not in found", "False", SNAPSHOT, 40),
    B(
        "snapshot.capture:Capture._link_outbox",
        "range(number, self.outbox.floor(query), -1)",
        "range(number - 1, self.outbox.floor(query), -1)",
        SNAPSHOT,
        40,
    ),
    B("snapshot.capture:Capture.files", "self.clear()", "", SNAPSHOT, 40),
    B(
        "snapshot.base_builder:BaseBuilder.at",
        "_with_marks(found.base, place, self._marks_behind(place))",
        "found.base",
        SNAPSHOT,
        5,
    ),
    B(
        "snapshot.base_builder:BaseBuilder._fold",
        "producers.load_base(found.producers)",
        "",
        SNAPSHOT,
        40,
    ),
    B(
        "snapshot.base_builder:BaseBuilder._fold",
        "offsets.load_base(found.offsets)",
        "",
        SNAPSHOT,
        40,
    ),
    B("snapshot.base_builder:BaseBuilder._fold", "offsets.apply(record.body)", "", SNAPSHOT, 40),
    B(
        "snapshot.service:SnapshotService.trim",
        "position.sequence + 1",
        "position.sequence + 2",
        SNAPSHOT,
        60,
    ),
    B(
        "snapshot.service:SnapshotService.trim",
        "await self._in_thread(lambda: self._store_base(position))",
        "",
        SNAPSHOT,
        40,
    ),
    B(
        "snapshot.verification:distrust_damaged",
        "store.distrust(found[digest])",
        "pass",
        SNAPSHOT,
        40,
    ),
    B(
        "snapshot.chunks:unpack",
        "digest_of(content) != chunk.digest",
        "False",
        "snapshot/test_chunks_and_manifest.py",
    ),
    B(
        "snapshot.base_file:decode",
        "encoded[:DIGEST_BYTES] != _digest(content)",
        "False",
        "journal/test_base_file.py",
    ),
    B(
        "query.checkpoints:is_whole",
        "found.lineage != lineage",
        "False",
        "query/test_checkpoints.py",
    ),
    B("query.checkpoint_files:_chains", "changes.append(known[at, False])", "pass", SNAPSHOT, 40),
    B("connectors.kafka.cluster:Cluster.committed_ends", "True", "False", KAFKA, 20),
    B("connectors.kafka.cluster:Cluster._offsets", "result.offset < 0", "False", KAFKA, 20),
    B("connectors.kafka.log:KafkaLog._beginning", "first[number]", "0", KAFKA, 20),
    B("connectors.kafka.log:KafkaLog.read", "self._is_begun = True", "", KAFKA, 110),
    B(
        "connectors.kafka.log:KafkaLog._grown",
        "_require_same(before, topic, self._options)",
        "",
        KAFKA,
        80,
    ),
    B(
        "connectors.kafka.log:KafkaLog._grown",
        "_require_history(before, ends, self._options)",
        "",
        KAFKA,
        20,
    ),
    B(
        "connectors.kafka.log:KafkaLog._grown",
        "self._positions.add(topic.partitions)",
        "",
        KAFKA,
        20,
    ),
    B(
        "connectors.kafka.log:TopicIdentity._require",
        "_require_same(known, self._cluster.topic(self._options.topic), self._options)",
        "",
        KAFKA,
        60,
    ),
    B(
        "connectors.kafka.log:TopicIdentity._require",
        "_require_history(known, ends, self._options)",
        "",
        KAFKA,
        180,
    ),
    B(
        "connectors.kafka.log:_require_history",
        "UNKNOWN < end.epoch < known.epochs[number]",
        "False",
        KAFKA,
        20,
    ),
    B(
        "connectors.kafka.log:_require_history",
        "require_history(options, known, changed)",
        "pass",
        KAFKA,
        90,
    ),
    B("connectors.kafka.retention:headroom", "min", "max", KAFKA, 60),
    B(
        "receive.log_history:_Ends.at",
        "bisect_right(self.sequences, sequence)",
        "bisect_left(self.sequences, sequence)",
        KAFKA,
        20,
    ),
    B(
        "connectors.kafka.sink:KafkaSink.claim",
        "reader.read_to(end, claim.remaining_seconds)",
        "pass",
        KAFKA_SINK,
        20,
    ),
    B(
        "connectors.kafka.sink:KafkaSink.claim",
        "claimed = self._fencing(claim)\n"
        "end = cluster.last(ledger.topic, [PARTITION])[PARTITION]\n"
        "reader.read_to(end, claim.remaining_seconds)\n"
        "self._require_ours(reader, claim)",
        "end = cluster.last(ledger.topic, [PARTITION])[PARTITION]\n"
        "reader.read_to(end, claim.remaining_seconds)\n"
        "self._require_ours(reader, claim)\n"
        "claimed = self._fencing(claim)",
        KAFKA_SINK,
        20,
    ),
    B(
        "connectors.kafka.sink:KafkaSink._require_ours",
        "record.epoch > claim.epoch",
        "False",
        KAFKA_SINK,
        20,
    ),
    B(
        "connectors.kafka.sink:KafkaSink.claim",
        "found.epoch != claim.epoch",
        "False",
        KAFKA_SINK,
        20,
    ),
    B(
        "connectors.kafka.sink:KafkaSink.deliver",
        "claimed = replace(claimed, record=replace(ledger, batch=batch.number))",
        "pass",
        KAFKA_SINK,
        20,
    ),
)


QUICK = BREAKAGES[3::18]


@pytest.fixture(scope="module")
def broken_runs(postgres: EmbeddedPostgres) -> Iterator[BrokenRuns]:
    with BrokenRuns(postgres.directory) as runs:
        yield runs


def detected(runs: BrokenRuns, breakage: Breakage) -> None:
    if breakage.killer in KINDS:
        run = runs.play(breakage.mutation, breakage.killer, breakage.seeds)
    else:
        run = runs.run(breakage.mutation, TESTS / breakage.killer)
    assert run.code == pytest.ExitCode.TESTS_FAILED, run.output[-4000:]
    assert "ImportError" not in run.output


@pytest.mark.parametrize("breakage", BREAKAGES, ids=str)
def test_place_of_each_breakage_exists(breakage: Breakage) -> None:
    breakage.mutation.tree()


@pytest.mark.rotates
@pytest.mark.parametrize("breakage", QUICK, ids=str)
def test_some_breakages_are_detected(breakage: Breakage, broken_runs: BrokenRuns) -> None:
    detected(broken_runs, breakage)


@pytest.mark.nightly("test_some_breakages_are_detected has one of each stage")
@pytest.mark.parametrize("breakage", BREAKAGES, ids=str)
def test_each_breakage_is_detected(breakage: Breakage, broken_runs: BrokenRuns) -> None:
    detected(broken_runs, breakage)
