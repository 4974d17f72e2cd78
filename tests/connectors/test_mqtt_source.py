"""The source kind ``mqtt`` with a real mosquitto."""

from __future__ import annotations

import contextlib
import json
import random
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ha_engine.connectors.mqtt.sink import MqttSink, MqttSinkOptions
from ha_engine.connectors.mqtt.source import MqttSource, MqttSourceOptions, Reached
from ha_engine.connectors.streams import BATCH_BYTES_MAX
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Messages, SinkPlace, SourceBatch, SourcePlace
from ha_engine.testing import QueueSourceContract
from ha_engine.testing.sink_contract import SCHEMA
from tests.connectors.deliveries import batch_of, numbered, rest, values
from tests.connectors.mqtt_broker import MqttBroker, running_broker, subscribe
from tests.connectors.proxy import Proxy
from tests.programs import needs
from tests.sync.authority import Authority
from tests.waiting import wait_until

pytestmark = [needs("mosquitto"), pytest.mark.rotates("file")]


@pytest.fixture(scope="module")
def shared() -> Iterator[MqttBroker]:
    with running_broker() as broker:
        yield broker


class Setting:
    """Topics of a broker, and sources that read them through one session."""

    def __init__(self, broker: MqttBroker) -> None:
        self.broker = broker
        self.name = f"t{random.randrange(1 << 40)}"
        self.client_id = f"{self.name}/stream/source"
        self.topic = f"{self.name}/a"

    @property
    def options(self) -> dict[str, Any]:
        written = {"topics": [f"{self.name}/#"], "timeout": "60s", "client_id": self.client_id}
        return self.broker.options | written

    def put(self, *values: bytes, **options: Any) -> None:
        self.broker.publish(*((self.topic, value) for value in values), **options)

    def made(self, *attributes: str, **options: Any) -> MqttSource:
        place = SourcePlace("group", "stream", "source", SCHEMA, frozenset(attributes))
        return MqttSource(MqttSourceOptions.model_validate(self.options | options), place)

    def opened(self, offset: str | None = None, *attributes: str, **options: Any) -> MqttSource:
        source = self.made(*attributes, **options)
        source.open(offset)
        return source

    def reading(self, *attributes: str, **options: Any) -> MqttSource:
        """A source whose session exists, and whose offset with the filters is committed."""
        source = self.opened(None, *attributes, **options)
        assert source.read(10, 1.0) is not None
        assert source.read(10, 0.0) is None
        return source

    def established(self, **options: Any) -> str:
        """The offset after the source's session exists."""
        source = self.opened(**options)
        batch = source.read(10, 1.0)
        assert batch is not None
        assert not batch.rows
        source.close()
        return batch.offset


@pytest.fixture
def setting(shared: MqttBroker) -> Setting:
    return Setting(shared)


@pytest.fixture
def own() -> Iterator[Setting]:
    """A setting whose broker the test may stop."""
    with running_broker() as broker:
        yield Setting(broker)


@pytest.fixture
def forgetful() -> Iterator[Setting]:
    """A setting whose broker forgets its sessions when it stops."""
    with running_broker(stores=False) as broker:
        yield Setting(broker)


class TestContract(QueueSourceContract):
    kind = MqttSource

    @pytest.fixture(autouse=True)
    def _use(self, setting: Setting) -> None:
        self.setting = setting
        setting.reading().close()

    def make_queue(self) -> None:
        """The fixture above has made the session."""

    def options(self) -> dict[str, Any]:
        return self.setting.options

    def put(self, rows: list[dict[str, Any]]) -> None:
        self.setting.put(*(json.dumps(row).encode() for row in rows))


def next_batch(source: MqttSource, rows_max: int = 1_000) -> SourceBatch:
    """The next batch that has rows or dead letters."""
    found = list[SourceBatch]()

    def read() -> bool:
        batch = source.read(rows_max, 0.2)
        if batch is not None and (batch.rows or batch.dead_letters):
            found.append(batch)
        return bool(found)

    wait_until(read)
    return found[0]


def require_rest(source: MqttSource, expected: list[bytes]) -> None:
    """Read ``expected`` and nothing else."""
    assert rest(source, len(expected)) == expected
    assert source.read(1_000, 0.1) is None


def require_gap(source: MqttSource) -> SourceBatch:
    """Read the dead letter about a lost session."""
    batch = next_batch(source)
    (letter,) = batch.dead_letters
    assert "after batch 1" in letter.place
    assert "may be missing" in letter.reason
    assert not batch.rows
    assert Reached.parse(batch.offset).filters is None
    return batch


