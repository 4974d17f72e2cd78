"""Sinks of Kafka, files and S3 whose buckets tasks write: what a task does, and what the node
does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.buckets.place import BucketPlace, Plugin
from ha_engine.buckets.plugin import bucket_of
from ha_engine.buckets.task import require_seen, write_bucket
from ha_engine.errors import Fenced, SinkRefused, SinkUnavailable
from ha_engine.formats.messages import MessageOptions
from ha_engine.outbox.batch_file import WRITTEN_BY_TASKS
from ha_engine.plugins import SinkPlace, keeps_ledger, sink_kind
from ha_engine.plugins.options import validated
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.ledger_store import LedgerStore
from ha_engine.publish.sinks.dead_letters import SinkDeadLetters
from ha_engine.publish.sinks.messages import encoder_of
from ha_engine.publish.sinks.plugin_buckets import BucketedPluginSink, Buckets
from tests.connectors.kafka_broker import new_topic
from tests.connectors.kafka_jars import needs_kafka
from tests.connectors.s3_broker import BUCKET, S3Broker, new_folder, running_broker
from tests.connectors.test_kafka_sink import committed
from tests.publish.batches import GROUP, QUERY, batch_of, soon

pytestmark = pytest.mark.rotates("file")

SINK = "out"
BUCKETS = 3
ROWS = pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
MORE = pa.table({"k": ["c"], "n": pa.array([3], pa.int64())})
SECONDS = 60.0


class Setting:
    """A destination of one kind, and what it has."""

    def __init__(self, database_url: str, directory: Path) -> None:
        self.database_url, self.directory = database_url, directory

    def plugin(self) -> Plugin:
        raise NotImplementedError

    def values(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def place(self, epoch: int = 1, buckets: int = BUCKETS) -> BucketPlace:
        return BucketPlace(
            "default", GROUP, QUERY, SINK, epoch, ("k",), buckets, SECONDS, self.plugin()
        )

    def sink(self, buckets: int = BUCKETS, last_mark: int = 100) -> BucketedPluginSink:
        """The sink of a node, as ``node.connectors`` makes it."""
        plugin = self.plugin()
        kind = sink_kind(plugin.kind)
        options = validated("sink", kind.Options, json.loads(plugin.options))
        encoder = None
        if plugin.messages:
            messages = validated("sink", MessageOptions, json.loads(plugin.messages))
            assert isinstance(messages, MessageOptions)
            encoder = encoder_of("sink", kind, messages, self.directory)
        letters = SinkDeadLetters(self.directory, QUERY, SINK)
        place = SinkPlace("default", QUERY, SINK, letters.put_aside)
        key = LedgerKey("default", QUERY, SINK).of_all(buckets)
        ledger = None
        if not keeps_ledger(kind):
            ledger = LedgerStore(open_engine(self.database_url), key, None)
        made = [kind(options, bucket_of(place, bucket, buckets)) for bucket in range(buckets)]
        composite = Buckets(made, lambda: last_mark)
        return BucketedPluginSink(plugin.kind, place, lambda: composite, ledger, letters, encoder)

    def claimed(self, epoch: int = 1, **more: Any) -> BucketedPluginSink:
        sink = self.sink(**more)
        sink.prepare(ROWS.schema)
        sink.claim(epoch, 0, GROUP, soon(SECONDS))
        return sink


class Files(Setting):
    def plugin(self) -> Plugin:
        return Plugin("files", json.dumps({"directory": str(self.directory / "lake")}))

    def values(self) -> list[dict[str, Any]]:
        files = sorted((self.directory / "lake").rglob("*.jsonl"))
        return [json.loads(line) for one in files for line in one.read_text().splitlines()]


class S3(Setting):
    def __init__(self, database_url: str, directory: Path, broker: S3Broker) -> None:
        super().__init__(database_url, directory)
        self._broker, self._name = broker, new_folder()

    def plugin(self) -> Plugin:
        options = {"url": f"s3://{BUCKET}/{self._name}", "endpoint": self._broker.url}
        keys = {"access_key_id": "sink", "secret_access_key": "hunter2", "region": "us-east-1"}
        return Plugin("s3", json.dumps(options | keys | {"timeout": "60s"}))

    def values(self) -> list[dict[str, Any]]:
        folder = self._broker.folder(self._name)
        keys = sorted(one["path"] for one in folder.list().collect())
        found = [bytes(folder.get(key).bytes()) for key in keys]
        return [json.loads(line) for content in found for line in content.splitlines()]


class Kafka(Setting):
    def __init__(self, database_url: str, directory: Path, brokers: list[str]) -> None:
        super().__init__(database_url, directory)
        self.brokers, self.topic = brokers, new_topic(brokers)

    def plugin(self) -> Plugin:
        ledger = {"topic": f"{self.topic}-ledger", "replication": 1, "min_insync_replicas": 1}
        options = {"brokers": self.brokers, "topic": self.topic, "timeout": "60s"}
        messages = {"format": "json", "columns": {"k": "key"}}
        return Plugin("kafka", json.dumps(options | {"ledger": ledger}), json.dumps(messages))

    def values(self) -> list[dict[str, Any]]:
        messages = committed(self.brokers, self.topic)
        return [
            {"k": message.key().decode(), **json.loads(message.value())} for message in messages
        ]


@pytest.fixture(scope="module")
def s3_broker() -> Iterator[S3Broker]:
    with running_broker() as broker:
        yield broker


KINDS = ["files", "s3", pytest.param("kafka", marks=needs_kafka())]


@pytest.fixture(params=KINDS)
def setting(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Setting:
    match request.param:
        case "files":
            return Files(database_url, tmp_path)
        case "s3":
            return S3(database_url, tmp_path, request.getfixturevalue("s3_broker"))
        case _:
            return Kafka(database_url, tmp_path, request.getfixturevalue("brokers"))


@pytest.fixture
def topic(database_url: str, tmp_path: Path, brokers: list[str]) -> Kafka:
    return Kafka(database_url, tmp_path, brokers)


@pytest.fixture
def lake(database_url: str, tmp_path: Path) -> Files:
    return Files(database_url, tmp_path)


def write(place: BucketPlace, number: int, bucket: int, *tables: pa.Table) -> bool:
    parts = (batch for table in tables for batch in table.to_batches())
    size = sum(table.num_rows for table in tables)
    return write_bucket(place, number, bucket, size, parts)


def by_key(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((row["k"], row["n"]) for row in found)


def test_bucket_is_written_once_and_the_node_publishes_it(setting: Setting, tmp_path: Path) -> None:
    sink, place = setting.claimed(), setting.place()
    for bucket, rows in enumerate([[ROWS], [MORE], []]):
        write(place, 1, bucket, *rows)
    sink.publish(1, batch_of(tmp_path, WRITTEN_BY_TASKS), 1, soon(SECONDS))
    for bucket, rows in enumerate([[ROWS.slice(1), ROWS.slice(0, 1)], [MORE], []]):
        write(place, 1, bucket, *rows)
    assert by_key(setting.values()) == [("a", 1), ("b", 2), ("c", 3)]
    assert setting.claimed(epoch=2).claim(2, 0, GROUP, soon(SECONDS)) == 1


def test_two_tasks_of_one_bucket_write_it_once(setting: Setting) -> None:
    setting.claimed()
    rows = [ROWS] * 20
    with ThreadPoolExecutor(3) as threads:
        tasks = [threads.submit(write, setting.place(), 1, 0, *rows) for _ in range(3)]
    for one in tasks:
        with suppress(SinkUnavailable):
            one.result()
    write(setting.place(), 1, 0, *rows)
    assert len(setting.values()) == 40


def test_task_whose_input_was_cut_writes_nothing(setting: Setting) -> None:
    setting.claimed()
    with pytest.raises(SinkUnavailable, match="of 3 rows"):
        write_bucket(setting.place(), 1, 0, 3, iter(ROWS.to_batches()))
    assert setting.values() == []


def test_batch_from_before_the_buckets_is_written_by_the_node(
    setting: Setting, tmp_path: Path
) -> None:
    sink = setting.claimed()
    sink.publish(1, batch_of(tmp_path, ROWS), 1, soon(SECONDS))
    sink.publish(1, batch_of(tmp_path, ROWS), 1, soon(SECONDS))
    assert by_key(setting.values()) == [("a", 1), ("b", 2)]
    for bucket in range(BUCKETS):
        write(setting.place(), 2, bucket, MORE)
    assert len(setting.values()) == 2 + BUCKETS


def test_number_of_buckets_of_a_plugin_cannot_change(setting: Setting) -> None:
    setting.claimed()
    with pytest.raises(SinkRefused, match="give the sink a new name"):
        setting.claimed(epoch=2, buckets=4)
    setting.claimed(epoch=2)


def test_sink_is_ready_once_prepared_and_claimed(setting: Setting) -> None:
    sink = setting.sink()
    sink.claim(1, 0, GROUP, soon(SECONDS))
    assert not sink.is_ready(1)
    sink.prepare(ROWS.schema)
    assert sink.is_ready(1)
    assert not sink.is_ready(2)
    setting.claimed(epoch=3)
    with pytest.raises(Fenced):
        sink.claim(2, 0, GROUP, soon(SECONDS))
    assert not sink.is_ready(1)


# -- a task that dies, and a task that comes late --------------------------------------------------

_DIES = """
import os, signal, sys
from tests.connectors.test_bucketed_plugins import ROWS, write
from ha_engine.buckets.place import BucketPlace, Plugin
import confluent_kafka

