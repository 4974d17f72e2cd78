"""The sink kind ``mqtt`` with a real mosquitto."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from ha_engine.connectors.mqtt.sink import KEY, MqttSink, MqttSinkOptions
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import Messages, OutputBatch, SinkPlace
from ha_engine.testing import SinkContract
from ha_engine.testing.sink_contract import SCHEMA, batch_of, numbered
from tests.connectors.deliveries import deliver_with_kills
from tests.connectors.mqtt_broker import Listener, MqttBroker, running_broker, subscribe
from tests.connectors.server import running
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [needs("mosquitto"), pytest.mark.rotates("file")]


@pytest.fixture(scope="module")
def broker() -> Iterator[MqttBroker]:
    with running_broker() as broker:
        yield broker


@pytest.fixture
def own() -> Iterator[MqttBroker]:
    """A broker that the test may stop."""
    with running_broker() as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    return f"t{random.randrange(1 << 40)}"


class TestContract(SinkContract):
    kind = MqttSink

    @pytest.fixture(autouse=True)
    def _use(self, broker: MqttBroker, topic: str) -> Iterator[None]:
        self.broker, self.topic = broker, topic
        self.listener = Listener(broker, topic)
        yield
        self.listener.close()

    def options(self) -> dict[str, Any]:
        return self.broker.options | {"topic": self.topic}

    def delivered(self) -> list[dict[str, Any]]:
        # A message behind all others shows that the listener has those too.
        self.broker.publish((self.topic, b"null"))
        found = self.listener.messages
        wait_until(lambda: found and found[-1].payload == b"null")
        return [row for one in found if (row := json.loads(one.payload)) is not None]


class Aside:
    """The dead letters of a sink: the reason, and the ids of the rows."""

    def __init__(self) -> None:
        self.letters: list[tuple[str, list[int]]] = []

    def __call__(self, batch: OutputBatch, reason: str, rows: pa.Table) -> None:
        self.letters.append((reason, rows.column("id").to_pylist()))


def sink_of(
    broker: MqttBroker, aside: Aside | None = None, *, mapped: str = "", **options: Any
) -> MqttSink:
    place = SinkPlace("group", "query", "sink", aside or Aside(), frozenset(mapped.split()))
    written = broker.options | {"timeout": "60s"}
    written |= ({"topic": "rows"} if "topic" not in mapped else {}) | options
    sink = MqttSink(MqttSinkOptions.model_validate(written), place)
    sink.prepare(SCHEMA)
    return sink


def with_attributes(batch: OutputBatch, attributes: dict[str, list[Any]]) -> OutputBatch:
    values = batch.messages().values
    return replace(batch, messages=lambda: Messages(values, attributes))


def keys_of(listener: Listener) -> list[str]:
    return [dict(one.properties.UserProperty)[KEY] for one in listener.messages]


def test_each_message_has_the_key_of_its_row(broker: MqttBroker, topic: str) -> None:
    listener, sink = Listener(broker, topic), sink_of(broker, topic=topic)
    for _ in range(2):
        sink.close()
        sink = sink_of(broker, topic=topic)
        sink.deliver(batch_of(7, numbered(7)))
    wait_until(lambda: len(listener.messages) == 6)
    assert keys_of(listener) == 2 * [f"group/query/sink/7/{row}" for row in range(3)]
    listener.close()


def test_attributes_of_a_message(broker: MqttBroker, topic: str) -> None:
    listener = Listener(broker, f"{topic}/#")
    mapped = "topic header.unit content_type response_topic correlation_data message_expiry"
    sink = sink_of(broker, mapped=mapped)
    batch = with_attributes(
        batch_of(1, numbered(1, 2)),
        {
            "topic": [f"{topic}/1", f"{topic}/2"],
            "header.unit": ["K", None],
            "content_type": ["application/json", None],
            "response_topic": ["answers", None],
            "correlation_data": [b"\1", None],
            "message_expiry": [60, None],
        },
    )
    sink.deliver(batch)
    wait_until(lambda: len(listener.messages) == 2)
    first, second = listener.messages
    assert (first.topic, second.topic) == (f"{topic}/1", f"{topic}/2")
    assert first.properties.UserProperty == [(KEY, "group/query/sink/1/0"), ("unit", "K")]
    assert first.properties.ContentType == "application/json"
    assert first.properties.ResponseTopic == "answers"
    assert first.properties.CorrelationData == b"\1"
    assert first.properties.MessageExpiryInterval in range(1, 61)
    assert second.properties.UserProperty == [(KEY, "group/query/sink/1/1")]
    assert not hasattr(second.properties, "ContentType")
    listener.close()


def test_a_row_that_is_no_message_is_put_aside(broker: MqttBroker, topic: str) -> None:
    listener, aside = Listener(broker, topic), Aside()
    sink = sink_of(broker, aside, mapped="topic message_expiry")
    topics = [topic, None, "a/+", "", "a/2"]
    batch = with_attributes(
        batch_of(1, numbered(1, 5)), {"topic": topics, "message_expiry": [None] * 4 + [-1]}
    )
    sink.deliver(batch)
    wait_until(lambda: listener.messages)
    assert [one.topic for one in listener.messages] == [topic]
    assert [ids for _, ids in aside.letters] == [[1001], [1002], [1003], [1004]]
    assert "no topic" in aside.letters[0][0]
    listener.close()


def test_a_row_without_a_topic_has_that_of_the_options(broker: MqttBroker, topic: str) -> None:
    listener, aside = Listener(broker, f"{topic}/#"), Aside()
    sink = sink_of(broker, aside, mapped="topic", topic=topic)
    topics = [None, f"{topic}/own"]
    sink.deliver(with_attributes(batch_of(1, numbered(1, 2)), {"topic": topics}))
    wait_until(lambda: len(listener.messages) == 2)
    assert [one.topic for one in listener.messages] == [topic, f"{topic}/own"]
    assert not aside.letters
    listener.close()


def test_a_retained_message_is_kept(broker: MqttBroker, topic: str) -> None:
    sink_of(broker, retain=True, topic=topic).deliver(batch_of(1, numbered(1, 1)))
    listener = Listener(broker, topic)
    wait_until(lambda: listener.messages)
    assert listener.messages[0].retain
    listener.close()


def test_a_message_of_10_mb(broker: MqttBroker, topic: str) -> None:
    listener = Listener(broker, topic)
    rows = pa.table({"id": [1, 2], "text": ["x" * 10_000_000, "y"]}, schema=SCHEMA)
    sink_of(broker, topic=topic).deliver(batch_of(1, rows, seconds=60))
    wait_until(lambda: len(listener.messages) == 2)
    assert len(listener.messages[0].payload) > 10_000_000
    listener.close()


def test_a_message_larger_than_the_broker_takes_is_put_aside() -> None:
    with running_broker("max_packet_size 20000") as broker:
        listener, aside = Listener(broker), Aside()
        rows = pa.table({"id": [1, 2], "text": ["x" * 30_000, "y"]}, schema=SCHEMA)
        sink_of(broker, aside).deliver(batch_of(1, rows))
        wait_until(lambda: listener.messages)
        assert [json.loads(one.payload)["id"] for one in listener.messages] == [2]
        ((reason, ids),) = aside.letters
        assert "the broker takes 20000" in reason
        assert ids == [1]
        listener.close()


def test_a_message_of_just_the_size_that_the_broker_takes_is_delivered() -> None:
    with running_broker("max_packet_size 20000") as broker:
        listener, aside = Listener(broker, "rows"), Aside()
        sink = sink_of(broker, aside, mapped="header.name")
        # The type and the length of the packet have 4 bytes, the length of the topic and the packet
        # identifier 2 each. The length of the properties has 1, the frame of each property 5.
        key = f"{KEY}group/query/sink/1/0"
        rest = 4 + 2 + len("rows") + 2 + 1 + 5 + len(key) + 5 + len("nameü".encode())
        values = [b"x" * (20_000 - rest), b"x" * (20_001 - rest)]
        messages = Messages(values, {"header.name": ["ü", "ü"]})
        sink.deliver(replace(batch_of(1, numbered(1, 2), seconds=60), messages=lambda: messages))
        wait_until(lambda: listener.messages)
        assert [one.payload for one in listener.messages] == values[:1]
        assert [ids for _, ids in aside.letters] == [[1001]]
        listener.close()


def test_a_broker_that_is_down_is_unavailable(tmp_path: Path) -> None:
    sink = sink_of(MqttBroker(tmp_path))
    for call in (lambda: sink.deliver(batch_of(1, numbered(1))), sink.check):
        with pytest.raises(SinkUnavailable, match="Connection refused"):
            call()


def test_wrong_credentials_are_refused_and_not_shown(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch()
    with running_broker(f"password_file {passwords}", anonymous=False) as broker:
        sink = sink_of(broker, user="u", password="Sesame")
        for call in (lambda: sink.deliver(batch_of(1, numbered(1))), sink.check):
            with pytest.raises(SinkRefused, match="correct user and password") as refusal:
                call()
            assert "Sesame" not in str(refusal.value)


@pytest.mark.parametrize("in_flight", [1, 3, 1_000])
def test_a_topic_without_permission_is_refused(tmp_path: Path, in_flight: int) -> None:
    """With ``max_queued_messages 0`` mosquitto also closes the connection of a client that may not
    publish, while the client still sends."""
    access = tmp_path / "access"
    access.write_text("topic readwrite allowed\n")
    with running_broker(f"acl_file {access}") as broker:
        sink_of(broker, topic="allowed").deliver(batch_of(1, numbered(1)))
        for number in range(20):
            sink = sink_of(broker, topic="other", in_flight=in_flight)
            with pytest.raises(SinkRefused, match=r"the topic other: Not authorized; correct"):
                sink.deliver(batch_of(number, numbered(number, 100), seconds=60))


def test_a_message_that_the_broker_finds_too_large_is_refused() -> None:
    with running_broker("message_size_limit 1000") as broker:
        rows = pa.table({"id": [1], "text": ["x" * 2_000]}, schema=SCHEMA)
        with pytest.raises(SinkRefused, match="message_size_limit"):
            sink_of(broker).deliver(batch_of(1, rows, seconds=60))


@pytest.mark.parametrize(
    ("settings", "part"), [("max_qos 0", "QoS 0 only"), ("retain_available false", "retain: false")]
)
def test_a_broker_that_lacks_an_ability_is_refused(settings: str, part: str) -> None:
    with running_broker(settings) as broker:
        sink = sink_of(broker, retain=True)
        for call in (lambda: sink.deliver(batch_of(1, numbered(1), seconds=60)), sink.check):
            with pytest.raises(SinkRefused, match=part):
                call()


def test_a_delivery_ends_in_time_while_the_broker_hangs(own: MqttBroker) -> None:
    sink = sink_of(own)
    sink.deliver(batch_of(1, numbered(1)))
    with own.frozen(), pytest.raises(SinkUnavailable, match="did not acknowledge 3 messages"):
        sink.deliver(batch_of(2, numbered(2), seconds=2))
    sink.deliver(batch_of(2, numbered(2), seconds=60))


def test_the_connection_of_the_next_active_ends_that_of_the_former(broker: MqttBroker) -> None:
    former, following = sink_of(broker), sink_of(broker)
    former.deliver(batch_of(1, numbered(1)))
    following.deliver(batch_of(2, numbered(2)))
    assert former._flight is not None
    wait_until(lambda: former._flight.connection.is_lost)
    following.close()


def test_a_broker_killed_during_a_delivery_loses_no_row(own: MqttBroker) -> None:
    """The delivery after the kill counts, once the broker has stored it."""
    broker, found = own, set[int]()
    with broker.client("reader", clean=False) as reader:
        subscribe(reader, "rows")
    broker.store(b"reader")
    sink = sink_of(broker)
    batch = batch_of(1, numbered(1, 50), seconds=600)
    listener = Listener(broker, kill_after=20)
    try:
        sink.deliver(batch)
    except SinkUnavailable:
        pass
    listener.wait_killed()
    listener.close()
    broker.start()
    sink.deliver(batch)
    broker.store(b'"id": 1049')
    sink.close()
    expected = {1000 + row for row in range(50)}
    with broker.client(
        "reader", clean=False, on_message=lambda one: found.add(json.loads(one.payload)["id"])
    ):
        wait_until(lambda: found >= expected)
    assert found == expected


class Durable(MqttBroker):
    """A broker that has stored what it has acknowledged: mosquitto does so when it ends."""

    def kill(self) -> None:
        self.stop()


LONGER = pytest.mark.nightly("two seeds run in make test")


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(n, marks=LONGER) for n in range(3, 23))])
def test_rows_come_at_least_once_and_in_their_order(seed: int) -> None:
    """The broker and actives end at random moments, and batches are repeated."""
    found = list[bytes]()
    with running(Durable) as broker:
        with broker.client("reader", clean=False) as reader:
            subscribe(reader, "rows")
        expected = deliver_with_kills(lambda: sink_of(broker), broker, seed, 200)
        with broker.client("reader", clean=False, on_message=lambda one: found.append(one.payload)):
            wait_until(lambda: set(found) >= set(expected))
    assert list(dict.fromkeys(found)) == expected


@pytest.mark.parametrize("wrong", [{"topic": ""}, {"topic": "a/#"}, {"in_flight": 0}])
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MqttSinkOptions.model_validate({"host": "h"} | wrong)


def test_a_sink_without_a_topic_is_refused() -> None:
    sink = MqttSink(MqttSinkOptions(host="h"), SinkPlace("g", "q", "s", Aside()))
    with pytest.raises(SinkRefused, match="set topic, or map a column"):
        sink.prepare(SCHEMA)