# -- the session -----------------------------------------------------------------------------------


def test_the_next_active_takes_the_session_over(setting: Setting) -> None:
    former = setting.reading()
    setting.put(*numbered(*range(10)))
    batch = next_batch(former, 4)
    following = setting.opened(batch.offset)
    require_rest(following, numbered(*range(10)))
    with pytest.raises(SourceUnavailable, match=f"client with the id {setting.client_id}"):
        former.read(10, 0.1)
    setting.put(b"10")
    require_rest(following, [b"10"])
    following.close()


def test_the_session_outlives_a_restart_of_the_broker(own: Setting) -> None:
    offset = own.established()
    own.put(*numbered(*range(5)))
    own.broker.stop()
    own.broker.start()
    source = own.opened(offset)
    require_rest(source, numbered(*range(5)))
    source.close()


def test_a_restart_of_the_broker_in_mid_read_loses_nothing(own: Setting) -> None:
    source = own.reading()
    own.put(*numbered(*range(50)))
    offset = next_batch(source, 20).offset
    own.broker.stop()
    with pytest.raises(SourceUnavailable):
        wait_until(lambda: source.read(20, 0.1) is None and False)
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:\d+ is not available"):
        source.open(offset)
    own.broker.start()
    source.open(offset)
    require_rest(source, numbered(*range(50)))
    source.close()


def test_a_killed_broker_loses_nothing_that_it_has_stored(own: Setting) -> None:
    source = own.reading()
    own.put(*numbered(*range(10_000, 10_020)))
    own.broker.store(b"10019")
    offset = next_batch(source, 10).offset
    own.broker.kill()
    own.broker.start()
    source.open(offset)
    require_rest(source, numbered(*range(10_000, 10_020)))
    source.close()


def test_a_lost_session_is_a_dead_letter(forgetful: Setting) -> None:
    offset = forgetful.established()
    forgetful.put(b"0")
    forgetful.broker.stop()
    forgetful.broker.start()
    # Until the dead letter is committed, each active finds the gap.
    for _ in range(2):
        source = forgetful.opened(offset)
        batch = require_gap(source)
        source.close()
    source.open(batch.offset)
    after = source.read(10, 1.0)
    assert after is not None
    assert not after.rows
    assert not after.dead_letters
    forgetful.put(b"1", b"2")
    require_rest(source, [b"1", b"2"])
    source.close()


def test_the_read_after_a_gap_continues_with_a_new_session(forgetful: Setting) -> None:
    offset = forgetful.established()
    forgetful.broker.stop()
    forgetful.broker.start()
    source = forgetful.opened(offset)
    require_gap(source)
    again = source.read(10, 1.0)
    assert again is not None
    assert Reached.parse(again.offset).filters == (f"{forgetful.name}/#",)
    forgetful.put(b"0", b"1")
    require_rest(source, [b"0", b"1"])
    source.close()


def test_an_empty_session_that_a_lost_connection_left_is_a_gap(forgetful: Setting) -> None:
    """The broker restarts without the session. A node connects, and dies before CONNACK."""
    offset = forgetful.established()
    forgetful.broker.stop()
    forgetful.broker.start()
    with forgetful.broker.client(forgetful.client_id, clean=False):
        pass
    source = forgetful.opened(offset)
    letter = require_gap(source)
    source.open(letter.offset)
    again = source.read(10, 1.0)
    assert again is not None
    assert Reached.parse(again.offset).marked
    source.close()


def test_a_removed_mark_is_reported_and_loses_nothing(setting: Setting) -> None:
    """The connection ends between the answer about the mark and the new mark."""
    offset = setting.established()
    source = setting.made()
    session = source._connected()
    assert source._reached == Reached()
    source._reached = Reached.parse(offset)
    assert source._is_known(session)
    session.connection.close()
    setting.put(*numbered(1, 2))
    source.open(offset)
    require_gap(source)
    assert rest(source, 2) == [b"1", b"2"]
    source.close()


def test_a_session_without_a_mark_is_known_by_connack(setting: Setting) -> None:
    """A broker may forbid the topic of the mark."""
    offset = Reached.parse(setting.established())
    unmarked = Reached(offset.batch, offset.filters, offset.at).text
    setting.put(b"1")
    source = setting.opened(unmarked)
    batch = source.read(10, 1.0)
    assert batch is not None
    assert not batch.dead_letters
    require_rest(source, [b"1"])
    source.close()


