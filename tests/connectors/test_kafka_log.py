"""A topic as the log of a stream: where its partitions end, and what is refused."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic
from pydantic import ValidationError

from ha_engine.connectors.kafka.log import (
    KafkaLog,
    KafkaLogOptions,
    TopicIdentity,
    ends_of,
    spark_options,
)
from ha_engine.connectors.kafka.offsets import UNKNOWN, Positions
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.node.connections import check_connections
from ha_engine.node.stream_logs import StreamLogs
from ha_engine.plugins import SourceBatch, SourcePlace
from ha_engine.query.application import StreamApplication, load_application
from ha_engine.receive.log_history import LogHistory
from ha_engine.types import LOG, Events, LogHeadroom, Pulled
from tests.connectors.kafka_broker import (
    KafkaCluster,
    admin,
    create,
    kafka,
    mortal_kafka,
    new_topic,
)
from tests.connectors.kafka_jars import needs_kafka
from tests.connectors.test_kafka_source import Writer, leader, numbers, trusting
from tests.waiting import async_wait_until, wait_until

pytestmark = [needs_kafka(), pytest.mark.slow, pytest.mark.rotates("files")]
MANY = 1_000
T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with kafka() as running:
        yield running


@pytest.fixture
def brokers(cluster: KafkaCluster) -> list[str]:
    return cluster.brokers


def options(brokers: list[str], topic: str, **more: Any) -> KafkaLogOptions:
    return KafkaLogOptions.model_validate(
        {"brokers": brokers, "topic": topic, "timeout": "60s"} | more
    )


def opened(brokers: list[str], topic: str, offset: str | None = None, **more: Any) -> KafkaLog:
    place = SourcePlace("group", "stream", "log", pa.schema([]))
    log = KafkaLog(options(brokers, topic, **more), place)
    log.open(offset)
    return log


def grown(log: KafkaLog, rows_max: int = MANY) -> SourceBatch:
    """Read until the topic has grown."""
    found = list[SourceBatch]()

    def reads() -> bool:
        batch = log.read(rows_max, 0.2)
        found.extend([batch] if batch else [])
        return bool(found)

    wait_until(reads, within=60)
    return found[0]


def ends(offset: str) -> list[int]:
    (of_topic,) = json.loads(ends_of(offset)).values()
    return list(of_topic.values())


def application(directory: Path, brokers: list[str], topic: str) -> StreamApplication:
    log = {"type": "kafka", "brokers": brokers, "topic": topic, "timeout": "60s"}
    stream = {"schema": {"id": "int"}, "log": log}
    tree = {"name": "a", "streams": {"s": stream}, "queries": {"q": {"sql": "SELECT id FROM s"}}}
    (directory / "app.yaml").write_text(json.dumps(tree))
    return load_application(directory / "app.yaml")


def delete_before(brokers: list[str], place: TopicPartition) -> None:
    client = admin(brokers)
    for deleted in client.delete_records([place]).values():
        deleted.result()


def test_log_begins_at_the_first_record_and_counts_what_comes(brokers: list[str]) -> None:
    topic = new_topic(brokers, partitions=2)
    Writer(brokers, topic).put(numbers(0, 10))
    delete_before(brokers, TopicPartition(topic, 0, 4))
    log = opened(brokers, topic)
    begin = grown(log)
    assert (begin.kept, ends(begin.offset)) == (0, [4, 0])
    first = grown(log)
    assert (first.kept, ends(first.offset)) == (6, [10, 0])
    assert log.read(MANY, 0.2) is None
    Writer(brokers, topic).put(numbers(10, 3), partition=1)
    again = opened(brokers, topic, first.offset)  # on the next active
    second = grown(again)
    assert (second.kept, ends(second.offset)) == (3, [10, 3])


def test_batch_has_at_most_so_many_events_of_all_partitions(brokers: list[str]) -> None:
    topic = new_topic(brokers, partitions=2)
    Writer(brokers, topic).put(numbers(0, 30))
    Writer(brokers, topic).put(numbers(0, 10), partition=1)
    log = opened(brokers, topic)
    grown(log)
    first = grown(log, 8)
    assert ends(first.offset) == [6, 2]
    assert first.backlog is not None
    assert first.backlog.events == 32
    total = first.kept
    while total < 40:
        batch = grown(log, 7)
        assert 0 < batch.kept <= 7
        total += batch.kept
    assert total == 40


def test_records_of_an_open_transaction_are_not_in_a_batch(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    Writer(brokers, topic).put(numbers(0, 2))
    writer = Writer(brokers, topic, transactional_id=uuid.uuid4().hex)
    writer.producer.begin_transaction()
    writer.put(numbers(2, 3))
    log = opened(brokers, topic)
    grown(log)
    assert ends(grown(log).offset) == [2]
    assert log.read(MANY, 0.2) is None
    writer.producer.commit_transaction(60)
    assert ends(grown(log).offset) == [6]  # with the marker of the transaction


def test_new_partition_is_in_the_next_batch(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    log = opened(brokers, topic)
    grown(log)
    client = admin(brokers)
    client.create_partitions([NewPartitions(topic, 3)])[topic].result()
    batch = grown(log)
    assert (batch.kept, ends(batch.offset)) == (0, [0, 0, 0])


def test_deleted_records_and_another_topic_are_refused(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    Writer(brokers, topic).put(numbers(0, 5))
    log = opened(brokers, topic)
    grown(log)
    offset = log.read(2, 0.2)
    assert offset is not None
    delete_before(brokers, TopicPartition(topic, 0, 4))
    with pytest.raises(SourceRefused, match=r"offset 2: the records before offset 4 were deleted"):
        opened(brokers, topic, offset.offset)
    identity = TopicIdentity(options(brokers, topic))
    identity.require(offset.offset)
    client = admin(brokers)
    client.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in client.list_topics(timeout=60).topics, within=60)
    create(brokers, topic)
    Writer(brokers, topic).put(numbers(0, 50))
    with pytest.raises(SourceRefused, match="it was deleted and created again"):
        identity.require(offset.offset)
    with pytest.raises(SourceRefused, match="it was deleted and created again"):
        log.read(MANY, 0.2)


def test_an_answer_of_a_former_leader_says_nothing_about_the_log(brokers: list[str]) -> None:
    """The journal has seen a leader of epoch 7, so one of epoch 0 is no longer the leader. Nor does
    a leader know all if it ends before the offset at which the log begins."""
    topic = new_topic(brokers, partitions=2)
    Writer(brokers, topic).put(numbers(0, 5), partition=1)
    log = opened(brokers, topic)
    grown(log)
    offset = grown(log).offset
    assert Positions.parse(offset).epochs == [0, 0]
    identity = TopicIdentity(options(brokers, topic))
    identity.require(offset)
    other = Positions.parse(offset)
    other.epochs[1] = 7
    former = "partition 1: the leader of epoch 0 answered, and epoch 7 is known"
    with pytest.raises(SourceUnavailable, match=former):
        opened(brokers, topic, other.text).read(MANY, 0.2)
    with pytest.raises(SourceUnavailable, match=former):
        TopicIdentity(options(brokers, topic)).require(other.text)
    begin = Positions(topic, other.identity, [0, 9], [UNKNOWN, UNKNOWN])
    with pytest.raises(SourceUnavailable, match="ends at offset 5, before its first offset 9"):
        opened(brokers, topic, begin.text).read(MANY, 0.2)


@pytest.mark.nightly("tests/dst/test_kafka_histories.py has elections of simulated brokers")
def test_clean_election_continues_and_unclean_election_is_refused() -> None:
    """A replica without the last records becomes leader, and gets more records than it lacks."""
    with mortal_kafka(nodes=3) as cluster:
        brokers, client = cluster.brokers, admin(cluster.brokers)
        topic = f"topic-{uuid.uuid4().hex}"
        settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        new = NewTopic(topic, 1, replica_assignment=[[1, 2]], config=settings)
        client.create_topics([new], request_timeout=60)[topic].result()
        wait_until(lambda: leader(client, topic) == 1, within=60)
        Writer(brokers, topic).put(numbers(0, 5))
        log = opened(brokers, topic, timeout="5s")
        identity = TopicIdentity(options(brokers, topic, timeout="5s"))
        grown(log)
        before = grown(log)

        cluster.kill(1)
        wait_until(lambda: leader(client, topic) == 2, within=60)
        answered(lambda: identity.require(before.offset))
        Writer(brokers, topic).put(numbers(5, 5))
        log = answered(lambda: opened(brokers, topic, before.offset, timeout="5s"))
        after = answered(lambda: grown(log))
        assert ends(after.offset) == [10]
        assert Positions.parse(after.offset).epochs > Positions.parse(before.offset).epochs

        cluster.kill(2)
        cluster.start(1)
        wait_until(lambda: leader(client, topic) == 1, within=60)
        Writer(brokers, topic).put(numbers(100, 20))
        changed = "partition 0, offset 10: the log has changed before this offset"
        again = opened(brokers, topic, after.offset, timeout="5s")
        with pytest.raises(SourceRefused, match=changed):
            answered(lambda: again.read(MANY, 0.2))
        with pytest.raises(SourceRefused, match=changed):
            answered(lambda: identity.require(after.offset))
        answered(lambda: identity.require(before.offset))  # a query there has lost nothing


@pytest.mark.nightly("tests/dst/test_kafka_histories.py kills simulated brokers")
def test_identity_is_known_while_the_former_leader_is_down() -> None:
    """A client that once found no leader may never ask another broker."""
    with mortal_kafka(nodes=3) as cluster:
        brokers, client = cluster.brokers, admin(cluster.brokers)
        topic = new_topic(brokers, replicas=3)
        offset = grown(opened(brokers, topic)).offset
        identity = TopicIdentity(options(brokers, topic, timeout="2s"))
        identity.require(offset)
        cluster.kill(first := leader(client, topic))
        with pytest.raises(SourceUnavailable):
            identity.require(offset)
        wait_until(lambda: leader(admin(brokers), topic) not in (first, -1), within=60)
        answered(lambda: identity.require(offset))


def answered(ask: Callable[[], T]) -> T:
    """Ask until the brokers answer."""
    found = list[T]()

    def answers() -> bool:
        try:
            found.append(ask())
        except SourceUnavailable:
            return False
        return True

    wait_until(answers, within=120)
    return found[0]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"client": {"fetch.max.bytes": 5}}, "remove client"),
        ({"sasl": {"mechanism": "GSSAPI"}}, "use SCRAM"),
    ],
)
def test_options_that_only_one_of_the_two_clients_has_are_refused(
    more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        options(["b:1"], "t", **more)


def test_java_gets_the_same_credentials(cluster: KafkaCluster) -> None:
    sasl = {"mechanism": "SCRAM-SHA-512", "user": 'a"b', "password": "c\\d"}
    found = spark_options(options(["b:1", "c:2"], "t", tls=trusting(cluster), sasl=sasl))
    assert found["kafka.bootstrap.servers"] == "b:1,c:2"
    assert found["kafka.security.protocol"] == "SASL_SSL"
    assert found["kafka.ssl.truststore.certificates"].startswith("-----BEGIN CERTIFICATE")
    assert found["kafka.sasl.jaas.config"].endswith(
        'ScramLoginModule required username="a\\"b" password="c\\\\d";'
    )


def test_node_watches_what_retention_may_delete(brokers: list[str], tmp_path: Path) -> None:
    topic = new_topic(brokers)
    Writer(brokers, topic).put(numbers(0, 10))
    log = opened(brokers, topic)
    history = LogHistory()
    for sequence, batch in enumerate([grown(log), grown(log, 8), grown(log)], 1):
        pulled = Pulled(LOG, batch.offset, batch.kept)
        history.apply(sequence, Events("s", batch.kept, 0, pulled=(pulled,)))
    delete_before(brokers, TopicPartition(topic, 0, 3))
    trimmed = 1
    logs = StreamLogs(application(tmp_path, brokers, topic), history, lambda: trimmed)

    async def watched() -> LogHeadroom:
        watch = asyncio.create_task(logs.watch())
        await async_wait_until(lambda: logs.headroom, within=60)
        watch.cancel()
        return logs.headroom["s"]

    assert asyncio.run(watched()) == LogHeadroom(0, -3, 7)
    logs.headroom.clear()
    trimmed = 3
    assert asyncio.run(watched()) == LogHeadroom(0, 5, 7)


@pytest.mark.parametrize("exists", [True, False])
def test_check_of_an_application_asks_for_the_topic(
    brokers: list[str], tmp_path: Path, exists: bool
) -> None:
    topic = new_topic(brokers) if exists else "no-such-topic"
    (found,) = check_connections(application(tmp_path, brokers, topic), "group")
    assert (found.kind, found.place, found.type, found.checked) == ("log", "s", "kafka", True)
    assert found.error is None if exists else "no-such-topic" in str(found.error)
