"""Receivers in front of a real broker: what they acknowledge is in the topic."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from confluent_kafka import Message

from ha_engine.auth import digest_of
from ha_engine.client import InvalidEvents, Producer
from ha_engine.client.payload import of_batch
from tests.connectors.kafka_broker import KafkaCluster, mortal_kafka, new_topic
from tests.connectors.kafka_jars import needs_kafka
from tests.connectors.proxy import Proxy
from tests.connectors.receivers import ANSWER_SECONDS, Receiver, application
from tests.connectors.test_kafka_sink import committed
from tests.waiting import wait_until

pytestmark = [needs_kafka(), pytest.mark.slow, pytest.mark.rotates("file")]

JSON = {"Content-Type": "application/json"}
EVENTS = "/v1/streams/orders/events"
Start = Callable[..., Receiver]


def event(number: int) -> dict[str, Any]:
    return {"number": number, "name": f"n{number}", "price": "1.10", "at": "2013-01-01T05:15:00Z"}


def post(
    receiver: Receiver, body: Any, sequence: int | None = None, **headers: str
) -> httpx.Response:
    named = {} if sequence is None else {"X-Producer-Id": "till", "X-Sequence": str(sequence)}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return receiver.request("POST", EVENTS, content=content, headers=JSON | named | headers)


def committed_event(number: int) -> str:
    """The value of the record of ``event(number)``."""
    written = event(number) | {"at": "2013-01-01T05:15:00+00:00"}
    return json.dumps(written, separators=(",", ":"))


def numbers(records: list[Message]) -> list[int]:
    return [json.loads(one.value())["number"] for one in records]


@pytest.fixture
def topic(brokers: list[str]) -> str:
    return new_topic(brokers, partitions=3)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a receiver, by default of the topic through the brokers."""
    started: list[Receiver] = []

    def begin(brokers: list[str], topic: str, log: Any = None, **sections: Any) -> Receiver:
        text = application(brokers, topic, **(log or {}))
        receiver = Receiver(tmp_path / str(len(started)), text, **sections)
        started.append(receiver)
        receiver.start()
        return receiver

    yield begin
    for receiver in started:
        receiver.stop()


@pytest.fixture
def proxy(cluster: KafkaCluster) -> Iterator[Proxy]:
    """Return the way to the broker for clients of its listener PROXY."""
    broker = cluster.node(1)
    proxy = Proxy(broker.ports["PROXY"], broker.proxy_port)
    yield proxy
    proxy.close()


@pytest.fixture
def through_proxy(proxy: Proxy) -> list[str]:
    return [f"127.0.0.1:{proxy.port}"]


def test_an_acknowledged_request_is_in_the_topic_with_its_headers(
    start: Start, brokers: list[str], topic: str
) -> None:
    receiver = start(brokers, topic)
    answer = post(receiver, [event(1), {"number": 2}], sequence=7)
    assert answer.status_code == 200
    assert answer.json() == {"accepted": 2, "position": {"epoch": 0, "sequence": 0}}
    records = sorted(committed(brokers, topic), key=lambda one: dict(one.headers())["ha-row"])
    assert [json.loads(one.value()) for one in records] == [
        {"number": 1, "name": "n1", "price": "1.10", "at": "2013-01-01T05:15:00+00:00"},
        {"number": 2, "name": None, "price": None, "at": None},
    ]
    assert [dict(one.headers()) for one in records] == [
        {"ha-producer": b"till", "ha-sequence": b"7", "ha-row": row} for row in (b"0", b"1")
    ]
    assert [one.key() for one in records] == [None, None]
    assert post(receiver, event(3)).status_code == 200
    records = committed(brokers, topic)
    assert [one.headers() for one in records].count(None) == 1
    assert receiver.metric("rows_total") == 3
    assert receiver.metric("bytes_total") == sum(len(one.value()) for one in records)
    assert receiver.metric("waiting_rows") == receiver.metric("waiting_bytes") == 0