def test_a_removed_topic_filter_is_unsubscribed(setting: Setting) -> None:
    old = f"old/{setting.name}"
    offset = setting.established(topics=[old, f"{setting.name}/#"])
    source = setting.opened(offset)
    assert source.read(10, 1.0) is not None
    setting.broker.publish((old, b"1"), (setting.topic, b"2"))
    require_rest(source, [b"2"])
    source.close()


def test_no_more_is_in_flight_than_the_options_allow(setting: Setting) -> None:
    source = setting.reading(receive_maximum=7)
    setting.put(*numbered(*range(20)))
    assert len(next_batch(source).rows) <= 7
    source.open(None)
    require_rest(source, numbered(*range(20)))
    source.close()


def test_a_shared_subscription_shares_the_messages(setting: Setting) -> None:
    shared, found = f"$share/{setting.name}/{setting.topic}", list[bytes]()
    source = setting.reading(topics=[shared])
    with setting.broker.client(on_message=lambda one: found.append(bytes(one.payload))) as other:
        subscribe(other, shared)
        setting.put(*numbered(*range(20)))

        def read() -> bool:
            found.extend(one or b"" for one in values(source.read(100, 0.1)))
            return len(found) >= 20

        wait_until(read)
    assert sorted(found) == sorted(numbered(*range(20)))
    source.close()


# -- messages --------------------------------------------------------------------------------------


def test_attributes_of_a_message(setting: Setting) -> None:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    names = ("topic", "retain", "qos", "dup", "content_type", "response_topic", "correlation_data")
    source = setting.reading(*names, "message_expiry", "header.unit", "header.none")
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("unit", "K"), ("other", "x")]
    properties.ContentType, properties.ResponseTopic = "application/json", "answers"
    properties.CorrelationData, properties.MessageExpiryInterval = b"\1\2", 60
    with setting.broker.client() as client:
        client.publish(setting.topic, b"1", 1, properties=properties).wait_for_publish(30)
        client.publish(f"{setting.name}/b", b"", 2).wait_for_publish(30)
    found = dict[str, list[Any]]()
    while len(found.get("topic", ())) < 2:
        batch = next_batch(source)
        assert isinstance(batch.rows, Messages)
        for name, some in batch.rows.attributes.items():
            found.setdefault(name, []).extend(some)
    expiry = found.pop("message_expiry")
    assert expiry[0] in range(1, 61)
    assert expiry[1] is None
    assert found == {
        "topic": [setting.topic, f"{setting.name}/b"],
        "retain": [False, False],
        "qos": [1, 1],
        "dup": [False, False],
        "content_type": ["application/json", None],
        "response_topic": ["answers", None],
        "correlation_data": [b"\1\2", None],
        "header.unit": ["K", None],
        "header.none": [None, None],
    }
    source.close()


def test_a_repeated_message_is_a_duplicate(setting: Setting) -> None:
    source = setting.reading("dup")
    setting.put(b"1")
    first = next_batch(source)
    source.open(first.offset)
    repeated = next_batch(source)
    assert isinstance(first.rows, Messages)
    assert isinstance(repeated.rows, Messages)
    assert first.rows.attributes["dup"] == [False]
    assert repeated.rows.attributes["dup"] == [True]
    source.close()


@pytest.mark.parametrize("retained", [True, False])
def test_retained_messages_come_once_or_not(setting: Setting, retained: bool) -> None:
    setting.put(b"1", retain=True)
    source = setting.opened(retained=retained)
    batch = source.read(10, 1.0)
    assert batch is not None
    setting.put(b"2")
    require_rest(source, [b"1", b"2"] if retained else [b"2"])
    source.open(batch.offset)
    setting.put(b"3")  # a retained message would come before it
    require_rest(source, [b"3"])
    source.close()


def test_a_message_of_10_mb_comes_alone(setting: Setting) -> None:
    source, large, half = setting.reading(), b"x" * 10_000_000, b"y" * 5_000_000
    setting.put(b"1", large, half, half, b"2")
    found = list[list[bytes | None]]()
    while sum(map(len, found)) < 5:
        found.append(values(next_batch(source)))
    assert [one for batch in found for one in batch] == [b"1", large, half, half, b"2"]
    for batch in found:
        assert len(batch) == 1 or sum(len(one or b"") for one in batch) <= BATCH_BYTES_MAX
    source.close()


