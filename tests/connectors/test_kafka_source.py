"""The source ``kafka`` against a real broker."""

from __future__ import annotations

import ctypes
import json
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from ha_engine.connectors.kafka.offsets import Positions
from ha_engine.connectors.kafka.source import KafkaSource
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import OFFSET_BYTES_MAX, Messages, SourceBatch, SourcePlace
from ha_engine.testing import SourceContract
from ha_engine.testing.sink_contract import SCHEMA
from tests.connectors.deliveries import numbered, values
from tests.connectors.kafka_broker import (
    ANSWER_SECONDS,
    PASSWORD,
    USER,
    KafkaCluster,
    admin,
    create,
    mortal_kafka,
    new_topic,
    threads_end,
)
from tests.connectors.kafka_jars import needs_kafka
from tests.waiting import wait_until

pytestmark = [needs_kafka(), pytest.mark.rotates("file")]

ATTRIBUTES = frozenset({"key", "timestamp", "partition", "offset", "topic", "header.trace"})


class Writer:
    """Writes records to one topic."""

    def __init__(self, brokers: list[str], topic: str, transactional_id: str = "") -> None:
        self._topic = topic
        more = {"transactional.id": transactional_id} if transactional_id else {}
        self.producer = Producer(
            {
                "bootstrap.servers": ",".join(brokers),
                "log_level": 0,
                "message.max.bytes": 16 << 20,
                "enable.idempotence": True,  # a slow broker gets no record twice
            }
            | more
        )
        if transactional_id:
            self.producer.init_transactions(ANSWER_SECONDS)

    def put(self, records: list[bytes | None], partition: int = 0, **more: Any) -> None:
        for value in records:
            self.producer.produce(self._topic, value, partition=partition, **more)
            self.producer.poll(0)
        assert self.producer.flush(ANSWER_SECONDS) == 0

    def commit(self, records: list[bytes | None], partition: int = 0) -> None:
        self.producer.begin_transaction()
        self.put(records, partition)
        self.producer.commit_transaction(ANSWER_SECONDS)

    def abort(self, records: list[bytes | None], partition: int = 0) -> None:
        self.producer.begin_transaction()
        self.put(records, partition)
        self.producer.abort_transaction(ANSWER_SECONDS)


def source_of(brokers: list[str], topic: str, **options: Any) -> KafkaSource:
    read = {"brokers": brokers, "topic": topic, "timeout": "60s"} | options
    place = SourcePlace("group", "stream", "source", SCHEMA, ATTRIBUTES)
    return KafkaSource(KafkaSource.Options.model_validate(read), place)


def opened(
    brokers: list[str], topic: str, offset: str | None = None, **options: Any
) -> KafkaSource:
    source = source_of(brokers, topic, **options)
    source.open(offset)
    return source


def numbers(first: int, count: int) -> list[bytes | None]:
    return [*numbered(*range(first, first + count))]


def some(source: KafkaSource, count: int) -> list[SourceBatch]:
    """Read until there are ``count`` rows."""
    batches = list[SourceBatch]()

    def enough() -> bool:
        batch = source.read(1_000, 0.2)
        if batch is not None:
            batches.append(batch)
        return sum(len(one.rows) for one in batches) >= count

    wait_until(enough, within=ANSWER_SECONDS)
    return batches


def rows(source: KafkaSource, count: int) -> list[bytes | None]:
    found = [value for batch in some(source, count) for value in values(batch)]
    assert len(found) == count
    return found


def refusal(source: KafkaSource, offset: str | None) -> str:
    """The text with which the source refuses to open or to read."""
    found = list[str]()

    def refuses() -> bool:
        try:
            source.open(offset)
            source.read(10, 0.2)
        except SourceUnavailable:
            return False
        except SourceRefused as error:
            found.append(str(error))
            return True
        return False

    wait_until(refuses, within=ANSWER_SECONDS)
    source.close()
    return found[0]