def die(*words, **named):
    os.kill(os.getpid(), signal.SIGKILL)

class Dying(confluent_kafka.Producer):
    commit_transaction = die

confluent_kafka.Producer = Dying
os.link = die
kind, options, messages, group = sys.argv[1:]
plugin = Plugin(kind, options, messages)
write(BucketPlace("default", group, "delays", "out", 1, ("k",), 3, 60.0, plugin), 1, 0, ROWS)
"""


@pytest.mark.parametrize("setting", ["files", KINDS[2]], indirect=True)
def test_task_killed_before_its_commit_leaves_no_rows(setting: Setting) -> None:
    setting.claimed()
    plugin = setting.plugin()
    words = [plugin.kind, plugin.options, plugin.messages, GROUP]
    command = [sys.executable, "-c", _DIES, *words]
    ended = subprocess.run(command, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert setting.claimed(epoch=2).claim(2, 0, GROUP, soon(SECONDS)) == 0
    assert setting.values() == []
    write(setting.place(epoch=2), 1, 0, ROWS)
    assert by_key(setting.values()) == [("a", 1), ("b", 2)]


@needs_kafka()
def test_task_of_a_former_active_is_fenced_by_kafka(topic: Kafka) -> None:
    topic.claimed(epoch=4)
    write(topic.place(epoch=4), 1, 0, ROWS)
    topic.claimed(epoch=5)
    for bucket in range(BUCKETS):
        with pytest.raises(Fenced) as caught:
            write(topic.place(epoch=4), 1, bucket, MORE)
        assert caught.value.epoch == 5
    write(topic.place(epoch=5), 1, 1, MORE)
    assert by_key(topic.values()) == [("a", 1), ("b", 2), ("c", 3)]


@needs_kafka()
def test_open_transaction_of_a_former_active_ends_with_the_claim(
    topic: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of epoch 1 wakes in the moment before its commit, after epoch 2 has the bucket."""
    import confluent_kafka

    topic.claimed()
    at_commit, woken = threading.Event(), threading.Event()

    class Paused(confluent_kafka.Producer):  # type: ignore[misc]  # untyped
        def commit_transaction(self, *words: Any) -> None:
            at_commit.set()
            woken.wait()
            super().commit_transaction(*words)

    errors: list[Exception] = []

    def late() -> None:
        try:
            write(topic.place(), 1, 0, ROWS)
        except SinkUnavailable as error:
            errors.append(error)

    with monkeypatch.context() as patched:
        patched.setattr(confluent_kafka, "Producer", Paused)
        task = threading.Thread(target=late)
        task.start()
        assert at_commit.wait(SECONDS)
    assert topic.claimed(epoch=2).is_ready(2)
    write(topic.place(epoch=2), 1, 0, MORE)
    woken.set()
    task.join()
    assert len(errors) == 1
    assert by_key(topic.values()) == [("c", 3)]