def test_the_client_sends_over_both_protocols(start: Start, brokers: list[str], topic: str) -> None:
    receiver = start(brokers, topic)
    for first, url in ((0, receiver.url), (5_000, receiver.grpc)):
        with Producer([url], batch_rows=500) as producer:
            producer.send("orders", [event(first + n) for n in range(5_000)])
    assert sorted(numbers(committed(brokers, topic))) == list(range(10_000))


def test_one_large_request_is_stored_whole(start: Start, brokers: list[str], topic: str) -> None:
    receiver = start(brokers, topic)
    rows = pa.RecordBatch.from_pydict({"number": range(20_000), "name": ["x" * 200] * 20_000})
    payload = of_batch(rows)
    answer = post(receiver, payload.body, **{"Content-Type": payload.form.value})
    assert answer.json()["accepted"] == 20_000
    assert sorted(numbers(committed(brokers, topic))) == list(range(20_000))
    many = b"\n".join(b'{"number": 1}' for _ in range(20_001))
    assert post(receiver, many, **{"Content-Type": "application/x-ndjson"}).status_code == 413


def test_a_request_with_a_bad_event_stores_nothing(
    start: Start, brokers: list[str], topic: str
) -> None:
    receiver = start(brokers, topic)
    bad = {"number": "x"}, {"name": "no number"}, {"number": 1, "price": "1.234"}, {"strange": 1}
    for one in bad:
        answer = post(receiver, [event(1), event(2), one])
        assert (answer.status_code, answer.json()["row"]) == (400, 2), answer.text
    with pytest.raises(InvalidEvents) as caught, Producer([receiver.grpc]) as producer:
        producer.send("orders", [event(1), {"number": None}])
    assert caught.value.row == 1
    assert committed(brokers, topic) == []
    assert receiver.metric("requests_rejected_total") == 5


def test_an_event_that_the_topic_cannot_take_is_named(start: Start, brokers: list[str]) -> None:
    topic = new_topic(brokers, max_message_bytes=20_000)
    receiver = start(brokers, topic)
    large = event(2) | {"name": "x" * 20_000}
    answer = post(receiver, [event(1), large])
    assert (answer.status_code, answer.json()["row"]) == (400, 1)
    assert "the topic of the stream takes at most 19488" in answer.json()["reason"]
    assert committed(brokers, topic) == []
    largest = event(0) | {"name": "x" * (19_488 - len(committed_event(0)) + len("n0"))}
    assert post(receiver, [largest, *map(event, range(1, 1_000))], 1).status_code == 200
    assert numbers(committed(brokers, topic)) == list(range(1_000))


def test_streams_without_a_topic_are_refused(start: Start, brokers: list[str], topic: str) -> None:
    receiver = start(brokers, topic)
    for stream, reason in (("other", "send them to a node"), ("none", "a receiver takes orders")):
        answer = receiver.request("POST", f"/v1/streams/{stream}/events", json=[event(1)])
        assert answer.status_code == 404
        assert reason in answer.json()["error"]
    columns = receiver.request("GET", "/v1/streams/orders").json()["schema"]
    assert [one["name"] for one in columns] == ["number", "name", "price", "at"]


def test_events_with_equal_columns_of_the_key_are_in_one_partition_in_order(
    start: Start, brokers: list[str], topic: str
) -> None:
    receiver = start(brokers, topic, log={"partition_by": ["name"]})
    rows = [{"number": n, "name": None if n % 5 == 0 else f"k{n % 5}"} for n in range(500)]
    assert post(receiver, rows).status_code == 200
    records = committed(brokers, topic)
    partitions = {(one.key(), one.partition()) for one in records}
    keys = [b'{"name":null}', *(b'{"name":"k%d"}' % n for n in range(1, 5))]
    assert sorted(key for key, _ in partitions) == sorted(keys)
    for key in keys:
        of_key = numbers([one for one in records if one.key() == key])
        assert of_key == sorted(of_key)
    assert len(records) == 500