def test_a_full_buffer_lets_the_broker_wait(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ha_engine.connectors.mqtt.source.BUFFER_BYTES", 100_000)
    source = setting.reading()
    sent = [b"%d" % row + b" " * 10_000 for row in range(100)]
    setting.put(*sent)
    assert source._session is not None
    wait_until(source._session._is_full)
    assert source._session._bytes < 200_000
    require_rest(source, sent)
    source.close()


def test_user_properties_count_as_buffered(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    monkeypatch.setattr("ha_engine.connectors.mqtt.source.BUFFER_BYTES", 100_000)
    source = setting.reading()
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("name", "x" * 60_000)]
    with setting.broker.client() as client:
        for _ in range(2):
            client.publish(setting.topic, b"", 1, properties=properties).wait_for_publish(30)
    assert source._session is not None
    wait_until(source._session._is_full)
    assert rest(source, 2) == [b"", b""]
    source.close()


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that the broker does not know."""
    return Authority(tmp_path_factory.mktemp("stranger"))


def encrypted(
    authority: Authority, settings: str = "", **options: bool
) -> contextlib.AbstractContextManager[MqttBroker]:
    files = authority.files("broker", san="IP:127.0.0.1")
    lines = f"certfile {files['certificate']}\nkeyfile {files['key']}\n{settings}"
    return running_broker(f"cafile {authority.certificate}\n{lines}", **options)


def client_files(authority: Authority, name: str) -> dict[str, str]:
    files = authority.files(name)
    return {"certificate_file": str(files["certificate"]), "key_file": str(files["key"])}


@needs("openssl")
def test_a_client_certificate_is_the_login(authority: Authority, stranger: Authority) -> None:
    settings = "require_certificate true\nuse_identity_as_username true"
    with encrypted(authority, settings, anonymous=False) as broker:
        setting = Setting(broker)
        tls = {"tls": True, "ca_file": str(authority.certificate)}
        files = client_files(authority, "floor")
        source = setting.opened(**tls, **files)
        assert source.read(10, 1.0) is not None
        context = ssl.create_default_context(cafile=tls["ca_file"])
        context.load_cert_chain(files["certificate_file"], files["key_file"])
        with broker.client(tls=context) as client:
            client.publish(setting.topic, b"x" * 1_000_000, 1).wait_for_publish(60)
        require_rest(source, [b"x" * 1_000_000])
        source.close()
        for wrong in ({}, client_files(stranger, "floor")):
            with pytest.raises(SourceRefused, match="cannot be reached by TLS"):
                setting.made(**tls, **wrong).check()


@needs("openssl")
def test_a_server_that_is_not_the_broker_is_refused(
    authority: Authority, stranger: Authority
) -> None:
    with encrypted(authority) as broker:
        tls = {"tls": True, "ca_file": str(authority.certificate)}
        for options in (
            {**tls, "host": "localhost"},  # the certificate is that of 127.0.0.1
            {"tls": True},  # the system does not know the authority
            {"tls": True, "ca_file": str(stranger.certificate)},
        ):
            with pytest.raises(SourceRefused, match="cannot be reached by TLS"):
                Setting(broker).made(**options).check()


@needs("openssl")
def test_tls_to_a_broker_without_tls_does_not_connect(
    setting: Setting, authority: Authority
) -> None:
    source = setting.made(tls=True, ca_file=str(authority.certificate), timeout="5s")
    with pytest.raises((SourceRefused, SourceUnavailable), match="MQTT broker"):
        source.check()


@needs("openssl")
def test_files_of_tls_that_cannot_be_used_are_named(setting: Setting, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    with pytest.raises(SourceRefused, match=r"wrong\.pem cannot be used for TLS"):
        setting.made(tls=True, ca_file=str(wrong)).check()
    with pytest.raises(SourceRefused, match=r"none\.pem cannot be read"):
        setting.made(tls=True, ca_file=str(tmp_path / "none.pem")).check()


# -- failures --------------------------------------------------------------------------------------


def test_a_broker_that_is_down_is_unavailable(tmp_path: Path) -> None:
    source = Setting(MqttBroker(tmp_path)).made()
    began = time.monotonic()
    for call in (lambda: source.open(None), source.check):
        with pytest.raises(SourceUnavailable, match="Connection refused"):
            call()
    assert time.monotonic() - began < 10
    with pytest.raises(SourceUnavailable):
        source.read(10, 0.1)
    source.close()


def test_a_broker_that_hangs_is_unavailable_after_the_timeout(own: Setting) -> None:
    source = own.made(timeout="100ms")
    with own.broker.frozen():
        with pytest.raises(SourceUnavailable, match=r"does not accept .* within 0\.1 s"):
            source.open(None)
        began = time.monotonic()
        source.close()
        assert time.monotonic() - began < 5  # closing waits for no answer


def test_a_broker_of_another_version_is_refused() -> None:
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"\x20\x02\x00\x01")  # the CONNACK of MQTT 3.1.1

        threading.Thread(target=answer, daemon=True).start()
        options = {"host": "127.0.0.1", "port": server.getsockname()[1], "topics": ["a"]}
        source = MqttSource(
            MqttSourceOptions.model_validate(options),
            SourcePlace("group", "stream", "source", SCHEMA),
        )
        with pytest.raises(SourceRefused, match="the broker must speak MQTT 5"):
            source.open(None)


def test_a_source_and_a_sink_of_the_same_names_have_their_own_connections(
    setting: Setting,
) -> None:
    source = setting.reading(client_id=None)
    place = SinkPlace("group", "stream", "source", lambda *_: None)
    written = setting.broker.options | {"topic": setting.topic}
    sink = MqttSink(MqttSinkOptions.model_validate(written), place)
    sink.deliver(batch_of(1, [b"1"]))
    require_rest(source, [b"1"])
    source.close()
    sink.close()


def test_a_silent_broker_is_noticed_by_keepalive(own: Setting) -> None:
    source = own.reading(keepalive="1s")
    with own.broker.frozen(), pytest.raises(SourceUnavailable, match="closed the connection"):
        wait_until(lambda: source.read(10, 0.1) is None and False)
    source.close()


def test_wrong_credentials_are_refused_and_not_shown(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch()
    with running_broker(f"password_file {passwords}", anonymous=False) as broker:
        source = Setting(broker).made(user="u", password="Sesame")
        for call in (lambda: source.open(None), source.check):
            with pytest.raises(SourceRefused, match="correct user and password") as refusal:
                call()
            assert "Sesame" not in str(refusal.value)


def test_check_takes_nothing_from_an_active(setting: Setting) -> None:
    source = setting.reading()
    setting.put(*numbered(0, 1, 2))
    setting.made().check()
    setting.put(*numbered(3, 4))
    require_rest(source, numbered(*range(5)))
    source.close()


def test_check_takes_nothing_from_a_shared_subscription(setting: Setting) -> None:
    shared, found = f"$share/{setting.name}/{setting.topic}", list[bytes]()
    source = setting.made(topics=[shared])
    with setting.broker.client(on_message=lambda one: found.append(bytes(one.payload))) as other:
        subscribe(other, shared)
        for number in range(10):
            source.check()
            setting.put(b"%d" % number)
        wait_until(lambda: len(found) == 10)


def test_close_is_quick_while_the_broker_hangs(own: Setting) -> None:
    source = own.opened()
    with own.broker.frozen():
        began = time.monotonic()
        source.close()
        assert time.monotonic() - began < 5  # the timeout of the connection is 60 s


def test_nothing_of_an_earlier_connection_comes_after_open(own: Setting) -> None:
    """A read fails on a connection that hangs, and the source connects again."""
    proxy = Proxy(own.broker.port)
    source = own.opened(port=proxy.port)
    assert source.read(10, 1.0) is not None
    own.put(*numbered(*range(10)))
    offset = next_batch(source, 5).offset
    proxy.freeze_after(0)
    source.read(5, 0.2)  # its acknowledgements do not reach the broker
    other = own.opened(offset)
    require_rest(other, numbered(*range(10)))
    proxy.thaw()
    own.put(b"10")
    require_rest(other, [b"10"])
    other.close()
    source.close()
    proxy.close()


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": []},
        {"topics": ["a/#/b"]},
        {"topics": ["a+"]},
        {"topics": ["a", "a"]},
        {"password": "Sesame"},
        {"ca_file": "ca.pem"},
        {"tls": True, "key_file": "key.pem"},
        {"session_expiry": "0s"},
        {"receive_maximum": 0},
    ],
)
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refusal:
        MqttSourceOptions.model_validate({"host": "h", "topics": ["a"]} | wrong)
    assert "Sesame" not in str(refusal.value)


def test_the_offset_of_another_kind_is_no_offset() -> None:
    for text in (None, "", "17", "[1]", '{"batch": null}', "a:b", '{"batch":1e999}', "[" * 60_000):
        assert Reached.parse(text) == Reached()
    reached = Reached(3, ("a/#",), "2026-01-01T00:00:00+00:00", marked=True)
    assert Reached.parse(reached.text) == reached