@needs_kafka()
def test_claim_names_a_batch_that_the_journal_does_not_have(topic: Kafka) -> None:
    """RULES.md#r26: a forced failover gave the batch up, and no other batch gets its number."""
    topic.claimed()
    write(topic.place(), 1, 0, ROWS)
    assert topic.sink(last_mark=1).claim(2, 0, GROUP, soon(SECONDS)) == 0
    assert topic.sink(last_mark=0).claim(3, 0, GROUP, soon(SECONDS)) == 1


@needs_kafka()
def test_task_leaves_no_gap_in_the_ledger_of_kafka(topic: Kafka) -> None:
    topic.claimed()
    with pytest.raises(SinkRefused, match="would leave a gap"):
        write(topic.place(), 2, 0, ROWS)
    with pytest.raises(SinkRefused, match="belongs to group"):
        write(replace(topic.place(), group_id="another"), 1, 0, ROWS)
    assert topic.values() == []


@pytest.mark.parametrize("setting", ["files", "s3"], indirect=True)
def test_late_task_with_other_rows_changes_nothing(setting: Setting) -> None:
    """A forced failover gave batch 1 of epoch 1 up, and epoch 2 made another batch 1."""
    setting.claimed(epoch=2)
    write(setting.place(epoch=2), 1, 0, ROWS)
    with pytest.raises(SinkRefused, match="other rows"):
        write(setting.place(), 1, 0, MORE)
    assert by_key(setting.values()) == [("a", 1), ("b", 2)]


def test_late_task_that_saw_no_file_replaces_none(
    lake: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.claimed(epoch=2)
    link = os.link

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        write(lake.place(epoch=2), 1, 0, ROWS)
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(SinkRefused, match="other rows"):
        write(lake.place(), 1, 0, MORE)
    assert by_key(lake.values()) == [("a", 1), ("b", 2)]
    assert list((lake.directory / "lake").rglob("*.part")) == []


def test_directory_that_this_host_does_not_share_is_refused(lake: Files, tmp_path: Path) -> None:
    place = lake.place()
    elsewhere = replace(place, target=Plugin("files", json.dumps({"directory": str(tmp_path)})))
    lake.claimed()
    write(elsewhere, 1, 2, ROWS)
    with pytest.raises(SinkRefused, match="2-of-3 of batch 1 of sink out"):
        require_seen(place, 1, [2])
    write(place, 1, 2, ROWS)
    require_seen(place, 1, [2])