def test_tokens_and_certificates_are_those_of_the_config(
    start: Start, cluster: KafkaCluster, topic: str
) -> None:
    access = {"admin": {"boss": digest_of("a")}, "ingest": {"till": digest_of("t")}}
    files = cluster.certificates.files("receiver", san="IP:127.0.0.1")
    ca = Path(files.pop("ca"))
    receiver = start(cluster.brokers, topic, access=access, http={"tls": files}, ca=ca)
    assert post(receiver, event(1)).status_code == 401
    assert post(receiver, event(1), Authorization="Bearer t").status_code == 200
    assert receiver.metric("requests_rejected_total") == 1


def test_a_request_that_repeats_a_waiting_one_is_not_written_again(
    start: Start, brokers: list[str], through_proxy: list[str], proxy: Proxy, topic: str
) -> None:
    receiver = start(through_proxy, topic, log={"timeout": "60s"})
    proxy.freeze()
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(post, receiver, [event(1)], 1)
        wait_until(lambda: receiver.metric("waiting_rows") == 1)
        second = threads.submit(post, receiver, [event(1)], 1)
        wait_until(lambda: receiver.metric("repeated_rows_total") == 1)
        assert post(receiver, [event(2)], 1).json()["conflict"] == "payload"
        proxy.thaw()
        assert [one.result().status_code for one in (first, second)] == [200, 200]
    assert numbers(committed(brokers, topic)) == [1]


def test_too_much_that_waits_is_refused_until_the_broker_goes_on(
    start: Start, brokers: list[str], through_proxy: list[str], proxy: Proxy, topic: str
) -> None:
    limits = {
        "receive": {"max_pending": "256KiB"},
        "http": {"max_body": "64KiB"},
        "ingest": {"max_body": "64KiB"},
    }
    receiver = start(through_proxy, topic, log={"timeout": "60s"}, **limits)
    proxy.freeze()
    with ThreadPoolExecutor(8) as threads:
        bodies = [[event(100 * n + m) for m in range(100)] for n in range(3)]
        taken = []
        for number, body in enumerate(bodies):
            taken.append(threads.submit(post, receiver, body))
            wait_until(lambda wanted=100 * (number + 1): receiver.metric("waiting_rows") == wanted)
        refused = post(receiver, [event(-m) for m in range(200)])
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        proxy.thaw()
        assert {one.result().status_code for one in taken} == {200}
    assert sorted(numbers(committed(brokers, topic))) == list(range(300))
    assert post(receiver, event(300)).status_code == 200
    too_many = post(receiver, [{"number": n} for n in range(1_000)])
    assert too_many.status_code == 413
    assert "receive.max_pending" in too_many.json()["error"]


def test_nothing_is_acknowledged_while_the_brokers_are_away(
    start: Start, brokers: list[str], through_proxy: list[str], proxy: Proxy, topic: str
) -> None:
    receiver = start(through_proxy, topic, log={"timeout": "2s"})
    assert post(receiver, event(1)).status_code == 200
    proxy.freeze()
    with ThreadPoolExecutor(1) as threads:
        cut = threads.submit(post, receiver, event(2), 2)
        wait_until(lambda: receiver.metric("waiting_rows") == 1)
        proxy.kill()
        assert cut.result().status_code == 503
    assert receiver.metric("failed_requests_total") == 1
    assert "a request was not stored" in receiver.log()
    wait_until(lambda: not receiver.answers("readiness"))
    assert receiver.answers("liveness")
    assert receiver.metric("brokers_available") == 0
    refused = post(receiver, event(3))
    assert (refused.status_code, refused.json()["active"]) == (503, None)
    proxy.thaw()
    proxy.start()
    receiver.await_ready()
    assert post(receiver, event(2), 2).status_code == 200
    stored = numbers(committed(brokers, topic))
    assert set(stored) == {1, 2}
    assert stored.count(1) == 1


