"""The source kind ``mqtt`` with a real mosquitto."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ha_engine.connectors.mqtt.source import MqttSource, MqttSourceOptions, Reached
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Messages, SourceBatch, SourcePlace
from ha_engine.testing import QueueSourceContract
from ha_engine.testing.sink_contract import SCHEMA
from tests.connectors.mqtt_broker import Mosquitto
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = needs("mosquitto")


class TestContract(QueueSourceContract):
    kind = MqttSource

    def setup_method(self, method: Callable[..., None]) -> None:
        self._broker: Mosquitto | None = None
        super().setup_method(method)

    def teardown_method(self, method: Callable[..., None]) -> None:
        if self._broker is not None:
            self._broker.stop()
        super().teardown_method(method)

    @property
    def broker(self) -> Mosquitto:
        if self._broker is None:
            self._broker = Mosquitto(self.home / "broker")
            self._broker.start()
        return self._broker

    def options(self) -> dict[str, Any]:
        return self.broker.options | {"topics": ["rows/#"]}

    def put(self, rows: list[dict[str, Any]]) -> None:
        self.broker.publish(*((f"rows/{row['id']}", json.dumps(row).encode()) for row in rows))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path / "broker").running() as broker:
        yield broker


def source_of(broker: Mosquitto, *attributes: str, **options: Any) -> MqttSource:
    place = SourcePlace("group", "stream", "source", SCHEMA, frozenset(attributes))
    written = broker.options | {"topics": ["rows/#"]} | options
    return MqttSource(MqttSourceOptions.model_validate(written), place)


def opened(broker: Mosquitto, offset: str | None = None, **options: Any) -> MqttSource:
    source = source_of(broker, **options)
    source.open(offset)
    return source


def put(broker: Mosquitto, first: int, count: int) -> None:
    broker.publish(*(("rows/a", str(row).encode()) for row in range(first, first + count)))


def batch_of(source: MqttSource, rows_max: int = 1_000) -> SourceBatch:
    """The next batch that has rows or dead letters."""
    found = list[SourceBatch]()

    def read() -> bool:
        batch = source.read(rows_max, 0.2)
        if batch is not None and (batch.rows or batch.dead_letters):
            found.append(batch)
        return bool(found)

    wait_until(read)
    return found[0]


def values_of(batch: SourceBatch) -> list[bytes | None]:
    assert isinstance(batch.rows, Messages)
    return list(batch.rows.values)


def rest_of(source: MqttSource, least: int) -> list[int]:
    found = list[int]()
    while len(found) < least:
        found += [int(value or b"") for value in values_of(batch_of(source))]
    assert source.read(1_000, 0.2) is None
    return found


def established(broker: Mosquitto, **options: Any) -> str:
    """The offset after the source's session exists."""
    source = opened(broker, **options)
    batch = source.read(10, 1.0)
    assert batch is not None
    assert not batch.rows
    assert source.read(10, 0.1) is None
    source.close()
    return batch.offset


# -- the session -----------------------------------------------------------------------------------


def test_the_next_active_takes_the_session_over(broker: Mosquitto) -> None:
    former = opened(broker)
    former.read(10, 1.0)
    put(broker, 0, 10)
    batch = batch_of(former, 4)
    following = opened(broker, batch.offset)
    assert rest_of(following, 10) == list(range(10))
    with pytest.raises(SourceUnavailable, match="client with the id group/stream/source"):
        former.read(10, 0.1)
    put(broker, 10, 1)
    assert rest_of(following, 1) == [10]
    following.close()


def test_the_session_outlives_a_restart_of_the_broker(broker: Mosquitto) -> None:
    offset = established(broker)
    put(broker, 0, 5)
    broker.stop()
    broker.start()
    assert rest_of(opened(broker, offset), 5) == list(range(5))


def test_a_restart_of_the_broker_in_mid_read_loses_nothing(broker: Mosquitto) -> None:
    source = opened(broker)
    source.read(10, 1.0)
    put(broker, 0, 50)
    offset = batch_of(source, 20).offset
    broker.stop()
    with pytest.raises(SourceUnavailable):
        wait_until(lambda: source.read(20, 0.1) is None and False)
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:\d+ is not available"):
        source.open(offset)
    broker.start()
    source.open(offset)
    assert rest_of(source, 50) == list(range(50))
    source.close()


