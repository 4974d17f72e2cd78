"""The source kind ``nats`` with a real server: nothing is lost or read twice."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from ha_engine.connectors.nats.source import NatsSource
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Messages, SourcePlace
from ha_engine.testing import SourceContract
from ha_engine.testing.sink_contract import SCHEMA, refusal_of
from tests.connectors.deliveries import numbered, rest, values
from tests.connectors.nats_broker import NatsBroker, NatsClient, running_broker
from tests.connectors.server import free_port
from tests.connectors.settings import require_bounded_batches
from tests.programs import needs

pytestmark = needs("nats-server")


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[NatsBroker, NatsClient]]:
    with running_broker() as broker:
        client = NatsClient(broker.url)
        yield broker, client
        client.close()


class Setting:
    """A stream of a server, and sources that read it."""

    def __init__(self, broker: NatsBroker, client: NatsClient, **config: Any) -> None:
        self.broker, self.client = broker, client
        self.name = f"S{random.randrange(1 << 40)}"
        client.create(self.name, f"{self.name}.>", **config)

    def put(self, *values: bytes, subject: str = "a", **headers: str) -> None:
        self.client.put(f"{self.name}.{subject}", *values, **headers)

    def made(self, *attributes: str, **options: Any) -> NatsSource:
        written = {"servers": [self.broker.url], "stream": self.name, "timeout": "60s"} | options
        place = SourcePlace("group", "stream", "source", SCHEMA, frozenset(attributes))
        return NatsSource(NatsSource.Options.model_validate(written), place)

    def opened(self, offset: str | None = None, **options: Any) -> NatsSource:
        source = self.made(**options)
        source.open(offset)
        return source


@pytest.fixture
def setting(shared: tuple[NatsBroker, NatsClient]) -> Setting:
    return Setting(*shared)


@pytest.fixture
def own() -> Iterator[Setting]:
    """A setting whose server the test may kill."""
    with running_broker() as broker:
        client = NatsClient(broker.url)
        yield Setting(broker, client)
        client.close()


class TestContract(SourceContract):
    kind = NatsSource
    setting: Setting

    @pytest.fixture(autouse=True)
    def _use(self, setting: Setting) -> None:
        self.setting = setting

    def options(self) -> dict[str, Any]:
        return {"servers": [self.setting.broker.url], "stream": self.setting.name}

    def put(self, rows: list[dict[str, Any]]) -> None:
        self.setting.put(*(json.dumps(row).encode() for row in rows))


# -- what a batch has ------------------------------------------------------------------------------


def test_messages_have_their_attributes_and_the_rest_is_the_backlog(setting: Setting) -> None:
    setting.put(b"1", b"2", subject="new", Origin="JFK")
    setting.put(b"3", subject="old")
    source = setting.made("subject", "sequence", "timestamp", "header.Origin")
    source.open(None)
    batch = source.read(2, 1)
    source.close()
    assert batch is not None
    assert isinstance(batch.rows, Messages)
    assert batch.rows.attributes["subject"] == [f"{setting.name}.new"] * 2
    assert batch.rows.attributes["sequence"] == [1, 2]
    assert batch.rows.attributes["header.Origin"] == ["JFK", "JFK"]
    age = datetime.now(UTC) - batch.rows.attributes["timestamp"][0]
    assert 0 <= age.total_seconds() < 60
    assert batch.backlog is not None
    assert batch.backlog.events == 1
    assert batch.place(1) == f"{setting.name}, sequence 2"


def test_batch_is_limited_in_bytes_but_a_single_larger_message_comes_alone(
    setting: Setting,
) -> None:
    require_bounded_batches(setting)


def test_large_message_that_arrives_while_the_source_waits_is_read(setting: Setting) -> None:
    source = setting.opened()
    assert source.read(10, 0.1) is None
    setting.put(b"x" * 10_000_000)
    assert [len(one or b"") for one in rest(source, 1)] == [10_000_000]
    source.close()


def test_filter_chooses_subjects_and_the_offset_passes_the_others(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ha_engine.connectors.nats.source.MOVE_SECONDS", 0.0)
    setting.put(b"1", subject="a")
    setting.put(b"2", subject="b")
    setting.put(b"3", subject="a")
    setting.put(b"4", b"5", subject="b")
    source = setting.opened(subject=f"{setting.name}.a")
    assert values(source.read(10, 1)) == [b"1", b"3"]
    moved = source.read(10, 0.1)
    assert moved is not None
    assert not moved.rows
    setting.client.call(lambda _, js: js.purge_stream(setting.name))
    setting.put(b"6", subject="a")
    other = setting.opened(moved.offset, subject=f"{setting.name}.a")
    assert rest(other, 1) == [b"6"]
    assert rest(source, 1) == [b"6"]
    source.close()
    other.close()


def test_start_new_is_journalled_before_the_first_message(setting: Setting) -> None:
    setting.put(b"old")
    source = setting.opened(start="new")
    first = source.read(10, 0.1)
    source.close()
    assert first is not None
    assert not first.rows
    setting.put(b"new")
    other = setting.opened(first.offset, start="new")
    assert rest(other, 1) == [b"new"]
    other.close()


def test_peek_and_check_take_nothing(setting: Setting) -> None:
    setting.put(b"1", b"2", b"3")
    source = setting.opened()
    assert values(source.read(1, 1)) == [b"1"]
    other = setting.made()
    other.check()
    assert values(other.peek(None, 2, 1)) == [b"1", b"2"]
    assert rest(source, 2) == [b"2", b"3"]
    source.close()


# -- gaps ------------------------------------------------------------------------------------------


def test_deleted_messages_are_no_loss(setting: Setting) -> None:
    setting.put(*numbered(1, 2, 3, 4, 5))
    for sequence in (2, 4):
        setting.client.call(lambda _, js, n=sequence: js.delete_msg(setting.name, n))
    source = setting.opened()
    assert rest(source, 3) == numbered(1, 3, 5)
    source.close()


def test_messages_that_retention_removed_are_refused_or_skipped(setting: Setting) -> None:
    setting.put(*numbered(*range(10)))
    source = setting.opened()
    batch = source.read(3, 1)
    source.close()
    assert batch is not None
    setting.client.call(lambda _, js: js.purge_stream(setting.name, seq=8))
    with pytest.raises(SourceRefused, match=r"no longer has the sequences 4 to 7.*skip_lost"):
        setting.opened(batch.offset)
    other = setting.opened(batch.offset, skip_lost=True)
    after = other.read(10, 1)
    other.close()
    assert values(after) == numbered(7, 8, 9)
    assert after is not None
    assert [one.place for one in after.dead_letters] == [f"{setting.name}, sequences 4 to 7"]


def test_messages_that_are_removed_while_the_source_reads_are_refused(setting: Setting) -> None:
    setting.put(*numbered(*range(10)))
    source = setting.opened()
    assert values(source.read(3, 1)) == numbered(0, 1, 2)
    setting.client.call(lambda _, js: js.purge_stream(setting.name, seq=8))
    with pytest.raises(SourceRefused, match="sequences 4 to 7"):
        source.read(10, 1)
    source.close()


def test_messages_that_are_all_removed_while_the_source_waits_are_refused(
    setting: Setting,
) -> None:
    setting.put(*numbered(*range(10)))
    source = setting.opened(timeout="1s")
    assert values(source.read(3, 1)) == numbered(0, 1, 2)
    setting.client.call(lambda _, js: js.purge_stream(setting.name))
    with pytest.raises(SourceRefused, match="sequences 4 to 10"):
        source.read(10, 0.1)
    source.close()


def test_read_messages_may_be_removed(setting: Setting) -> None:
    setting.put(*numbered(*range(10)))
    source = setting.opened()
    assert len(rest(source, 10)) == 10
    setting.client.call(lambda _, js: js.purge_stream(setting.name))
    assert source.read(10, 0.1) is None
    setting.put(b"next")
    assert rest(source, 1) == [b"next"]
    source.close()


def test_stream_that_was_created_again_is_refused(setting: Setting) -> None:
    setting.put(b"1", b"2")
    source = setting.opened()
    batch = source.read(10, 1)
    source.close()
    assert batch is not None
    setting.client.call(lambda _, js: js.delete_stream(setting.name))
    setting.client.create(setting.name, f"{setting.name}.>")
    setting.put(b"1", b"2", b"3")
    with pytest.raises(SourceRefused, match="was created at"):
        setting.opened(batch.offset)


def test_stream_that_lost_its_end_is_refused(setting: Setting) -> None:
    setting.put(b"1", b"2")
    source = setting.opened()
    batch = source.read(10, 1)
    source.close()
    assert batch is not None
    offset = json.loads(batch.offset)
    beyond = json.dumps(offset | {"sequence": 7, "last": [7, 1]})
    with pytest.raises(SourceRefused, match="ends at sequence 2"):
        setting.opened(beyond)
    other = json.dumps(offset | {"last": [2, offset["last"][1] - 1]})
    with pytest.raises(SourceRefused, match="another message at sequence 2"):
        setting.opened(other)


def test_offset_of_another_stream_is_refused(setting: Setting) -> None:
    source = setting.opened(start="new")
    batch = source.read(10, 0.1)
    source.close()
    assert batch is not None
    with pytest.raises(SourceRefused, match="belongs to stream OTHER"):
        setting.opened(batch.offset.replace(setting.name, "OTHER"))
    with pytest.raises(SourceRefused, match="another kind of source"):
        setting.opened("17")


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_stream_that_deletes_what_is_read_is_refused(
    shared: tuple[NatsBroker, NatsClient], retention: str
) -> None:
    setting = Setting(*shared, retention=retention)
    with pytest.raises(SourceRefused, match=f"retention {retention}"):
        setting.opened()


# -- failures --------------------------------------------------------------------------------------


def test_consumer_that_is_gone_is_created_again(setting: Setting) -> None:
    setting.put(*numbered(0, 1, 2))
    source = setting.opened(timeout="500ms")
    assert values(source.read(2, 1)) == numbered(0, 1)

    async def delete(_: Any, js: Any) -> None:
        for one in await js.consumers_info(setting.name):
            await js.delete_consumer(setting.name, one.name)

    setting.client.call(delete)
    assert rest(source, 1) == numbered(2)
    source.close()


def test_messages_that_a_consumer_sent_into_the_void_are_read(setting: Setting) -> None:
    """Someone else takes messages from the consumer, as if they were lost on their way."""
    setting.put(*numbered(*range(9)))
    source = setting.opened()
    assert values(source.read(2, 1)) == numbered(0, 1)

    async def take(client: Any, js: Any) -> None:
        one = max(await js.consumers_info(setting.name), key=lambda one: one.created)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{setting.name}.{one.name}"
        answers = await client.subscribe(inbox := client.new_inbox())
        await client.publish(subject, b'{"batch": 3, "no_wait": true}', reply=inbox)
        for _ in range(3):
            await answers.next_msg(5)

    setting.client.call(take)
    assert rest(source, 7) == numbered(*range(2, 9))
    setting.put(*numbered(9, 10, 11))
    setting.client.call(take)  # the last messages, after which none comes that shows the gap
    assert rest(source, 3) == numbered(9, 10, 11)
    source.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_source_continues_after_a_restart_of_the_server(own: Setting, end: str) -> None:
    own.put(*numbered(*range(10)))
    source = own.opened()
    batch = source.read(4, 1)
    assert batch is not None
    getattr(own.broker, end)()
    # A request that was on its way when the server died waits for its whole timeout.
    for call in (lambda: source.read(4, 1), lambda: source.open(batch.offset)):
        with pytest.raises(SourceUnavailable, match=r"is not (available|connected)"):
            call()
    own.broker.start()
    source.open(batch.offset)
    assert rest(source, 6) == numbered(*range(4, 10))
    own.put(b"later")
    assert rest(source, 1) == [b"later"]
    source.close()


def test_random_restarts_lose_and_repeat_nothing(own: Setting) -> None:
    chance = random.Random(7)
    found, put, offset = list[bytes | None](), 0, None
    source = own.opened()
    for _ in range(60):
        match chance.randrange(8):
            case 0:
                own.broker.kill()
                own.broker.start()
            case 1 | 2 | 3:
                count = chance.randrange(1, 50)
                own.put(*numbered(*range(put, put + count)))
                put += count
            case 4:
                source.close()
                source = own.opened(offset)
            case _:
                try:
                    batch = source.read(chance.randrange(1, 40), 0.05)
                except SourceUnavailable:
                    source.open(offset)
                    continue
                if batch is not None:
                    found, offset = found + values(batch), batch.offset
    source.open(offset)
    found += rest(source, put - len(found)) if put > len(found) else []
    source.close()
    assert found == numbered(*range(put))


def test_server_that_is_down_is_unavailable(setting: Setting) -> None:
    port, began = free_port(), time.monotonic()
    source = setting.made(servers=[f"nats://127.0.0.1:{port}"])
    with pytest.raises(SourceUnavailable, match=f"127.0.0.1:{port} is not available: .*failed"):
        source.open(None)
    assert time.monotonic() - began < 20


def test_one_server_of_the_list_is_enough(setting: Setting) -> None:
    setting.put(b"1")
    servers = [f"nats://127.0.0.1:{free_port()}", setting.broker.url]
    for _ in range(4):
        source = setting.opened(servers=servers)
        assert rest(source, 1) == [b"1"]
        source.close()


@pytest.mark.parametrize("call", [lambda one: one.open(None), lambda one: one.check()])
def test_missing_stream_is_refused(setting: Setting, call: Callable[[NatsSource], None]) -> None:
    with pytest.raises(SourceRefused, match=r"stream NONE of NATS at .* does not exist"):
        call(setting.made(stream="NONE"))


def test_refused_credentials_show_no_secret() -> None:
    settings = (
        "authorization { users = [ {user: reader, password: swordfish},"
        ' {user: poor, password: swordfish, permissions: {publish: ["nothing"]}} ] }'
    )
    with running_broker(settings) as broker:
        client = NatsClient(broker.url, user="reader", password="swordfish")
        setting = Setting(broker, client)
        setting.put(b"1")
        source = setting.opened(user="reader", password="swordfish")
        assert rest(source, 1) == [b"1"]
        source.close()
        for user, password in (("reader", "hunter2"), ("nobody", "hunter2")):
            with pytest.raises(SourceRefused, match="refuses the credentials") as refused:
                setting.opened(user=user, password=password)
            assert "hunter2" not in repr(refused.value) + repr(refused.value.__cause__)
        with pytest.raises(SourceRefused, match=r"refuses this user: .*(?i:stream\.info)"):
            setting.opened(user="poor", password="swordfish", timeout="500ms")
        client.close()


@pytest.mark.parametrize(
    ("written", "part"),
    [
        ({"servers": ["nats://u:hunter2@host"]}, "user and password"),
        ({"servers": ["http://host"]}, "nats://host:4222"),
        ({"user": "u"}, "belong together"),
        ({"user": "u", "password": "hunter2", "token": "hunter2"}, "only one"),
        ({"subject": "a..b"}, "pattern of subjects"),
        ({"stream": "a.b"}, "stream"),
    ],
)
def test_wrong_options_are_refused(written: dict[str, Any], part: str) -> None:
    good = {"servers": ["nats://host:4222"], "stream": "S"}
    assert part in refusal_of(NatsSource.Options, good | written)