class TestKafkaSourceContract(SourceContract):
    kind = KafkaSource
    brokers: ClassVar[list[str]]

    @pytest.fixture(autouse=True)
    def topic_of_the_test(self, brokers: list[str]) -> None:
        type(self).brokers = brokers
        self.topic = new_topic(brokers)

    def options(self) -> dict[str, Any]:
        return {"brokers": self.brokers, "topic": self.topic, "timeout": "60s"}

    def put(self, rows: list[dict[str, Any]]) -> None:
        Writer(self.brokers, self.topic).put([json.dumps(row).encode() for row in rows])


# -- positions -------------------------------------------------------------------------------------


def test_each_partition_is_read_in_its_order_and_again_after_any_offset(
    brokers: list[str],
) -> None:
    topic = new_topic(brokers, partitions=4)
    writer = Writer(brokers, topic)
    for partition in range(4):
        writer.put(numbers(partition * 1_000, 100), partition)
    source = opened(brokers, topic)
    seen, batches = 0, list[SourceBatch]()
    while seen < 400:
        batch = source.read(30, 5.0)
        if batch is not None:
            seen += len(batch.rows)
            batches.append(batch)
    source.close()

    def by_partition(some_batches: list[SourceBatch]) -> dict[int, list[bytes | None]]:
        found = defaultdict[int, list[bytes | None]](list)
        for one in some_batches:
            assert isinstance(one.rows, Messages)
            parts = one.rows.attributes["partition"]
            for partition, value in zip(parts, values(one), strict=True):
                found[partition].append(value)
        return found

    assert by_partition(batches) == {n: numbers(n * 1_000, 100) for n in range(4)}
    for at in (0, len(batches) // 2):
        other = opened(brokers, topic, batches[at].offset)
        again = some(other, 400 - sum(len(one.rows) for one in batches[: at + 1]))
        assert by_partition(batches[: at + 1] + again) == by_partition(batches)
        other.close()


def test_only_committed_records_are_read_and_the_offset_passes_the_markers(
    brokers: list[str],
) -> None:
    topic = new_topic(brokers)
    writer = Writer(brokers, topic, topic)
    writer.commit(numbers(0, 3))
    writer.abort(numbers(100, 3))
    source = opened(brokers, topic)
    batches = some(source, 3)
    assert [value for one in batches for value in values(one)] == numbers(0, 3)
    # 3 records, a marker, 3 aborted records and a marker
    wait_until(lambda: source.read(10, 0.2) is not None or source._positions.next == [8])
    source._returned_at = 0.0
    moved = source.read(10, 0.2)
    assert moved is None or (not moved.rows and Positions.parse(moved.offset).next == [8])
    assert moved is not None or Positions.parse(batches[-1].offset).next == [8]
    source.close()
    writer.commit(numbers(3, 2))
    again = opened(brokers, topic, Positions(topic, source._positions.identity, [8], [-1]).text)
    assert rows(again, 2) == numbers(3, 2)
    again.close()


def test_records_of_an_open_transaction_wait_for_its_end(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    writer, plain = Writer(brokers, topic, topic), Writer(brokers, topic)
    writer.producer.begin_transaction()
    writer.put(numbers(0, 1))
    plain.put(numbers(1, 1))
    source = opened(brokers, topic)
    assert source.read(10, 1.0) is None
    writer.producer.commit_transaction(ANSWER_SECONDS)
    assert rows(source, 2) == numbers(0, 2)
    source.close()


def test_the_latest_offset_is_decided_once(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    writer = Writer(brokers, topic)
    writer.put(numbers(0, 5))
    source = opened(brokers, topic, start="latest")
    first = source.read(10, 0.2)
    source.close()
    assert first is not None
    assert not first.rows
    writer.put(numbers(5, 2))
    other = opened(brokers, topic, first.offset, start="latest")
    assert rows(other, 2) == numbers(5, 2)
    other.close()


def test_a_new_partition_is_read_from_its_beginning(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    Writer(brokers, topic).put(numbers(0, 1))
    source = opened(brokers, topic)
    before = some(source, 1)[-1].offset
    client = admin(brokers)
    client.create_partitions([NewPartitions(topic, 2)])[topic].result()
    wait_until(lambda: len(client.list_topics(topic, timeout=60).topics[topic].partitions) == 2)
    Writer(brokers, topic).put(numbers(10, 2), 1)
    source._looked_at = 0.0
    assert rows(source, 2) == numbers(10, 2)
    source.close()
    other = opened(brokers, topic, before)
    assert rows(other, 2) == numbers(10, 2)
    other.close()


def test_the_offset_of_3000_partitions_fits() -> None:
    many = Positions("t" * 249, ("topic_id", "A" * 22), [10**14] * 3_000, [9_999] * 3_000)
    assert len(many.text) <= OFFSET_BYTES_MAX
    assert Positions.parse(many.text) == many
    more = Positions("t", ("topic_id", "A" * 22), [10**18] * 3_500, [9_999] * 3_500)
    with pytest.raises(SourceRefused, match="3500 partitions"):
        _ = more.text


# -- lost records ----------------------------------------------------------------------------------


def delete_before(brokers: list[str], topic: str, offset: int) -> None:
    client = admin(brokers)  # its end would end the call
    for deleted in client.delete_records([TopicPartition(topic, 0, offset)]).values():
        deleted.result()


def test_records_that_were_deleted_before_they_were_read_are_refused(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    Writer(brokers, topic).put(numbers(0, 10))
    source = opened(brokers, topic)
    batch = source.read(2, 30.0)
    source.close()
    assert batch is not None
    delete_before(brokers, topic, 6)
    reason = refusal(source_of(brokers, topic), batch.offset)
    assert f"{topic}, partition 0, offset 2" in reason
    assert "offset 2 to 5 were deleted" in reason
    assert "lost: skip" in reason
    skipping = opened(brokers, topic, batch.offset, lost="skip")
    letter = skipping.read(10, 1.0)
    assert letter is not None
    assert "offset 2 to 5" in letter.dead_letters[0].reason
    assert rows(skipping, 4) == numbers(6, 4)
    skipping.close()


@pytest.mark.nightly("another test opens the source at deleted records")
def test_records_that_are_deleted_while_the_source_reads_are_refused(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    writer = Writer(brokers, topic)
    writer.put([b"x" * 1_000_000] * 20)  # more than the source fetches ahead
    source = opened(brokers, topic, client={"queued.max.messages.kbytes": 1_000})
    first = source.read(1, 30.0)
    assert first is not None
    delete_before(brokers, topic, 19)

    def fails() -> bool:
        try:
            source.read(1, 0.2)
        except SourceUnavailable as error:
            return "opens it again" in str(error)
        return False

    wait_until(fails, within=ANSWER_SECONDS)
    source.close()
    assert "were deleted before" in refusal(source_of(brokers, topic), first.offset)


def test_an_offset_behind_the_end_is_refused(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    Writer(brokers, topic).put(numbers(0, 5))
    source = opened(brokers, topic)
    identity = source._positions.identity
    source.close()
    beyond = Positions(topic, identity, [9], [-1]).text
    reason = refusal(source_of(brokers, topic), beyond)
    assert f"{topic}, partition 0, offset 9: it ends at offset 5" in reason
    assert "truncated" in reason


def test_a_log_with_another_history_is_refused(brokers: list[str]) -> None:
    """The leader knows no epoch 7, so another record than before is in front of the offset."""
    topic = new_topic(brokers)
    Writer(brokers, topic).put(numbers(0, 5))
    source = opened(brokers, topic)
    identity = source._positions.identity
    source.close()
    other = Positions(topic, identity, [3], [7]).text
    reason = refusal(source_of(brokers, topic), other)
    assert "the log has changed before this offset" in reason
    skipping = opened(brokers, topic, other, lost="skip")
    assert rows(skipping, 2) == numbers(3, 2)
    skipping.close()


def test_a_broker_that_knows_fewer_partitions_is_unavailable(brokers: list[str]) -> None:
    """A topic never loses a partition, so the broker has not heard of all of them yet."""
    topic = new_topic(brokers)
    source = opened(brokers, topic)
    identity = source._positions.identity
    source.close()
    with pytest.raises(SourceUnavailable, match="only 1 of the 2 partitions"):
        source_of(brokers, topic).open(Positions(topic, identity, [0, 0], [-1, -1]).text)


def test_a_topic_that_was_deleted_is_refused(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    Writer(brokers, topic).put(numbers(0, 5))
    source = opened(brokers, topic)
    offset = some(source, 5)[-1].offset
    client = admin(brokers)
    client.delete_topics([topic])[topic].result()
    assert f"topic {topic} cannot be described" in refusal(source_of(brokers, topic), offset)

    def refuses() -> bool:
        source._looked_at = 0.0
        try:
            assert not values(source.read(10, 0.2))
        except SourceRefused as error:
            return topic in str(error)
        except SourceUnavailable:
            pass
        return False

    wait_until(refuses, within=ANSWER_SECONDS)
    source.close()


def test_an_offset_of_another_topic_is_refused(brokers: list[str]) -> None:
    one, other = new_topic(brokers), new_topic(brokers)
    source = opened(brokers, one)
    offset = source._positions.text
    source.close()
    with pytest.raises(SourceRefused, match=f"belongs to stream {one}"):
        source_of(brokers, other, lost="skip").open(offset)
    with pytest.raises(SourceRefused, match="another kind of source"):
        source_of(brokers, other).open("17")


def test_a_topic_that_was_created_again_is_refused(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    Writer(brokers, topic).put(numbers(0, 5))
    source = opened(brokers, topic)
    offset = some(source, 5)[-1].offset
    client = admin(brokers)
    client.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in client.list_topics(timeout=60).topics)
    create(brokers, topic)
    # More records than before: at the offset, the new topic has other ones.
    Writer(brokers, topic).put(numbers(100, 10))

    def fails() -> bool:
        source._looked_at = 0.0
        try:
            batch = source.read(10, 0.2)
        except (SourceUnavailable, SourceRefused):
            return True
        assert batch is None or not batch.rows, "records of another topic were returned"
        return False

    wait_until(fails, within=ANSWER_SECONDS)
    source.close()
    reason = refusal(source_of(brokers, topic), offset)
    assert "deleted and created again" in reason
    skipping = opened(brokers, topic, offset, lost="skip")
    assert rows(skipping, 10) == numbers(100, 10)
    skipping.close()


# -- messages --------------------------------------------------------------------------------------


def test_a_message_comes_with_its_attributes(brokers: list[str]) -> None:
    topic = new_topic(brokers, partitions=2)
    headers = [("trace", b"first"), ("other", b"x"), ("trace", b"last")]
    writer = Writer(brokers, topic)
    writer.put([b"value"], 1, key=b"\xff\x00", timestamp=1_700_000_000_123, headers=headers)
    source = opened(brokers, topic)
    batch = some(source, 1)[-1]
    source.close()
    assert isinstance(batch.rows, Messages)
    found = {name: column[0] for name, column in batch.rows.attributes.items()}
    assert found.pop("timestamp").timestamp() == 1_700_000_000.123
    assert found == {
        "key": b"\xff\x00",
        "partition": 1,
        "offset": 0,
        "topic": topic,
        "header.trace": b"last",
    }
    assert batch.place(0) == f"{topic}, partition 1, offset 0"


def test_a_record_whose_headers_cannot_be_read_is_a_dead_letter(brokers: list[str]) -> None:
    """Producers in other languages may write any bytes as the name of a header."""
    topic = new_topic(brokers)
    put_with_header(brokers, topic, b"poison", b"\xff")
    Writer(brokers, topic).put([b"after"], headers=[("trace", b"t")])
    source = opened(brokers, topic)
    batches = some(source, 1)
    source.close()
    assert [value for one in batches for value in values(one)] == [b"after"]
    (letter,) = [letter for one in batches for letter in one.dead_letters]
    assert letter.place == f"{topic}, partition 0, offset 0"
    assert letter.raw == b"poison"


def put_with_header(brokers: list[str], topic: str, value: bytes, header: bytes) -> None:
    """Write a record whose header has the name ``header``, which the package for Python cannot."""
    directory = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(directory.glob("librdkafka*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, name).restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", ",".join(brokers).encode(), error, 512)
    producer = ctypes.c_void_p(library.rd_kafka_new(0, conf, error, 512))
    headers = ctypes.c_void_p(library.rd_kafka_headers_new(1))
    size = ctypes.c_ssize_t
    library.rd_kafka_header_add(headers, header, size(len(header)), b"t", size(1))
    to, copied, end = (1, topic.encode()), (7, 2), 0
    content = (4, value, size(len(value)))
    library.rd_kafka_producev(producer, *to, *copied, *content, 10, headers, end)
    assert library.rd_kafka_flush(producer, round(ANSWER_SECONDS * 1000)) == 0
    library.rd_kafka_destroy(producer)


def test_a_time_that_is_none_is_null(brokers: list[str]) -> None:
    """Many producers take microseconds for milliseconds, and brokers before Kafka 4 take them."""
    topic = new_topic(brokers, message_timestamp_after_max_ms=2**63 - 1)
    Writer(brokers, topic).put(numbers(0, 1), timestamp=2**61)
    source = opened(brokers, topic)
    batch = some(source, 1)[-1]
    source.close()
    assert isinstance(batch.rows, Messages)
    assert batch.rows.attributes["timestamp"] == [None]


def test_a_message_of_ten_megabytes_is_read_alone(brokers: list[str]) -> None:
    topic = new_topic(brokers, max_message_bytes=16 << 20)
    big = b"x" * 10_000_000
    Writer(brokers, topic).put([b"before", big, b"after", None])
    source = opened(brokers, topic)
    batches = some(source, 4)
    source.close()
    assert [value for one in batches for value in values(one)] == [
        b"before",
        big,
        b"after",
        None,
    ]
    assert all(len(one.rows) == 1 for one in batches if big in values(one))


def consumer_groups(brokers: list[str]) -> set[str]:
    """The names of all consumer groups, of which other tests may have left some."""
    return {group.group_id for group in admin(brokers).list_consumer_groups().result().valid}


def test_the_backlog_is_counted(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    Writer(brokers, topic).put(numbers(0, 10))
    source = opened(brokers, topic)
    batch = source.read(4, 30.0)
    source.close()
    assert batch is not None
    assert batch.backlog is not None
    assert batch.backlog.events == 10 - len(batch.rows)
    assert batch.backlog.seconds is not None


def test_peek_and_check_change_nothing(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    Writer(brokers, topic).put(numbers(0, 5))
    source = opened(brokers, topic)
    first = source.read(2, 30.0)
    assert first is not None
    other = source_of(brokers, topic)
    before = consumer_groups(brokers)
    other.check()
    seen = other.peek(first.offset, 10, 30.0)
    assert consumer_groups(brokers) == before
    assert seen is not None
    assert values(seen)[0] == str(len(first.rows)).encode()
    assert rows(source, 5 - len(first.rows)) == numbers(len(first.rows), 5 - len(first.rows))
    source.close()


# -- failures --------------------------------------------------------------------------------------


def test_a_missing_topic_is_refused(brokers: list[str]) -> None:
    with pytest.raises(SourceRefused, match="create the topic"):
        source_of(brokers, "no-such-topic").check()


def test_a_broker_that_is_down_is_unavailable_in_time() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(SourceUnavailable, match=address):
            source_of([address], "topic", timeout="500ms").check()
        assert time.monotonic() - began < 30


def test_a_failed_open_leaves_no_thread(brokers: list[str]) -> None:
    with threads_end():
        source = source_of(brokers, "no-such-topic")
        with pytest.raises(SourceRefused):
            source.open(None)
        source.close()


@pytest.mark.parametrize(
    "setting",
    [
        "auto.offset.reset",
        "enable.auto.commit",
        "isolation.level",
        "group.id",
        "sasl.password",
        "bootstrap.servers",
        "plugin.library.paths",
        "default.topic.config",
        "transactional.id",
        "error_cb",
    ],
)
def test_a_setting_on_which_the_guarantee_depends_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="is not allowed"):
        source_of(["localhost:9092"], "topic", client={setting: "a-secret-word"})


def test_an_unknown_setting_is_refused_without_its_value(brokers: list[str]) -> None:
    source = source_of(brokers, "topic", client={"no.such.setting": PASSWORD})
    with pytest.raises(SourceRefused, match=r"no\.such\.setting") as refused:
        source.open(None)
    assert PASSWORD not in str(refused.value)


# -- credentials -----------------------------------------------------------------------------------

LOGIN = {"mechanism": "PLAIN", "user": USER, "password": PASSWORD}
TOKEN = {
    "enable.sasl.oauthbearer.unsecure.jwt": "true",
    "sasl.oauthbearer.config": f"principal={USER}",
}


def trusting(cluster: KafkaCluster) -> dict[str, str]:
    return {"ca_file": str(cluster.certificates.certificate)}


def with_certificate(cluster: KafkaCluster) -> dict[str, str]:
    files = cluster.certificates.files("client")
    return trusting(cluster) | {
        "certificate_file": files["certificate"],
        "key_file": files["key"],
    }


@pytest.mark.parametrize("way", ["certificate", "password", "scram", "token"])
def test_a_client_proves_who_it_is(cluster: KafkaCluster, way: str) -> None:
    topic = new_topic(cluster.brokers)
    Writer(cluster.brokers, topic).put(numbers(0, 2))
    listener, options = "BOTH", dict[str, Any](tls=trusting(cluster))
    match way:
        case "certificate":
            listener, options = "TLS", {"tls": with_certificate(cluster)}
        case "password":
            options["sasl"] = LOGIN
        case "scram":
            add_scram_user(cluster.brokers)
            options["sasl"] = LOGIN | {"mechanism": "SCRAM-SHA-512"}
        case "token":
            options |= {"sasl": {"mechanism": "OAUTHBEARER"}, "client": TOKEN}
    source = opened(cluster.addresses(listener), topic, **options)
    assert rows(source, 2) == numbers(0, 2)
    source.close()


def add_scram_user(brokers: list[str]) -> None:
    client, kind = admin(brokers), ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    new = UserScramCredentialUpsertion(USER, kind, PASSWORD.encode())
    client.alter_user_scram_credentials([new])[USER].result()


def test_wrong_credentials_are_refused_without_the_password(cluster: KafkaCluster) -> None:
    topic = new_topic(cluster.brokers)
    sasl = LOGIN | {"password": "wrong-word"}
    wrong = source_of(cluster.addresses("SASL"), topic, timeout="1s", sasl=sasl)
    reason = refusal(wrong, None)
    assert "correct user, password and mechanism" in reason
    assert "wrong-word" not in reason
    assert "wrong-word" not in repr(wrong._options)


@pytest.mark.parametrize("lacks", ["ca_file", "certificate_file"])
def test_wrong_certificates_are_refused(cluster: KafkaCluster, lacks: str) -> None:
    topic = new_topic(cluster.brokers)
    tls = {} if lacks == "ca_file" else trusting(cluster)
    wrong = source_of(cluster.addresses("TLS"), topic, timeout="1s", tls=tls)
    assert "correct the files in tls" in refusal(wrong, None)


def test_a_token_without_settings_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sasl\.oauthbearer\.method"):
        source_of(["localhost:9092"], "topic", sasl={"mechanism": "OAUTHBEARER"})


# -- brokers of its own ----------------------------------------------------------------------------


@pytest.fixture
def mortal() -> Iterator[KafkaCluster]:
    with mortal_kafka() as cluster:
        yield cluster


def read_on(source: KafkaSource, offset: str, count: int) -> tuple[list[bytes | None], str]:
    """Read ``count`` values as the engine does, which opens the source again after a failure."""
    found, is_open = list[bytes | None](), False

    def enough() -> bool:
        nonlocal offset, is_open
        try:
            if not is_open:
                source.open(offset)
            is_open = False
            batch = source.read(1_000, 0.2)
            is_open = True
        except SourceUnavailable:
            return False
        if batch is not None:
            offset, _ = batch.offset, found.extend(values(batch))
        return len(found) >= count

    wait_until(enough, within=ANSWER_SECONDS)
    return found, offset


def read_until_unavailable(source: KafkaSource, offset: str) -> tuple[list[bytes | None], str]:
    """Read what the source still has, and the offset after it."""
    found = list[bytes | None]()

    def fails() -> bool:
        nonlocal offset
        try:
            batch = source.read(1_000, 0.2)
        except SourceUnavailable:
            return True
        if batch is not None:
            offset, _ = batch.offset, found.extend(values(batch))
        return False

    wait_until(fails, within=ANSWER_SECONDS)
    return found, offset


@pytest.mark.nightly("another test has a broker that is down")
@pytest.mark.parametrize("ends", ["kill", "freeze"])
def test_a_broker_that_is_away_is_read_on_when_it_is_back(mortal: KafkaCluster, ends: str) -> None:
    topic = new_topic(mortal.brokers)
    Writer(mortal.brokers, topic).put(numbers(0, 100))
    source = opened(mortal.brokers, topic, timeout="2s")
    batch = source.read(10, 30.0)
    assert batch is not None
    if ends == "kill":
        mortal.kill()
    else:
        mortal.node(1).freeze()
    more, offset = read_until_unavailable(source, batch.offset)
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(SourceUnavailable):
            source.open(offset)
        assert time.monotonic() - began < 20
    if ends == "kill":
        mortal.start()
    else:
        mortal.node(1).thaw()
    Writer(mortal.brokers, topic).put(numbers(100, 10))
    found = [*values(batch), *more]
    last, _ = read_on(source, offset, 110 - len(found))
    assert found + last == numbers(0, 110)
    source.close()


@pytest.mark.nightly("one broker leads the partitions of the other tests")
def test_the_leader_of_three_brokers_is_killed_and_the_next_one_is_read_on() -> None:
    with mortal_kafka(nodes=3) as cluster:
        topic = new_topic(cluster.brokers, 3, 3, min_insync_replicas=2)
        writer = Writer(cluster.brokers, topic)
        for partition in range(3):
            writer.put(numbers(1_000 * partition, 100), partition)
        source = opened(cluster.brokers, topic)
        batch = source.read(50, 30.0)
        assert batch is not None
        cluster.kill(2)
        for partition in range(3):
            writer.put(numbers(1_000 * partition + 100, 100), partition)
        found, _ = read_on(source, batch.offset, 600 - len(batch.rows))
        expected = [value for n in range(3) for value in numbers(1_000 * n, 200)]
        assert sorted([*values(batch), *found]) == sorted(expected)
        source.close()


@pytest.mark.nightly("another test opens the source with an epoch that the log does not have")
def test_records_of_an_unclean_election_are_refused() -> None:
    """A replica without the last records becomes leader, and gets more records than it lacks."""
    with mortal_kafka(nodes=3) as cluster:
        topic = f"topic-{uuid.uuid4().hex}"
        client = admin(cluster.brokers)
        settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        new = NewTopic(topic, 1, replica_assignment=[[1, 2]], config=settings)
        client.create_topics([new], request_timeout=ANSWER_SECONDS)[topic].result()
        wait_until(lambda: leader(client, topic) == 1, within=ANSWER_SECONDS)
        writer = Writer(cluster.brokers, topic)
        writer.put(numbers(0, 5))
        cluster.kill(2)
        writer.put(numbers(5, 5))
        source = opened(cluster.brokers, topic)
        offset = some(source, 10)[-1].offset
        cluster.kill(1)
        cluster.start(2)
        wait_until(lambda: leader(client, topic) == 2, within=ANSWER_SECONDS)
        Writer(cluster.brokers, topic).put(numbers(100, 20))
        reason = refusal(source_of(cluster.brokers, topic), offset)
        assert f"{topic}, partition 0, offset 10: the log has changed" in reason
        while True:  # the source that was open all the time
            try:
                batch = source.read(10, 0.2)
            except (SourceUnavailable, SourceRefused):
                break
            assert not values(batch), "records after a truncation were returned"
        source.close()


def leader(client: AdminClient, topic: str) -> int:
    try:
        found: int = client.list_topics(topic, timeout=5).topics[topic].partitions[0].leader
    except (KafkaException, KeyError):
        return -1
    return found
