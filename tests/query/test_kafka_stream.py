"""A stream whose events are in Kafka, in a real query process that reads a real broker."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from confluent_kafka import Producer, TopicPartition

from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from ha_engine.outbox import Admission
from ha_engine.query.application import load_application
from ha_engine.v1 import local_pb2 as pb
from tests.connectors.kafka_broker import KafkaCluster, admin, mortal_kafka, new_topic
from tests.connectors.kafka_jars import SPARK, fetch, needs_kafka, paths
from tests.connectors.test_kafka_source import LOGIN, add_scram_user, trusting, with_certificate
from tests.programs import needs
from tests.query.local_node import LocalNode, run_command
from tests.query.test_process import command_line
from tests.waiting import wait_ended, wait_until

pytestmark = [
    needs_kafka(),
    needs("javac"),
    pytest.mark.nightly("a Spark of its own and a broker take half a minute"),
    pytest.mark.spark,
]
OUTAGE_SECONDS = 300
"""A task waits two minutes for the brokers."""


class Bench:
    """A node without a core, the query process that it commands, and a topic for each stream."""

    def __init__(self, cluster: KafkaCluster, node: LocalNode, streams: dict[str, Any]) -> None:
        self.cluster, self.node = cluster, node
        self.topics = {name: new_topic(cluster.brokers, partitions=2) for name in streams}
        tree: dict[str, Any] = {"name": "test", "streams": {}, "queries": {}}
        for name, options in streams.items():
            stream = {"where": "true"} | options
            where = stream.pop("where")
            log = {"type": "kafka", "brokers": cluster.brokers, "topic": self.topics[name]}
            columns = ", ".join(stream["schema"])
            tree["streams"][name] = stream | {"log": log | stream.get("log", {})}
            tree["queries"][name] = {"sql": f"SELECT {columns} FROM {name} WHERE {where}"}
        file = node.directory / "application.yaml"
        file.write_text(json.dumps(tree))
        self._queries = load_application(file).queries
        self._started = dict[str, pb.QueryCommand]()

    def put(self, stream: str, *values: bytes, partition: int = 0, **headers: str) -> None:
        producer = Producer({"bootstrap.servers": ",".join(self.cluster.brokers)})
        named = [(f"ha-{name}", text.encode()) for name, text in headers.items()]
        for value in values:
            producer.produce(self.topics[stream], value, partition=partition, headers=named)
        assert producer.flush(60) == 0

    def run(self, stream: str) -> None:
        """Start the query of ``stream``, whose log begins at its first record."""
        self.node.mark("another query")  # so that no other query begins at this record
        self._end(stream, [0, 0])
        sequence = self.node.journal.last.sequence
        run = run_command(self._queries[stream], sequence=sequence)
        self._started[stream] = pb.QueryCommand(run=run)
        self.node.command(self._started[stream])

    def run_again(self, stream: str) -> None:
        """Start the query after a failure, as the node does."""
        self.node.seen.failed.pop(stream)
        self.node.command(self._started[stream])

    def mark(self, stream: str, *ends: int) -> None:
        """End a batch of the query at these offsets."""
        self.node.mark("another query")
        self._end(stream, list(ends))
        self.node.mark(stream)

    def _end(self, stream: str, ends: list[int]) -> None:
        of_topic = {str(number): end for number, end in enumerate(ends)}
        text = json.dumps({self.topics[stream]: of_topic})
        self.node.log_ends[self.node.journal.last.sequence] = text

    def rows(self, stream: str, batch: int) -> list[tuple[Any, ...]]:
        table = self.node.admitted(stream, batch, within=OUTAGE_SECONDS)
        return sorted(tuple(row.values()) for row in table.to_pylist())


def secured(cluster: KafkaCluster) -> dict[str, Any]:
    """Streams that are read as each kind of user, and one whose password is wrong."""
    trust, numbered = {"tls": trusting(cluster)}, {"schema": {"id": "int not null"}}
    both, sasl = {"brokers": cluster.addresses("BOTH")}, {"brokers": cluster.addresses("SASL")}
    tls = {"brokers": cluster.addresses("TLS"), "tls": with_certificate(cluster)}
    scram = LOGIN | {"mechanism": "SCRAM-SHA-512"}
    logs: dict[str, dict[str, Any]] = {
        "certificate": tls,
        "password": both | trust | {"sasl": LOGIN},
        "scram": both | trust | {"sasl": scram},
        "plaintext": sasl | {"sasl": scram},
        "wrong": both | trust | {"sasl": LOGIN | {"password": "wrong-word"}},
    }
    return {name: numbered | {"log": log} for name, log in logs.items()}


@contextmanager
def running(streams: Callable[[KafkaCluster], dict[str, Any]]) -> Iterator[Bench]:
    build(JAR)
    fetch(SPARK)
    with ExitStack() as stack:
        cluster = stack.enter_context(mortal_kafka())
        directory = Path(tempfile.mkdtemp(prefix="ha-q-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        node = LocalNode(directory)
        bench = Bench(cluster, node, streams(cluster))
        node.start()
        stack.callback(node.stop)
        process = subprocess.Popen(command_line(node, paths(SPARK)), start_new_session=True)
        stack.callback(wait_ended, process, within=60)
        stack.callback(process.terminate)
        yield bench


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    numbered = {"schema": {"id": "int not null"}}
    typed = {"schema": {"id": "int not null", "price": "decimal(5,2)", "at": "timestamp"}}
    skipping = typed | {"log": {"invalid": "skip"}, "system_columns": ["_event_id"]}
    # An invalid record fails the query also if its condition would leave the record out.
    failing = typed | {"where": "id IS NOT NULL"}
    streams = {"outage": numbered, "retention": numbered, "failing": failing, "skipping": skipping}
    streams["twice"] = {
        "schema": {"id": "int not null", "at": "timestamp"},
        "watermark": {"column": "at", "delay": "1 hour"},
        "log": {"deduplicate": True},
    }
    with running(lambda cluster: streams | secured(cluster)) as found:
        yield found


def definition(log: dict[str, Any] | None) -> dict[str, Any]:
    """An application whose query counts and adds all events of its stream."""
    stream: dict[str, Any] = {"schema": {"id": "int not null"}, "system_columns": ["_event_id"]}
    stream |= {"log": log} if log else {}
    sql = "SELECT count(*) AS n, sum(id) AS s, max(_event_id) AS last FROM moved"
    query = {"sql": sql, "output_mode": "complete"}
    return {"name": "test", "streams": {"moved": stream}, "queries": {"moved": query}}


def test_stream_that_gets_a_topic_keeps_the_state_of_its_query_and_every_event() -> None:
    with running(lambda cluster: {"moved": {"schema": {"id": "int not null"}}}) as bench:
        node, file = bench.node, bench.node.directory / "application.yaml"
        topic = bench.topics["moved"]
        kafka = {"type": "kafka", "brokers": bench.cluster.brokers, "topic": topic}

        def start(log: dict[str, Any] | None) -> None:
            file.write_text(json.dumps(definition(log)))
            run = run_command(load_application(file).queries["moved"])
            node.command(pb.QueryCommand(run=run))

        def append(*numbers: int) -> None:
            stream = load_application(file).streams["moved"]
            node.append(stream, [{"id": number} for number in numbers])

        start(None)
        append(1, 2)
        bench.mark("moved", 0, 0)
        assert bench.rows("moved", 1) == [(2, 3, ANY)]
        append(3)
        bench.mark("moved", 0, 0)
        assert bench.rows("moved", 2) == [(3, 6, ANY)]
        wait_until(lambda: len(node.seen.progress) == 2, within=60)
        node.command(pb.QueryCommand(halt=pb.HaltQuery(query="moved")))
        wait_until(lambda: node.seen.halted, within=60)
        # As a crash between the output of batch 2 and its commit leaves the checkpoint.
        for name in ("1", ".1.crc"):
            (node.checkpoints / "moved" / "commits" / name).unlink(missing_ok=True)
        start(kafka | {"journal": True})
        append(4)
        bench.put("moved", *numbers(10, 1))
        bench.mark("moved", 1, 0)
        assert bench.rows("moved", 3) == [(5, 20, f"{topic}-0-0")]
        repeated = [verdict for _, number, verdict in node.seen.verdicts if number == 2]
        assert repeated[0] is Admission.ADMITTED
        assert repeated[-1] is Admission.DONE
        # The offsets of the topic are in the checkpoint from here on.
        node.command(pb.QueryCommand(halt=pb.HaltQuery(query="moved")))
        start(kafka | {"journal": True})
        bench.put("moved", *numbers(20, 1), partition=1)
        append(5)
        bench.mark("moved", 1, 1)
        assert bench.rows("moved", 4) == [(7, 45, f"{topic}-1-0")]
        start(kafka)
        assert "There are [2] sources in the checkpoint offsets" in node.failure("moved").reason


VALID = {
    b'{"id": 1, "price": 2.50, "at": "2026-11-27T10:00:00Z"}': 1,
    b'{"id": 2}': 2,
    b'{"id": 3, "price": null, "more": [1]}': 3,
}
NO_OBJECT = "the value is no JSON object with the columns of the stream"
INVALID = {
    b"nonsense": NO_OBJECT,
    b"": NO_OBJECT,
    b"  ": NO_OBJECT,
    b"null": NO_OBJECT,
    b"7": NO_OBJECT,
    b"[]": NO_OBJECT,
    b'[{"id": 1}]': NO_OBJECT,
    b'{"id": 1': NO_OBJECT,
    b'{"id": "x"}': NO_OBJECT,
    b'{"id": 1.5}': NO_OBJECT,
    b'{"id": 4, "price": "x"}': NO_OBJECT,
    b'{"id": 5, "at": "yesterday"}': NO_OBJECT,
    b"{}": "column id is null",
    b'{"id": null, "price": 1}': "column id is null",
}


def numbers(first: int, count: int) -> list[bytes]:
    return [json.dumps({"id": number}).encode() for number in range(first, first + count)]


def test_an_outage_of_the_brokers_is_not_blamed_on_the_batch(bench: Bench) -> None:
    bench.put("outage", *numbers(0, 5))
    bench.run("outage")
    bench.mark("outage", 5, 0)
    assert bench.rows("outage", 1) == [(number,) for number in range(5)]
    bench.put("outage", *numbers(5, 5))
    bench.cluster.kill()
    bench.mark("outage", 10, 0)
    failed = bench.node.failure("outage", within=OUTAGE_SECONDS)
    assert failed.by_host
    assert (failed.number, failed.reason.split()[0]) == (2, "TimeoutException:")
    bench.cluster.start()
    bench.run_again("outage")
    assert bench.rows("outage", 2) == [(number,) for number in range(5, 10)]


def test_records_that_retention_deleted_are_named_with_what_to_do(bench: Bench) -> None:
    bench.put("retention", *numbers(0, 9))
    client, place = admin(bench.cluster.brokers), TopicPartition(bench.topics["retention"], 0, 5)
    client.delete_records([place])[place].result()
    bench.run("retention")
    bench.mark("retention", 9, 0)
    failed = bench.node.failure("retention")
    assert not failed.by_host
    topic = bench.topics["retention"]
    lost = f"Could not read records in offset [0, 9) for topic partition {topic}-0"
    assert failed.reason.startswith(f"Kafka no longer has records of this batch: {lost}")
    assert (
        "'ha-engine reinit' for this node, which takes its state from a snapshot" in failed.reason
    )


def test_invalid_record_fails_the_query_with_its_place(bench: Bench) -> None:
    bench.put("failing", *VALID, *INVALID)
    bench.run("failing")
    bench.mark("failing", len(VALID), 0)
    assert [row[0] for row in bench.rows("failing", 1)] == list(VALID.values())
    for offset, problem in enumerate(INVALID.values(), len(VALID)):
        bench.mark("failing", offset + 1, 0)
        failed = bench.node.failure("failing")
        assert not failed.by_host
        place = f"stream failing: partition 0, offset {offset}: {problem}"
        assert failed.reason == f"[USER_RAISED_EXCEPTION] {place}"
        bench.node.skipped.add(("failing", failed.number))
        bench.run_again("failing")
        assert bench.rows("failing", failed.number) == []


def test_invalid_records_are_skipped_and_counted(bench: Bench) -> None:
    bench.put("skipping", *VALID)
    bench.put("skipping", *INVALID, partition=1)
    bench.put("skipping", *VALID)
    bench.run("skipping")
    bench.mark("skipping", len(VALID), 0)
    assert [row[0] for row in bench.rows("skipping", 1)] == list(VALID.values())
    bench.mark("skipping", 2 * len(VALID), len(INVALID))
    assert [row[0] for row in bench.rows("skipping", 2)] == list(VALID.values())

    def reported() -> list[pb.QueryProgress]:
        return [one for query, one in bench.node.seen.progress if query == "skipping"]

    wait_until(lambda: len(reported()) == 2, within=60)
    assert [len(one.invalid) for one in reported()] == [0, 1]
    (found,) = reported()[1].invalid
    assert found == pb.InvalidRecords(
        stream="skipping", records=len(INVALID), partition=1, offset=0, problem=NO_OBJECT
    )


@pytest.mark.parametrize("user", ["certificate", "password", "scram", "plaintext"])
def test_tasks_of_spark_prove_who_they_are(bench: Bench, user: str) -> None:
    add_scram_user(bench.cluster.brokers)
    bench.put(user, *numbers(0, 3))
    bench.run(user)
    bench.mark(user, 3, 0)
    assert bench.rows(user, 1) == [(number,) for number in range(3)]


def test_wrong_credentials_are_not_blamed_on_the_batch(bench: Bench) -> None:
    bench.put("wrong", *numbers(0, 3))
    bench.run("wrong")
    bench.mark("wrong", 3, 0)
    failed = bench.node.failure("wrong", within=OUTAGE_SECONDS)
    assert failed.by_host
    assert failed.reason.startswith("SaslAuthenticationException: Authentication failed")
    assert "wrong-word" not in failed.detail


def test_event_that_a_receiver_stored_twice_is_one_row(bench: Bench) -> None:
    """A record without the headers of a receiver is an event of its own."""

    def event(number: int) -> bytes:
        return json.dumps({"id": number, "at": "2024-05-01T12:00:00Z"}).encode()

    bench.put("twice", event(1), producer="p", sequence="7", row="0")
    bench.put("twice", event(2), producer="p", sequence="7", row="1")
    bench.put("twice", event(3), event(3))
    bench.run("twice")
    bench.mark("twice", 4, 0)
    assert [row[0] for row in bench.rows("twice", 1)] == [1, 2, 3, 3]
    bench.put("twice", event(1), partition=1, producer="p", sequence="7", row="0")
    bench.put("twice", event(4), partition=1, producer="p", sequence="8", row="0")
    bench.mark("twice", 4, 2)
    assert [row[0] for row in bench.rows("twice", 2)] == [4]
