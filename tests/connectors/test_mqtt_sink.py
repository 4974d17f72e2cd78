"""The sink kind ``mqtt`` with a real mosquitto."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
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
from tests.connectors.mqtt_broker import Listener, Mosquitto
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = needs("mosquitto")


class TestContract(SinkContract):
    kind = MqttSink

    def setup_method(self, method: Callable[..., None]) -> None:
        super().setup_method(method)
        self.broker = Mosquitto(self.home / "broker")
        self.broker.start()
        self.listener = Listener(self.broker)

    def teardown_method(self, method: Callable[..., None]) -> None:
        self.listener.close()
        self.broker.stop()
        super().teardown_method(method)

    def options(self) -> dict[str, Any]:
        return self.broker.options | {"topic": "rows"}

    def delivered(self) -> list[dict[str, Any]]:
        # A message behind all others shows that the listener has those too.
        self.broker.publish(("rows", b"null"))
        found = self.listener.messages
        wait_until(lambda: found and found[-1].payload == b"null")
        return [row for one in found if (row := json.loads(one.payload)) is not None]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path / "broker").running() as broker:
        yield broker


class Aside:
    """The dead letters of a sink: the reason, and the ids of the rows."""

    def __init__(self) -> None:
        self.letters: list[tuple[str, list[int]]] = []

    def __call__(self, batch: OutputBatch, reason: str, rows: pa.Table) -> None:
        self.letters.append((reason, rows.column("id").to_pylist()))


def sink_of(
    broker: Mosquitto, aside: Aside | None = None, *, mapped: str = "", **options: Any
) -> MqttSink:
    place = SinkPlace("group", "query", "sink", aside or Aside(), frozenset(mapped.split()))
    written = broker.options | ({"topic": "rows"} if "topic" not in mapped else {}) | options
    sink = MqttSink(MqttSinkOptions.model_validate(written), place)
    sink.prepare(SCHEMA)
    return sink


def with_attributes(batch: OutputBatch, attributes: dict[str, list[Any]]) -> OutputBatch:
    values = batch.messages().values
    return replace(batch, messages=lambda: Messages(values, attributes))


def keys_of(listener: Listener) -> list[str]:
    return [dict(one.properties.UserProperty)[KEY] for one in listener.messages]


def test_each_message_has_the_key_of_its_row(broker: Mosquitto) -> None:
    listener, sink = Listener(broker), sink_of(broker)
    for _ in range(2):
        sink.close()
        sink = sink_of(broker)
        sink.deliver(batch_of(7, numbered(7)))
    wait_until(lambda: len(listener.messages) == 6)
    assert keys_of(listener) == 2 * [f"group/query/sink/7/{row}" for row in range(3)]
    listener.close()


def test_attributes_of_a_message(broker: Mosquitto) -> None:
    listener = Listener(broker)
    mapped = "topic header.unit content_type response_topic correlation_data message_expiry"
    sink = sink_of(broker, mapped=mapped)
    batch = with_attributes(
        batch_of(1, numbered(1, 2)),
        {
            "topic": ["a/1", "a/2"],
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
    assert (first.topic, second.topic) == ("a/1", "a/2")
    assert first.properties.UserProperty == [(KEY, "group/query/sink/1/0"), ("unit", "K")]
    assert first.properties.ContentType == "application/json"
    assert first.properties.ResponseTopic == "answers"
    assert first.properties.CorrelationData == b"\1"
    assert first.properties.MessageExpiryInterval in range(1, 61)
    assert second.properties.UserProperty == [(KEY, "group/query/sink/1/1")]
    assert not hasattr(second.properties, "ContentType")
    listener.close()


def test_a_row_that_is_no_message_is_put_aside(broker: Mosquitto) -> None:
    listener, aside = Listener(broker), Aside()
    sink = sink_of(broker, aside, mapped="topic message_expiry")
    topics = ["a/1", None, "a/+", "", "a/2"]
    batch = with_attributes(
        batch_of(1, numbered(1, 5)), {"topic": topics, "message_expiry": [None] * 4 + [-1]}
    )
    sink.deliver(batch)
    wait_until(lambda: listener.messages)
    assert [one.topic for one in listener.messages] == ["a/1"]
    assert [ids for _, ids in aside.letters] == [[1001], [1002], [1003], [1004]]
    assert "no topic" in aside.letters[0][0]
    listener.close()


def test_a_retained_message_is_kept(broker: Mosquitto) -> None:
    sink_of(broker, retain=True).deliver(batch_of(1, numbered(1, 1)))
    listener = Listener(broker)
    wait_until(lambda: listener.messages)
    assert listener.messages[0].retain
    listener.close()


def test_a_message_of_10_mb(broker: Mosquitto) -> None:
    listener = Listener(broker)
    rows = pa.table({"id": [1, 2], "text": ["x" * 10_000_000, "y"]}, schema=SCHEMA)
    sink_of(broker).deliver(batch_of(1, rows, seconds=60))
    wait_until(lambda: len(listener.messages) == 2)
    assert len(listener.messages[0].payload) > 10_000_000
    listener.close()


def test_a_message_larger_than_the_broker_takes_is_put_aside(tmp_path: Path) -> None:
    with Mosquitto(tmp_path / "broker", "max_packet_size 20000").running() as broker:
        listener, aside = Listener(broker), Aside()
        rows = pa.table({"id": [1, 2], "text": ["x" * 30_000, "y"]}, schema=SCHEMA)
        sink_of(broker, aside).deliver(batch_of(1, rows))
        wait_until(lambda: listener.messages)
        assert [json.loads(one.payload)["id"] for one in listener.messages] == [2]
        ((reason, ids),) = aside.letters
        assert "the broker takes 20000" in reason
        assert ids == [1]
        listener.close()


def test_a_broker_that_is_down_is_unavailable(tmp_path: Path) -> None:
    sink = sink_of(Mosquitto(tmp_path / "broker"))
    for call in (lambda: sink.deliver(batch_of(1, numbered(1))), sink.check):
        with pytest.raises(SinkUnavailable, match="Connection refused"):
            call()


def test_wrong_credentials_are_refused_and_not_shown(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch()
    settings = f"password_file {passwords}"
    with Mosquitto(tmp_path / "broker", settings, anonymous=False).running() as broker:
        sink = sink_of(broker, user="u", password="Sesame")
        for call in (lambda: sink.deliver(batch_of(1, numbered(1))), sink.check):
            with pytest.raises(SinkRefused, match="correct user and password") as refusal:
                call()
            assert "Sesame" not in str(refusal.value)


def test_a_topic_without_permission_is_refused(tmp_path: Path) -> None:
    access = tmp_path / "access"
    access.write_text("topic readwrite allowed\n")
    with Mosquitto(tmp_path / "broker", f"acl_file {access}").running() as broker:
        sink_of(broker, topic="allowed").deliver(batch_of(1, numbered(1)))
        with pytest.raises(SinkRefused, match="Not authorized"):
            sink_of(broker, topic="other").deliver(batch_of(2, numbered(2)))


def test_a_delivery_ends_in_time_while_the_broker_hangs(broker: Mosquitto) -> None:
    import os
    import signal

    sink = sink_of(broker)
    sink.deliver(batch_of(1, numbered(1)))
    assert broker._process is not None
    os.kill(broker._process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(SinkUnavailable, match="did not acknowledge 3 messages"):
            sink.deliver(batch_of(2, numbered(2), seconds=0.3))
    finally:
        os.kill(broker._process.pid, signal.SIGCONT)
    sink.deliver(batch_of(2, numbered(2)))


def test_the_connection_of_the_next_active_ends_that_of_the_former(broker: Mosquitto) -> None:
    former, following = sink_of(broker), sink_of(broker)
    former.deliver(batch_of(1, numbered(1)))
    following.deliver(batch_of(2, numbered(2)))
    assert former._flight is not None
    wait_until(lambda: former._flight.connection.is_lost)


def test_a_broker_killed_during_a_delivery_loses_no_row(broker: Mosquitto) -> None:
    """The delivery after the kill counts, once the broker has stored it."""
    chance, found = random.Random(1), set[int]()
    with broker.client("reader", clean=False) as reader:
        subscribed = threading.Event()
        reader.on_subscribe = lambda *_: subscribed.set()
        reader.subscribe("rows", 1)
        assert subscribed.wait(30)
    broker.store(b"reader")
    sink = sink_of(broker, timeout="60s")
    for number in range(1, 4):
        batch = batch_of(number, numbered(number, 50), seconds=600)
        listener = Listener(broker, kill_after=chance.randrange(1, 40))
        try:
            sink.deliver(batch)
        except SinkUnavailable:
            pass
        listener.wait_killed()
        listener.close()
        broker.start()
        sink.deliver(batch)
        broker.store(b'"id": %d' % (number * 1000 + 49))
    sink.close()
    expected = {number * 1000 + row for number in range(1, 4) for row in range(50)}
    with broker.client(
        "reader", clean=False, on_message=lambda one: found.add(json.loads(one.payload)["id"])
    ):
        wait_until(lambda: found >= expected)
    assert found == expected


@pytest.mark.parametrize("wrong", [{"topic": ""}, {"topic": "a/#"}, {"in_flight": 0}])
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MqttSinkOptions.model_validate({"host": "h"} | wrong)


def test_a_sink_without_a_topic_is_refused() -> None:
    sink = MqttSink(MqttSinkOptions(host="h"), SinkPlace("g", "q", "s", Aside()))
    with pytest.raises(SinkRefused, match="set topic, or map a column"):
        sink.prepare(SCHEMA)
