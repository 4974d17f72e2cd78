"""The sink ``kafka`` against a real broker: each row is there exactly once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from ha_engine.connectors.kafka.sink import KafkaSink
from ha_engine.errors import Fenced, SinkRefused, SinkUnavailable
from ha_engine.plugins import OutputBatch
from ha_engine.testing.ledger_sink_contract import LedgerSinkContract
from tests.connectors.deliveries import batch_of, rows
from tests.connectors.kafka_broker import (
    ANSWER_SECONDS,
    PASSWORD,
    USER,
    KafkaCluster,
    mortal_kafka,
    new_topic,
)
from tests.connectors.kafka_deliverer import (
    ROWS,
    SECONDS,
    STEP_ROWS,
    STEPS,
    claim_of,
    sink_of,
)
from tests.connectors.kafka_jars import needs_kafka
from tests.waiting import wait_ended, wait_until

pytestmark = [needs_kafka(), pytest.mark.rotates("file")]

SEED = int(os.environ.get("KAFKA_SEED", "1"))


def committed(brokers: list[str], topic: str) -> list[Message]:
    """Every committed record of the topic, after all of its transactions have ended."""
    reader = Consumer(
        {
            "bootstrap.servers": ",".join(brokers),
            "group.id": "test",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    parts = reader.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions
    # A reader of committed records would be told the end before the first open transaction.
    plain = Consumer(
        {
            "bootstrap.servers": ",".join(brokers),
            "group.id": "test",
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )
    ends = {
        number: plain.get_watermark_offsets(TopicPartition(topic, number), ANSWER_SECONDS)[1]
        for number in parts
    }
    plain.close()
    reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in parts])
    found, reached = list[Message](), dict[int, int]()

    def all_read() -> bool:
        for message in reader.consume(10_000, 0.1):
            if message.error() is None:
                found.append(message)
            elif message.error().name() == "_PARTITION_EOF":
                reached[message.partition()] = message.offset()
        return all(reached.get(number, 0) >= end for number, end in ends.items())

    wait_until(all_read, within=ANSWER_SECONDS)
    reader.close()
    return found


def batch(number: int, count: int = ROWS) -> OutputBatch:
    return batch_of(number, rows(number, count), SECONDS)


def require_batches(brokers: list[str], topic: str, batches: int, count: int = ROWS) -> None:
    """Each row of the batches is there once, in the order of the batches."""
    found = [message.value() for message in committed(brokers, topic)]
    assert found == [row for number in range(1, batches + 1) for row in rows(number, count)]


def claimed(brokers: list[str], topic: str, epoch: int, **options: Any) -> tuple[KafkaSink, int]:
    """An instance that has claimed the sink, again and again as the engine, and its last batch."""
    sink = sink_of(",".join(brokers), topic, **options)
    found = list[int]()

    def claims() -> bool:
        try:
            found.append(sink.claim(claim_of(epoch)))
        except SinkUnavailable:
            return False
        return True

    wait_until(claims, within=ANSWER_SECONDS)
    return sink, found[0]


class TestKafkaSinkContract(LedgerSinkContract):
    kind = KafkaSink
    seconds = 120.0
    brokers: ClassVar[list[str]]

    @pytest.fixture(autouse=True)
    def topic_of_the_test(self, brokers: list[str]) -> None:
        type(self).brokers = brokers
        self.topic = new_topic(brokers)

    def options(self) -> dict[str, Any]:
        ledger = {"topic": f"{self.topic}-ledger", "replication": 1, "min_insync_replicas": 1}
        return {
            "brokers": self.brokers,
            "topic": self.topic,
            "timeout": "60s",
            "ledger": ledger,
        }

    def delivered(self) -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in committed(self.brokers, self.topic)]


# -- takeovers -------------------------------------------------------------------------------------


def test_the_open_transaction_of_a_dead_active_is_aborted(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    dead, _ = claimed(brokers, topic, 1)
    dead.deliver(batch(1))
    assert dead._claimed is not None
    producer = dead._claimed.producer
    producer.begin_transaction()
    for _ in range(5):
        producer.produce(topic, b'"of batch 2, never committed"')
    assert producer.flush(ANSWER_SECONDS) == 0
    next_one, through = claimed(brokers, topic, 2)
    assert through == 1
    next_one.deliver(batch(2))
    require_batches(brokers, topic, 2)


def test_a_commit_with_unknown_outcome_counts_once(brokers: list[str]) -> None:
    """The active dies after the broker has committed, before it knows."""
    topic = new_topic(brokers)
    dead, _ = claimed(brokers, topic, 1)
    before = dead._claimed
    dead.deliver(batch(1))
    assert before is not None
    dead._claimed = before  # it believes that nothing was delivered
    again = claim_of(1)
    assert dead.claim(again) == 1
    dead.deliver(batch(1))
    dead.deliver(batch(2))
    require_batches(brokers, topic, 2)


def test_an_active_that_wakes_late_does_not_stop_its_successor(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    late, _ = claimed(brokers, topic, 1)
    late.deliver(batch(1))
    present, _ = claimed(brokers, topic, 2)
    with pytest.raises(SinkUnavailable, match="claims the sink again"):
        late.deliver(batch(2))
    with pytest.raises(Fenced):
        late.claim(claim_of(1))
    present.deliver(batch(2))  # the late claim has not disturbed it
    require_batches(brokers, topic, 2)


def test_a_producer_that_a_lower_epoch_fenced_claims_again(brokers: list[str]) -> None:
    """A late active that looked at the ledger just before may still fence the present one."""
    topic = new_topic(brokers)
    present, _ = claimed(brokers, topic, 2)
    late = sink_of(",".join(brokers), topic)
    late._fencing(claim_of(1))
    with pytest.raises(SinkUnavailable, match="claims the sink again"):
        present.deliver(batch(1))
    assert present.claim(claim_of(2)) == 0
    present.deliver(batch(1))
    require_batches(brokers, topic, 1)


def test_rows_are_there_once_after_kills_at_random_moments(brokers: list[str]) -> None:
    topic, chance = new_topic(brokers), random.Random(SEED)
    for epoch in (1, 2):
        process = _deliverer(brokers, topic, epoch, 1_000)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 6)):
            process.stdout.readline()
        threading.Event().wait(chance.random() * 0.1)  # somewhere in a delivery
        process.kill()
        wait_ended(process)
    last, through = claimed(brokers, topic, 3)
    for number in range(through + 1, through + 4):
        last.deliver(batch(number))
    require_batches(brokers, topic, through + 3)


@pytest.mark.nightly("another test kills actives at random moments")
def test_rows_are_there_once_after_a_kill_at_every_step(brokers: list[str]) -> None:
    """Actives die before and after each call of a claim and of three deliveries."""
    topic = new_topic(brokers)
    for moment in range(1, STEPS + 1):
        process = _deliverer(brokers, topic, moment, 1_000, moment)
        assert wait_ended(process) == -signal.SIGKILL
    last, through = claimed(brokers, topic, STEPS + 1)
    assert through > 20
    last.deliver(batch(through + 1, STEP_ROWS))
    require_batches(brokers, topic, through + 1, STEP_ROWS)


def _deliverer(brokers: list[str], topic: str, *words: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.connectors.kafka_deliverer", ",".join(brokers), topic]
        + [str(word) for word in words],
        stdout=subprocess.PIPE,
    )


@pytest.mark.nightly("other tests fence an active before and after its delivery")
def test_rows_are_there_once_when_claims_interrupt_deliveries(brokers: list[str]) -> None:
    """Earlier actives live on, and deliver while the next one claims."""
    topic, chance = new_topic(brokers), random.Random(SEED)
    sink, through = claimed(brokers, topic, 1)
    for epoch in range(2, 12):
        stop = threading.Event()
        thread = threading.Thread(target=_deliver_until, args=(sink, through, stop))
        thread.start()
        threading.Event().wait(chance.random() * 0.05)
        sink, through = claimed(brokers, topic, epoch)
        stop.set()
        thread.join()
    sink.deliver(batch(through + 1))
    require_batches(brokers, topic, through + 1)


def _deliver_until(sink: KafkaSink, through: int, stop: threading.Event) -> None:
    try:
        while not stop.is_set():
            through += 1
            sink.deliver(batch(through))
    except SinkUnavailable:
        pass


# -- the ledger ------------------------------------------------------------------------------------


def test_a_ledger_that_expires_is_refused(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    expiring = new_topic(brokers, cleanup_policy="delete")
    sink = sink_of(",".join(brokers), topic, ledger={"topic": expiring})
    with pytest.raises(SinkRefused, match=r"cleanup\.policy=delete"):
        sink.claim(claim_of(1))
    with pytest.raises(SinkRefused, match=r"cleanup\.policy=delete"):
        sink.check()


def test_a_ledger_with_too_many_replicas_is_refused(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    ledger = {"topic": f"{topic}-ledger", "replication": 99}
    with pytest.raises(SinkRefused, match=r"lower ledger\.replication"):
        sink_of(",".join(brokers), topic, ledger=ledger).claim(claim_of(1))


@pytest.mark.nightly("the claims of other tests read the ledger to its end")
def test_a_claim_waits_for_the_open_transaction_of_another_sink(brokers: list[str]) -> None:
    """Its own record may be behind the first open record, so it must not stop there."""
    topic = new_topic(brokers)
    sink, _ = claimed(brokers, topic, 1)
    other = Producer(
        {
            "bootstrap.servers": ",".join(brokers),
            "transactional.id": f"other-{uuid.uuid4()}",
            "log_level": 0,
        }
    )
    other.init_transactions(ANSWER_SECONDS)
    other.begin_transaction()
    other.produce(f"{topic}-ledger", b"{}", key=b"another sink", partition=0)
    assert other.flush(ANSWER_SECONDS) == 0
    sink.deliver(batch(1))
    with pytest.raises(SinkUnavailable, match="a transaction of another program"):
        sink_of(",".join(brokers), topic).claim(claim_of(2, seconds=8.0))
    other.commit_transaction(ANSWER_SECONDS)
    next_one, through = claimed(brokers, topic, 2)
    assert through == 1
    next_one.deliver(batch(2))
    require_batches(brokers, topic, 2)


# -- messages --------------------------------------------------------------------------------------


def test_a_message_gets_its_attributes(brokers: list[str]) -> None:
    topic = new_topic(brokers, partitions=3)
    sink, _ = claimed(brokers, topic, 1)
    when = datetime(2024, 2, 29, 12, 0, 0, 123_000, tzinfo=UTC)
    sink.deliver(
        batch_of(
            1,
            rows(1, 2),
            SECONDS,
            key=[b"\xff", None],
            partition=[2, 0],
            timestamp=[when, None],
            **{"header.trace": [b"t", None]},
        )
    )
    first, second = sorted(committed(brokers, topic), key=lambda one: -one.partition())
    assert (first.partition(), first.key(), first.headers()) == (2, b"\xff", [("trace", b"t")])
    assert first.timestamp()[1] == when.timestamp() * 1000
    assert (second.partition(), second.key(), second.headers()) == (0, None, None)


@pytest.mark.nightly("smaller batches are one transaction too")
def test_a_large_batch_is_one_transaction(brokers: list[str]) -> None:
    topic = new_topic(brokers)
    sink, _ = claimed(brokers, topic, 1)
    sink.deliver(batch(1, 120_000))  # more than the producer's buffer
    assert len(committed(brokers, topic)) == 120_000


def test_a_message_that_is_too_large_is_refused_and_named(brokers: list[str]) -> None:
    topic = new_topic(brokers, max_message_bytes=2_000)
    sink, _ = claimed(brokers, topic, 1)
    with pytest.raises(SinkRefused, match=r"raise message_max and max\.message\.bytes"):
        sink.deliver(batch_of(1, rows(1, 1, 3_000)))
    assert sink.claim(claim_of(1)) == 0
    sink.deliver(batch(1))
    require_batches(brokers, topic, 1)


def test_a_refusal_is_named_while_rows_are_sent(brokers: list[str]) -> None:
    """librdkafka takes no more rows after a refusal, and does not say why."""
    topic = new_topic(brokers, max_message_bytes=2_000)
    sink, _ = claimed(brokers, topic, 1)
    with pytest.raises(SinkRefused, match="Message size too large"):
        sink.deliver(batch_of(1, rows(1, 90_000, 1_000)))


def test_message_max_limits_what_is_sent_at_once(brokers: list[str]) -> None:
    topic = new_topic(brokers, max_message_bytes=2_000)
    sink, _ = claimed(brokers, topic, 1, message_max="2000B")
    values = rows(1, 50, 900)
    sink.deliver(batch_of(1, values, SECONDS))
    assert [message.value() for message in committed(brokers, topic)] == values


@pytest.mark.parametrize("partition", [7, -1])
def test_a_partition_that_the_topic_lacks_is_refused(brokers: list[str], partition: int) -> None:
    topic = new_topic(brokers)
    sink, _ = claimed(brokers, topic, 1)
    with pytest.raises(SinkRefused, match=f"partition {partition}"):
        sink.deliver(batch_of(1, rows(1, 1), partition=[partition]))


def test_a_time_before_1970_is_refused(brokers: list[str]) -> None:
    """Brokers take it, but readers take it for no time, or fail."""
    sink, _ = claimed(brokers, new_topic(brokers), 1)
    before = datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    with pytest.raises(SinkRefused, match="1969-12-31"):
        sink.deliver(batch_of(1, rows(1, 1), timestamp=[before]))


def test_a_message_of_ten_megabytes_is_delivered(brokers: list[str]) -> None:
    topic = new_topic(brokers, max_message_bytes=16 << 20)
    sink, _ = claimed(brokers, topic, 1, message_max="16MiB", client={"compression.type": "gzip"})
    values = [b"before", os.urandom(10_000_000), b"after"]
    sink.deliver(batch_of(1, values, SECONDS))
    assert [message.value() for message in committed(brokers, topic)] == values


# -- failures --------------------------------------------------------------------------------------


def test_a_missing_topic_is_refused(brokers: list[str]) -> None:
    with pytest.raises(SinkRefused, match="create the topic"):
        sink_of(",".join(brokers), "no-such-topic").claim(claim_of(1))
    with pytest.raises(SinkRefused, match="create the topic"):
        sink_of(",".join(brokers), "no-such-topic").check()


def test_a_sink_that_is_not_claimed_delivers_nothing() -> None:
    with pytest.raises(SinkUnavailable, match="not claimed"):
        sink_of("127.0.0.1:1", "topic").deliver(batch(1))


@pytest.mark.parametrize("limits", [("5s", "1s"), ("2m", "1m")])
def test_a_transaction_shorter_than_a_wait_is_refused(limits: tuple[str, str]) -> None:
    timeout, transaction_timeout = limits
    with pytest.raises(ValueError, match="transaction_timeout must be at least timeout"):
        sink_of("127.0.0.1:1", "topic", timeout=timeout, transaction_timeout=transaction_timeout)


def test_a_broker_that_is_down_is_unavailable_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1:1"):
        sink_of("127.0.0.1:1", "topic", timeout="500ms").claim(claim_of(1))
    assert time.monotonic() - began < 30


def test_a_sink_delivers_with_tls_and_a_password(cluster: KafkaCluster) -> None:
    topic = new_topic(cluster.brokers)
    options = {
        "tls": {"ca_file": str(cluster.certificates.certificate)},
        "sasl": {"mechanism": "PLAIN", "user": USER, "password": PASSWORD},
    }
    sink, _ = claimed(cluster.addresses("BOTH"), topic, 1, **options)
    sink.deliver(batch(1))
    require_batches(cluster.brokers, topic, 1)


# -- brokers of its own ----------------------------------------------------------------------------


@pytest.mark.nightly("other tests kill the active, which leaves a transaction open too")
def test_a_broker_that_is_killed_while_it_takes_batches_has_each_row_once() -> None:
    with mortal_kafka() as cluster:
        _require_once_after_a_kill(cluster, replicas=1, node=1)


@pytest.mark.nightly("one broker has the transactions of the other tests")
def test_three_brokers_lose_one_and_have_each_row_once() -> None:
    with mortal_kafka(nodes=3) as cluster:
        _require_once_after_a_kill(cluster, replicas=3, node=random.Random(SEED).randint(1, 3))


def _require_once_after_a_kill(cluster: KafkaCluster, replicas: int, node: int) -> None:
    config = {"min_insync_replicas": max(1, replicas - 1)}
    topic = new_topic(cluster.brokers, replicas=replicas, **config)
    options = {
        "timeout": "10s",
        "ledger": {"topic": f"{topic}-ledger", "replication": replicas} | config,
    }
    sink, _ = claimed(cluster.brokers, topic, 1, **options)
    through, failures, stop = 0, 0, threading.Event()

    def deliver() -> None:
        """Deliver as the engine does: after a failure it claims again."""
        nonlocal through, failures
        while not stop.is_set():
            try:
                sink.deliver(batch(through + 1))
                through += 1
            except SinkUnavailable:
                failures += 1
                sink.close()
                while not stop.is_set():
                    try:
                        through = sink.claim(claim_of(1))
                        break
                    except SinkUnavailable:
                        pass

    thread = threading.Thread(target=deliver)
    thread.start()
    wait_until(lambda: through >= 3, within=ANSWER_SECONDS)
    cluster.kill(node)
    before = through
    if replicas == 1:
        wait_until(lambda: failures > 0, within=ANSWER_SECONDS)
        cluster.start(node)
    wait_until(lambda: through >= before + 3, within=ANSWER_SECONDS)
    stop.set()
    thread.join()
    last, through = claimed(cluster.brokers, topic, 2, **options)
    last.deliver(batch(through + 1))
    require_batches(cluster.brokers, topic, through + 1)


@pytest.mark.nightly("another test has a broker that is down")
def test_a_broker_that_hangs_is_unavailable_and_has_each_row_once() -> None:
    with mortal_kafka() as cluster:
        topic, broker = new_topic(cluster.brokers), cluster.node(1)
        sink, _ = claimed(cluster.brokers, topic, 1, timeout="2s")
        sink.deliver(batch(1))
        broker.freeze()
        began = time.monotonic()
        with pytest.raises(SinkUnavailable):
            sink.deliver(batch(2))
        with pytest.raises(SinkUnavailable):
            sink.claim(claim_of(1))
        sink.close()
        assert time.monotonic() - began < 30
        broker.thaw()
        sink, through = claimed(cluster.brokers, topic, 2)
        sink.deliver(batch(through + 1))
        require_batches(cluster.brokers, topic, through + 1)
