"""The source kind ``redis`` with a real server: nothing is lost or read twice."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from ha_engine.connectors.redis.source import RedisSource
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Messages, SourcePlace
from ha_engine.testing import SourceContract
from ha_engine.testing.sink_contract import SCHEMA, refusal_of
from tests.connectors.deliveries import numbered, rest, values
from tests.connectors.redis_broker import RedisBroker, running_broker
from tests.connectors.server import free_port
from tests.connectors.settings import require_bounded_batches
from tests.programs import needs

pytestmark = needs("redis-server")


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisBroker]:
    with running_broker() as broker:
        yield broker


class Setting:
    """A stream of a server, and sources that read it."""

    def __init__(self, broker: RedisBroker) -> None:
        self.broker = broker
        self.client = broker.client()
        self.name = f"s{random.randrange(1 << 40)}"

    def put(self, *values: bytes, **fields: str) -> None:
        pipeline = self.client.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(self.name, {"value": value, **fields})
        pipeline.execute()

    def made(self, *attributes: str, **options: Any) -> RedisSource:
        written = {"host": "127.0.0.1", "port": self.broker.port, "stream": self.name}
        written |= {"timeout": "60s"}
        place = SourcePlace("group", "stream", "source", SCHEMA, frozenset(attributes))
        return RedisSource(RedisSource.Options.model_validate(written | options), place)

    def opened(self, offset: str | None = None, **options: Any) -> RedisSource:
        source = self.made(**options)
        source.open(offset)
        return source

    def offset_after(self, count: int) -> str:
        """Put ``count`` entries, read them and return the offset."""
        self.put(*numbered(*range(count)))
        source = self.opened()
        batch = source.read(count, 1)
        source.close()
        assert batch is not None
        return batch.offset


@pytest.fixture
def setting(shared: RedisBroker) -> Setting:
    return Setting(shared)


@pytest.fixture
def own() -> Iterator[Setting]:
    """A setting whose server the test may kill."""
    with running_broker() as broker:
        yield Setting(broker)


class TestContract(SourceContract):
    kind = RedisSource
    setting: Setting

    @pytest.fixture(autouse=True)
    def _use(self, setting: Setting) -> None:
        self.setting = setting

    def options(self) -> dict[str, Any]:
        port = self.setting.broker.port
        return {"host": "127.0.0.1", "port": port, "stream": self.setting.name}

    def put(self, rows: list[dict[str, Any]]) -> None:
        self.setting.put(*(json.dumps(row).encode() for row in rows))


# -- what a batch has ------------------------------------------------------------------------------


def test_entries_have_their_attributes_and_the_rest_is_the_backlog(setting: Setting) -> None:
    setting.put(b"1", b"2", b"3", origin="JFK")
    setting.client.xadd(setting.name, {"other": "x"})
    source = setting.made("id", "timestamp", "header.origin")
    source.open(None)
    batch, last = source.read(2, 1), source.read(2, 1)
    source.close()
    assert batch is not None
    assert isinstance(batch.rows, Messages)
    first = setting.client.xrange(setting.name)[0][0].decode()
    assert batch.rows.attributes["id"][0] == first
    assert batch.rows.attributes["header.origin"] == [b"JFK", b"JFK"]
    age = datetime.now(UTC) - batch.rows.attributes["timestamp"][0]
    assert -1 < age.total_seconds() < 60
    assert batch.backlog is not None
    assert batch.backlog.events == 2
    assert batch.place(0) == f"{setting.name}, id {first}"
    assert values(last) == [b"3", None]


def test_all_fields_make_an_object_without_a_value_field(setting: Setting) -> None:
    setting.client.xadd(setting.name, {"id": "1", "text": "é"})
    setting.client.xadd(setting.name, {"id": b"\xff"})
    source = setting.opened(value_field=None)
    batch = source.read(10, 1)
    source.close()
    assert batch is not None
    assert [json.loads(value or b"") for value in values(batch)] == [{"id": "1", "text": "é"}]
    assert [one.reason for one in batch.dead_letters] == ["a field is not UTF-8"]


def test_batch_is_limited_in_bytes_but_a_single_larger_entry_comes_alone(setting: Setting) -> None:
    require_bounded_batches(setting)


def test_start_new_is_journalled_before_the_first_entry(setting: Setting) -> None:
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
    setting.made().check()
    setting.put(b"1", b"2", b"3")
    source = setting.opened()
    assert values(source.read(1, 1)) == [b"1"]
    other = setting.made()
    other.check()
    assert values(other.peek(None, 2, 1)) == [b"1", b"2"]
    assert rest(source, 2) == [b"2", b"3"]
    source.close()


# -- losses ----------------------------------------------------------------------------------------


def test_deleted_entries_are_no_loss(setting: Setting) -> None:
    setting.put(*numbered(0, 1, 2, 3, 4))
    ids = [id for id, _ in setting.client.xrange(setting.name)]
    setting.client.xdel(setting.name, ids[1], ids[3])
    source = setting.opened()
    assert values(source.read(1, 1)) == [b"0"]
    assert rest(source, 2) == [b"2", b"4"]
    setting.client.xtrim(setting.name, maxlen=0, approximate=False)
    assert source.read(1, 0.05) is None
    setting.client.xdel(setting.name, ids[4])
    setting.put(b"5")
    assert rest(source, 1) == [b"5"]
    source.close()


def test_trimmed_entries_are_refused_or_skipped(setting: Setting) -> None:
    setting.put(*numbered(*range(10)))
    source = setting.opened()
    batch = source.read(3, 1)
    assert batch is not None
    setting.client.xtrim(setting.name, maxlen=3, approximate=False)
    for call in (lambda: source.read(10, 1), lambda: setting.opened(batch.offset)):
        with pytest.raises(SourceRefused, match=r"has lost 4 entries after id .* skip_lost"):
            call()
    other = setting.opened(batch.offset, skip_lost=True)
    after = other.read(10, 1)
    assert values(after) == numbered(7, 8, 9)
    assert after is not None
    assert ["lost 4 entries" in one.reason for one in after.dead_letters] == [True]
    assert other.read(10, 0.05) is None
    again = setting.opened(after.offset)
    assert again.read(10, 0.05) is None


def test_read_entries_may_be_trimmed(setting: Setting) -> None:
    offset = setting.offset_after(10)
    setting.client.xtrim(setting.name, maxlen=0, approximate=False)
    source = setting.opened(offset)
    assert source.read(10, 0.05) is None
    setting.put(b"next")
    assert rest(source, 1) == [b"next"]
    source.close()


def test_all_unread_entries_trimmed_is_a_loss(setting: Setting) -> None:
    offset = setting.offset_after(2)
    setting.put(b"unread")
    setting.client.xtrim(setting.name, maxlen=0, approximate=False)
    with pytest.raises(SourceRefused, match="has lost 1 entries"):
        setting.opened(offset)


def test_deleted_stream_is_refused_or_continued(setting: Setting) -> None:
    offset = setting.offset_after(3)
    setting.client.delete(setting.name)
    with pytest.raises(SourceRefused, match="was deleted, or restored"):
        setting.opened(offset)
    setting.put(*numbered(*range(20, 30)))
    with pytest.raises(SourceRefused, match="was created again, and has 10 entries"):
        setting.opened(offset)
    source = setting.opened(offset, skip_lost=True)
    assert rest(source, 10) == numbered(*range(20, 30))
    source.close()


def test_stream_that_lost_its_last_entries_is_refused(setting: Setting) -> None:
    """A replica that lacks the last entries becomes the master."""
    setting.put(*numbered(0, 1, 2))
    dump = setting.client.dump(setting.name)
    offset = setting.offset_after(6)
    setting.client.restore(setting.name, 0, dump, replace=True)
    with pytest.raises(SourceRefused, match=r"with 3 entries added, but the source has read"):
        setting.opened(offset)
    setting.put(*numbered(*range(10, 20)))
    with pytest.raises(SourceRefused, match="lacks the entry"):
        setting.opened(offset)


def test_offset_of_another_stream_is_refused(setting: Setting) -> None:
    offset = setting.offset_after(1)
    with pytest.raises(SourceRefused, match="belongs to stream other"):
        setting.opened(offset.replace(setting.name, "other"))
    with pytest.raises(SourceRefused, match="another kind of source"):
        setting.opened("17")


def test_key_that_is_no_stream_is_refused(setting: Setting) -> None:
    setting.client.set(setting.name, "text")
    with pytest.raises(SourceRefused, match="is no stream"):
        setting.opened()


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_source_continues_after_a_restart_of_the_server(own: Setting, end: str) -> None:
    own.put(*numbered(*range(10)))
    source = own.opened()
    batch = source.read(4, 1)
    assert batch is not None
    getattr(own.broker, end)()
    for call in (lambda: source.read(4, 1), lambda: source.open(batch.offset)):
        with pytest.raises(SourceUnavailable, match=r"is not (available|connected)"):
            call()
    own.broker.start()
    source.open(batch.offset)
    assert rest(source, 6) == numbered(*range(4, 10))
    source.close()


def test_random_restarts_and_trims_lose_and_repeat_nothing(own: Setting) -> None:
    chance = random.Random(7)
    found, put, offset = list[bytes | None](), 0, None
    source = own.opened()
    for _ in range(80):
        match chance.randrange(9):
            case 0:
                own.broker.kill()
                own.broker.start()
                own.client = own.broker.client()
            case 1 | 2 | 3:
                count = chance.randrange(1, 50)
                own.put(*numbered(*range(put, put + count)))
                put += count
            case 4:
                source.close()
                source = own.opened(offset)
            case 5 if put:
                unread = put - len(found)
                own.client.xtrim(own.name, maxlen=unread + chance.randrange(3), approximate=False)
            case _:
                try:
                    batch = source.read(chance.randrange(1, 40), 0.01)
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
    source = setting.made(port=port)
    with pytest.raises(SourceUnavailable, match=f"127.0.0.1:{port} is not available: .*refused"):
        source.open(None)
    assert time.monotonic() - began < 20


def test_refused_credentials_show_no_secret() -> None:
    users = ("default off", "poor on >swordfish ~* +ping", "reader on >swordfish ~* +@all")
    with running_broker(*(word for user in users for word in f"--user {user}".split())) as broker:
        setting = Setting(broker)
        setting.client = broker.client(username="reader", password="swordfish")
        setting.put(b"1")
        source = setting.opened(user="reader", password="swordfish")
        assert rest(source, 1) == [b"1"]
        source.close()
        for options in ({"user": "reader", "password": "hunter2"}, {}):
            with pytest.raises(SourceRefused, match="refuses the credentials") as refused:
                setting.opened(**options)
            assert "hunter2" not in repr(refused.value) + repr(refused.value.__cause__)
        with pytest.raises(SourceRefused, match=r"refuses this user: .*eval"):
            setting.opened(user="poor", password="swordfish")


@pytest.mark.parametrize(
    ("written", "part"),
    [
        ({"user": "u"}, "user needs password"),
        ({"ca_file": "/ca.pem"}, "need tls: true"),
        ({"port": 0}, "port"),
    ],
)
def test_wrong_options_are_refused(written: dict[str, Any], part: str) -> None:
    assert part in refusal_of(RedisSource.Options, {"host": "h", "stream": "s"} | written)
