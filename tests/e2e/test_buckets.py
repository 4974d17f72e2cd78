"""A pair whose tasks write the buckets of sinks, and which loses its active again and again
(RULES.md#r34)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import text

from ha_engine.client import Producer
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from tests.connectors import kafka_broker, s3_broker
from tests.connectors.kafka_jars import needs_kafka
from tests.connectors.test_kafka_sink import committed
from tests.e2e.databases import fresh_database, rows
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.e2e.pair import Pair, running_pair
from tests.publish.bucketed import stages
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.nightly("test_atomic_batches and test_bucketed_plugins have it without Spark"),
    pytest.mark.spark,
    pytest.mark.timeout(2 * 3600),  # each kill costs a start of all queries, on a busy host minutes
]

BUCKETS = 4
Section = dict[str, Any]


class Numbers:
    """A pair that gets the numbers 0, 1, 2 and so on."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.sent = pair, 0

    def send(self, count: int) -> None:
        """Send the next numbers in order, and return once all are acked."""
        with Producer(self.pair.urls) as producer:
            for first in range(self.sent, self.sent + count, 500):
                numbers = pa.array(range(first, min(first + 500, self.sent + count)), pa.int32())
                producer.send("numbers", pa.record_batch({"n": numbers}))
                producer.flush()
        self.sent += count

    def active(self) -> NodeUnderTest:
        wait_until(lambda: self.pair.active() is not None, within=SPARK_SECONDS)
        active = self.pair.active()
        assert active is not None
        return active

    def return_from(self, killed: NodeUnderTest) -> None:
        """Send numbers to the node that is left, if the other one was killed, and start that."""
        self.send(1_000)
        assert killed.process is not None
        if killed.process.poll() is not None:
            killed.start()
            self.pair.wait_protected()

    def settle(self) -> None:
        """Return once every sink has the output of all numbers."""
        self.pair.wait_settled()


@contextmanager
def counting(directory: Path, url: str, queries: Section) -> Iterator[Numbers]:
    """Run a pair with these queries of the stream ``numbers``."""
    streams = {"numbers": {"schema": {"n": "int not null"}}}
    application = {"name": "numbers", "streams": streams, "queries": queries}
    pair = Pair(directory, yaml.safe_dump(application), url, snapshot={"interval": "5s"})
    with running_pair(pair):
        pair.wait_protected()
        yield Numbers(pair)


def kill(active: NodeUnderTest, what: str) -> None:
    """Kill a process of the active, or all of them."""
    if what == "everything":
        active.kill_everything()
    else:
        active.kill(what)


def query(sql: str, sink: Section, **more: str) -> Section:
    return {"sql": sql, "standby": "warm", "sinks": [{"buckets": BUCKETS, **sink}], **more}


# -- batches that appear at once -------------------------------------------------------------------

ATOMIC = {"name": "table", "type": "postgres", "auto_create": True, "atomic": "batch"}
COPIES = query("SELECT n FROM numbers", {**ATOMIC, "table": "copies"})
SLOTS = query(
    "SELECT n % 97 AS slot, count(*) AS seen, max(n) AS newest FROM numbers GROUP BY n % 97",
    {**ATOMIC, "table": "slots", "mode": "upsert", "key": ["slot"]},
    output_mode="update",
)
KILLS = [
    ("everything", "copies"),
    ("query", "slots"),
    ("node", "copies"),
    ("everything", "slots"),
]


class Reader(threading.Thread):
    """Reads both tables all the time, each in one snapshot.

    The numbers of the journal's first events are 0, 1, 2 and so on. So a table with all batches up
    to some batch has all numbers up to some number, and a table with a part of a batch has not.
    """

    def __init__(self, url: str) -> None:
        super().__init__(name="reader")
        engine = open_engine(url, statement_timeout=600)
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._over = threading.Event()
        self.seen: dict[str, set[tuple[int, ...]]] = {"copies": set(), "slots": set()}

    def __enter__(self) -> Reader:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        copies = text("SELECT count(*), count(DISTINCT n), max(n) + 1 FROM copies")
        slots = text("SELECT sum(seen)::bigint, max(newest) + 1 FROM slots")
        with self._engine.connect() as connection:
            while not self._over.wait(0.005):
                self.seen["copies"].add(tuple(connection.execute(copies).one()))
                self.seen["slots"].add(tuple(connection.execute(slots).one()))

    def torn(self) -> list[tuple[int, ...]]:
        """Return the views of a table that lacked a part of a batch, or had it twice."""
        return [one for found in self.seen.values() for one in found if len(set(one)) > 1]


@contextmanager
def commits_held(url: str, table: str) -> Iterator[None]:
    """Let no transaction write to the table meanwhile; readers go on."""
    with open_engine(url, statement_timeout=600).begin() as connection:
        connection.execute(text(f"LOCK TABLE {table} IN SHARE MODE"))
        yield


def commit_waits(url: str, table: str) -> bool:
    """Return whether a commit wants to move the rows of its staging table now."""
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    waiting = f"SELECT pid FROM pg_locks WHERE NOT granted AND relation = '{table}'::regclass"
    return rows(url, f"{waiting} AND {here}") != []