def test_a_killed_broker_loses_nothing_that_it_has_stored(broker: Mosquitto) -> None:
    source = opened(broker)
    source.read(10, 1.0)
    put(broker, 10_000, 20)
    broker.store(b"10019")
    offset = batch_of(source, 10).offset
    broker.kill()
    broker.start()
    source.open(offset)
    assert rest_of(source, 20) == list(range(10_000, 10_020))
    source.close()


def test_a_lost_session_is_a_dead_letter(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker", "persistence false")
    with broker.running():
        offset = established(broker)
        put(broker, 0, 5)
        broker.stop()
        broker.start()
        # Until the dead letter is committed, each active finds the gap.
        for _ in range(2):
            source = opened(broker, offset)
            batch = batch_of(source)
            (letter,) = batch.dead_letters
            assert "after batch 1" in letter.place
            assert "may be missing" in letter.reason
            source.close()
        assert values_of_nothing(batch)
        source.open(batch.offset)
        after = source.read(10, 1.0)
        assert after is not None
        assert not after.rows
        assert not after.dead_letters
        put(broker, 5, 2)
        assert rest_of(source, 2) == [5, 6]
        source.close()


def values_of_nothing(batch: SourceBatch) -> bool:
    return not batch.rows and Reached.parse(batch.offset).filters is None


def test_the_read_after_a_gap_continues_with_a_new_session(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker", "persistence false")
    with broker.running():
        offset = established(broker)
        broker.stop()
        broker.start()
        source = opened(broker, offset)
        assert batch_of(source).dead_letters
        again = source.read(10, 1.0)
        assert again is not None
        assert Reached.parse(again.offset).filters == ("rows/#",)
        put(broker, 0, 2)
        assert rest_of(source, 2) == [0, 1]
        source.close()


def test_a_removed_topic_filter_is_unsubscribed(broker: Mosquitto) -> None:
    offset = established(broker, topics=["old", "rows/#"])
    source = opened(broker, offset)
    assert source.read(10, 1.0) is not None
    broker.publish(("old", b"1"), ("rows/a", b"2"))
    assert rest_of(source, 1) == [2]
    source.close()


def test_no_more_is_in_flight_than_the_options_allow(broker: Mosquitto) -> None:
    source = opened(broker, receive_maximum=7)
    source.read(10, 1.0)
    put(broker, 0, 20)
    assert len(batch_of(source).rows) <= 7
    source.open(None)
    assert rest_of(source, 20) == list(range(20))
    source.close()


# -- messages --------------------------------------------------------------------------------------


def test_attributes_of_a_message(broker: Mosquitto) -> None:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    names = ("topic", "retain", "qos", "content_type", "response_topic", "correlation_data")
    source = source_of(broker, *names, "message_expiry", "header.unit", "header.none")
    source.open(None)
    source.read(10, 1.0)
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("unit", "K"), ("other", "x")]
    properties.ContentType, properties.ResponseTopic = "application/json", "answers"
    properties.CorrelationData, properties.MessageExpiryInterval = b"\1\2", 60
    with broker.client() as client:
        client.publish("rows/a", b"1", 1, properties=properties).wait_for_publish(30)
        client.publish("rows/b", b"", 2).wait_for_publish(30)
    found = dict[str, list[Any]]()
    while len(found.get("topic", ())) < 2:
        batch = batch_of(source)
        assert isinstance(batch.rows, Messages)
        for name, values in batch.rows.attributes.items():
            found.setdefault(name, []).extend(values)
    expiry = found.pop("message_expiry")
    assert expiry[0] in range(1, 61)
    assert expiry[1] is None
    assert found == {
        "topic": ["rows/a", "rows/b"],
        "retain": [False, False],
        "qos": [1, 1],
        "content_type": ["application/json", None],
        "response_topic": ["answers", None],
        "correlation_data": [b"\1\2", None],
        "header.unit": ["K", None],
        "header.none": [None, None],
    }
    source.close()


@pytest.mark.parametrize("retained", [True, False])
def test_retained_messages_come_once_or_not(broker: Mosquitto, retained: bool) -> None:
    broker.publish(("rows/a", b"1"), retain=True)
    source = opened(broker, retained=retained)
    source.read(10, 1.0)
    put(broker, 2, 1)
    assert rest_of(source, 2 if retained else 1) == ([1, 2] if retained else [2])
    source.open(None)
    assert source.read(10, 0.2) is not None  # the filters of the session
    assert source.read(10, 0.2) is None
    source.close()


def test_a_message_of_10_mb_comes_alone(broker: Mosquitto) -> None:
    source = opened(broker)
    source.read(10, 1.0)
    broker.publish(("rows/a", b"1"), ("rows/a", b"x" * 10_000_000), ("rows/a", b"2"))
    found = list[list[bytes | None]]()
    while sum(map(len, found)) < 3:
        found.append(values_of(batch_of(source)))
    sizes = [[len(value or b"") for value in batch] for batch in found]
    assert [10_000_000] in sizes
    source.close()


def test_a_full_buffer_lets_the_broker_wait(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ha_engine.connectors.mqtt.source.BUFFER_BYTES", 100_000)
    source = opened(broker)
    source.read(10, 1.0)
    broker.publish(*(("rows/a", b"%d" % row + b" " * 10_000) for row in range(500)))
    assert source._session is not None
    wait_until(source._session._is_full)
    assert source._session._bytes < 200_000
    assert rest_of(source, 500) == list(range(500))
    source.close()


# -- failures --------------------------------------------------------------------------------------


def test_a_broker_that_is_down_is_unavailable(tmp_path: Path) -> None:
    source = source_of(Mosquitto(tmp_path / "broker"))
    began = time.monotonic()
    for call in (lambda: source.open(None), source.check):
        with pytest.raises(SourceUnavailable, match="Connection refused"):
            call()
    assert time.monotonic() - began < 10
    with pytest.raises(SourceUnavailable):
        source.read(10, 0.1)
    source.close()


def test_a_broker_that_hangs_is_unavailable_after_the_timeout() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        options = {"host": "127.0.0.1", "port": server.getsockname()[1], "timeout": "100ms"}
        source = MqttSource(
            MqttSourceOptions.model_validate(options | {"topics": ["a"]}),
            SourcePlace("group", "stream", "source", SCHEMA),
        )
        with pytest.raises(SourceUnavailable, match=r"does not accept .* within 0\.1 s"):
            source.open(None)
        began = time.monotonic()
        source.close()
        assert time.monotonic() - began < 1


def test_wrong_credentials_are_refused_and_not_shown(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch()
    settings = f"password_file {passwords}"
    with Mosquitto(tmp_path / "broker", settings, anonymous=False).running() as broker:
        source = source_of(broker, user="u", password="Sesame")
        for call in (lambda: source.open(None), source.check):
            with pytest.raises(SourceRefused, match="correct user and password") as refusal:
                call()
            assert "Sesame" not in str(refusal.value)


def test_check_takes_nothing_from_an_active(broker: Mosquitto) -> None:
    source = opened(broker)
    source.read(10, 1.0)
    put(broker, 0, 3)
    source_of(broker).check()
    put(broker, 3, 2)
    assert rest_of(source, 5) == list(range(5))
    source.close()


def test_close_is_quick_while_the_broker_is_stopped(broker: Mosquitto) -> None:
    import os
    import signal

    source = opened(broker)
    assert broker._process is not None
    os.kill(broker._process.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        source.close()
        assert time.monotonic() - began < 5  # the timeout of the connection is 10 s
    finally:
        os.kill(broker._process.pid, signal.SIGCONT)


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": []},
        {"topics": ["a/#/b"]},
        {"topics": ["a+"]},
        {"topics": ["a", "a"]},
        {"password": "p"},
        {"ca_file": "ca.pem"},
        {"tls": True, "key_file": "key.pem"},
        {"session_expiry": "0s"},
        {"receive_maximum": 0},
    ],
)
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MqttSourceOptions.model_validate({"host": "h", "topics": ["a"]} | wrong)


def test_the_offset_of_another_kind_is_no_offset() -> None:
    for text in (None, "", "17", "[1]", '{"batch": null}', "a:b"):
        assert Reached.parse(text) == Reached()
    reached = Reached(3, ("a/#",), "2026-01-01T00:00:00+00:00")
    assert Reached.parse(reached.text) == reached