def test_a_stop_answers_what_was_taken_and_refuses_the_rest(
    start: Start, brokers: list[str], through_proxy: list[str], proxy: Proxy, topic: str
) -> None:
    receiver = start(through_proxy, topic, log={"timeout": "60s"})
    proxy.freeze()
    with ThreadPoolExecutor(1) as threads, httpx.Client(timeout=ANSWER_SECONDS) as kept:
        under_way = threads.submit(post, receiver, [event(1), event(2)])
        wait_until(lambda: receiver.metric("waiting_rows") == 2)
        receiver.terminate()
        wait_until(lambda: not receiver.answers("readiness"))
        refused = kept.post(receiver.url + EVENTS, json=[event(3)])
        assert refused.status_code == 503
        assert "this receiver is stopping" in refused.json()["error"]
        proxy.thaw()
        assert under_way.result().status_code == 200
    assert receiver.ended() == 0
    assert sorted(numbers(committed(brokers, topic))) == [1, 2]


def test_two_receivers_serve_one_producer_in_turns(
    start: Start, brokers: list[str], topic: str
) -> None:
    both = [start(brokers, topic) for _ in range(2)]
    for sequence in range(20):
        receiver = both[sequence % 2]
        assert post(receiver, [event(sequence)], sequence).status_code == 200
    records = committed(brokers, topic)
    assert sorted(numbers(records)) == list(range(20))
    assert [receiver.metric("rows_total") for receiver in both] == [10, 10]


@pytest.mark.parametrize("scheme", ["url", "grpc"])
def test_a_client_loses_nothing_when_receivers_are_killed(
    start: Start, brokers: list[str], topic: str, scheme: str
) -> None:
    both = [start(brokers, topic) for _ in range(2)]
    with ThreadPoolExecutor(1) as threads:

        def send() -> int:
            with Producer([getattr(one, scheme) for one in both], batch_rows=50) as producer:
                producer.send("orders", (event(n) for n in range(20_000)))
                producer.flush()
                return producer.rows_acked

        sending = threads.submit(send)
        for _ in both:
            # A client moves to the other receiver on a busy host too, when an answer is late.
            wait_until(lambda: any(one.metric("rows_total") > 500 for one in both))
            victim = max(both, key=lambda one: one.metric("rows_total"))
            victim.kill()
            victim.start()
        assert sending.result() == 20_000
    stored = Counter(numbers(committed(brokers, topic)))
    assert set(stored) == set(range(20_000))


@pytest.mark.nightly("test_nothing_is_acknowledged_while_the_brokers_are_away")
def test_requests_that_lack_replicas_are_counted_and_logged(start: Start) -> None:
    with mortal_kafka(3) as cluster:
        topic = new_topic(cluster.brokers, partitions=3, replicas=3, min_insync_replicas=3)
        receiver = start(cluster.brokers, topic, log={"timeout": "2s"})
        assert post(receiver, event(1)).status_code == 200
        assert receiver.metric("under_replicated_partitions") == 0
        cluster.kill(1)
        wait_until(lambda: receiver.metric("under_replicated_partitions") == 3, within=60.0)
        receiver.await_ready()
        for number in (2, 3):
            assert post(receiver, event(number)).status_code == 503
        assert receiver.answers("readiness")
        assert receiver.metric("failed_requests_total") == 2
        assert receiver.log().count("a request was not stored") == 1
        receiver.stop()


@pytest.mark.nightly("three brokers of its own, of which each dies once")
def test_a_receiver_takes_events_after_the_death_of_any_broker(start: Start) -> None:
    """Kafka's client may ask a broker that died, and no other one, until it is made again."""
    with mortal_kafka(3) as cluster:
        topic = new_topic(cluster.brokers, partitions=3, replicas=3)
        receiver = start(cluster.brokers, topic)
        for number in (1, 2, 3):
            assert post(receiver, event(number)).status_code == 200
            cluster.kill(number)
            wait_until(
                lambda: post(receiver, event(9)).status_code == 200, within=2 * ANSWER_SECONDS
            )
            cluster.start(number)
            receiver.await_ready()
        receiver.stop()