def test_no_reader_sees_a_part_of_a_batch_while_actives_die_between_stage_and_commit(
    tmp_path: Path, postgres: EmbeddedPostgres
) -> None:
    with (
        fresh_database(postgres, "atomic") as url,
        counting(tmp_path, url, {"copies": COPIES, "slots": SLOTS}) as numbers,
    ):
        numbers.send(5_000)
        numbers.settle()
        with Reader(url) as reader:
            for what, table in KILLS:
                active = numbers.active()
                with commits_held(url, table):
                    numbers.send(3_000)
                    waits = partial(commit_waits, url, table)
                    wait_until(waits, within=SPARK_SECONDS, every=0.01)
                    assert stages(url) != []
                    kill(active, what)
                numbers.return_from(active)
                numbers.settle()
                assert reader.torn() == []
            whole = (numbers.sent,) * 3
            wait_until(lambda: whole in reader.seen["copies"], within=SPARK_SECONDS)
        assert reader.torn() == []
        assert all(len(found) > len(KILLS) for found in reader.seen.values())
        assert rows(url, "SELECT n FROM copies ORDER BY n") == [(n,) for n in range(numbers.sent)]
        seen = rows(url, "SELECT slot, seen FROM slots ORDER BY slot")
        assert seen == [(slot, len(range(slot, numbers.sent, 97))) for slot in range(97)]
        assert {sink for (sink,) in rows(url, "SELECT sink FROM ha_engine_ledger")} == {
            "table#batch"
        }
        assert stages(url) == []


# -- Kafka, files and S3 ---------------------------------------------------------------------------


class Outputs:
    """The sinks of three queries: a topic, a directory and a folder of S3."""

    def __init__(self, directory: Path, brokers: list[str], s3: s3_broker.S3Broker) -> None:
        self._brokers, self._topic = brokers, kafka_broker.new_topic(brokers)
        self._reader = Consumer({"bootstrap.servers": ",".join(brokers), "group.id": "sizes"})
        self._lake = directory / "lake"
        folder = s3_broker.new_folder()
        self._folder = s3.folder(folder)
        ledger = {"topic": f"{self._topic}-ledger", "replication": 1, "min_insync_replicas": 1}
        topic = {"type": "kafka", "brokers": brokers, "topic": self._topic, "ledger": ledger}
        keys = {"access_key_id": "sink", "secret_access_key": "hunter2", "region": "us-east-1"}
        store = {"type": "s3", "url": f"s3://{s3_broker.BUCKET}/{folder}", "endpoint": s3.url}
        sinks: dict[str, Section] = {
            "kafka": {"name": "out", **topic, "format": "json"},
            "files": {"name": "out", "type": "files", "directory": str(self._lake)},
            "s3": {"name": "out", **store, **keys},
        }
        self.queries = {
            name: query("SELECT n, repeat('x', 200) AS text FROM numbers", sink)
            for name, sink in sinks.items()
        }

    def size(self, output: str) -> int:
        """Return the size of an output, with the parts that no reader sees yet."""
        match output:
            case "kafka":
                partition = TopicPartition(self._topic, 0)
                _, end = self._reader.get_watermark_offsets(partition, timeout=60)
                return int(end)
            case "files":
                return len(list(self._lake.rglob("*.*")))
            case _:
                return len(self._folder.list().collect())

    def close(self) -> None:
        self._reader.close()

    def numbers(self) -> dict[str, list[int]]:
        """Return the numbers of all rows that readers see in each output, in order."""
        files = [path.read_text() for path in self._lake.rglob("*.jsonl")]
        objects = [one["path"] for one in self._folder.list().collect()]
        stored = [bytes(self._folder.get(key).bytes()).decode() for key in objects]
        messages = [message.value() for message in committed(self._brokers, self._topic)]
        return {
            "kafka": sorted(json.loads(message or b"")["n"] for message in messages),
            "files": sorted(json.loads(line)["n"] for one in files for line in one.splitlines()),
            "s3": sorted(json.loads(line)["n"] for one in stored for line in one.splitlines()),
        }


@needs_kafka()
def test_plugins_have_each_row_once_after_the_active_was_killed_while_tasks_wrote(
    tmp_path: Path, postgres: EmbeddedPostgres
) -> None:
    with (
        kafka_broker.kafka() as cluster,
        s3_broker.running_broker() as s3,
        fresh_database(postgres, "plugins") as url,
    ):
        outputs = Outputs(tmp_path, cluster.brokers, s3)
        with closing(outputs), counting(tmp_path, url, outputs.queries) as numbers:
            numbers.send(5_000)
            numbers.settle()
            for what, output in [
                ("everything", "kafka"),
                ("everything", "files"),
                ("query", "s3"),
                ("everything", "s3"),
                ("node", "files"),
                ("query", "kafka"),
            ]:
                active, before = numbers.active(), outputs.size(output)
                numbers.send(4_000)
                began = partial(_has_more, outputs, output, before)
                wait_until(began, within=SPARK_SECONDS, every=0.005)
                kill(active, what)
                numbers.return_from(active)
            numbers.send(1_000)
            numbers.settle()
        everything = list(range(numbers.sent))
        for output, found in outputs.numbers().items():
            assert found == everything, output


def _has_more(outputs: Outputs, output: str, than: int) -> bool:
    return outputs.size(output) > than
