"""The sink kind ``redis`` with a real server: each row is in the stream exactly once."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ha_engine.connectors.redis import sink as module
from ha_engine.connectors.redis.sink import RedisSink
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import SinkPlace
from ha_engine.testing import SinkContract
from ha_engine.testing.sink_contract import SCHEMA
from tests.connectors.deliveries import batch_of, deliver_at_once, deliver_with_kills, rows
from tests.connectors.proxy import Proxy
from tests.connectors.redis_broker import RedisBroker, running_broker
from tests.connectors.server import free_port
from tests.connectors.settings import OfSetting
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = needs("redis-server")


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisBroker]:
    with running_broker() as broker:
        yield broker


class Setting:
    """A stream of a server, and sinks that deliver to it."""

    def __init__(self, broker: RedisBroker) -> None:
        self.broker = broker
        self.client = broker.client()
        self.name = f"s{random.randrange(1 << 40)}"

    def options(self, **options: Any) -> dict[str, Any]:
        written = {"host": "127.0.0.1", "port": self.broker.port, "stream": self.name}
        return {"timeout": "60s"} | written | options

    def made(self, *attributes: str, sink: str = "sink", **options: Any) -> RedisSink:
        place = SinkPlace("group", "query", sink, lambda *_: None, frozenset(attributes))
        return RedisSink(RedisSink.Options.model_validate(self.options(**options)), place)

    def found(self) -> list[bytes]:
        client = self.broker.client()
        return [fields[b"value"] for _, fields in client.xrange(self.name)]


@pytest.fixture
def setting(shared: RedisBroker) -> Setting:
    return Setting(shared)


@pytest.fixture
def own() -> Iterator[Setting]:
    """A setting whose server the test may kill."""
    with running_broker() as broker:
        yield Setting(broker)


class TestContract(OfSetting, SinkContract):
    kind = RedisSink

    def delivered(self) -> list[dict[str, Any]]:
        return [json.loads(value) for value in self.setting.found()]


def test_entries_have_their_ids_and_fields(setting: Setting) -> None:
    sink = setting.made("header.origin", value_field="body")
    sink.prepare(SCHEMA)
    sink.deliver(batch_of(7, rows(7, 2), **{"header.origin": ["JFK", None]}))
    sink.close()
    found = setting.client.xrange(setting.name)
    assert [id for id, _ in found] == [b"7-0", b"7-1"]
    assert found[0][1][b"body"] == b"7/0"
    assert found[0][1][b"origin"] == b"JFK"
    assert b"origin" not in found[1][1]
    with pytest.raises(SinkRefused, match="field body, which has another use"):
        setting.made("header.body", value_field="body").prepare(SCHEMA)


def test_entry_of_ten_megabytes_is_delivered(setting: Setting) -> None:
    sink = setting.made()
    sink.deliver(batch_of(1, [b"x" * 10_000_000, b"y"]))
    sink.close()
    assert [len(value) for value in setting.found()] == [10_000_000, 1]


def test_stream_is_trimmed_and_still_knows_its_end(setting: Setting) -> None:
    sink = setting.made(max_length=1)
    for number in (1, 2):
        sink.deliver(batch_of(number, rows(number, 500)))
    sink.deliver(batch_of(2, rows(2, 500)))
    assert setting.client.xlen(setting.name) < 1000
    setting.client.xtrim(setting.name, maxlen=0, approximate=False)
    setting.made().deliver(batch_of(2, rows(2, 500)))
    assert setting.found() == []
    with pytest.raises(SinkRefused, match="is empty after batch 2"):
        setting.made().deliver(batch_of(1, rows(1, 500)))
    sink.deliver(batch_of(3, rows(3, 1)))
    sink.close()
    assert setting.found() == rows(3, 1)


# -- exactly once ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1_500, 4_000, 9_000])
def test_frozen_active_writes_nothing_after_the_next_one(
    setting: Setting, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW_ENTRIES", 7)
    proxy = Proxy(setting.broker.port)
    zombie = setting.made(port=proxy.port, timeout="60s")
    zombie.deliver(batch_of(1, rows(1, 3)))
    proxy.freeze_after(size)
    errors = list[BaseException]()

    def deliver() -> None:
        try:
            zombie.deliver(batch_of(2, rows(2, 90)))
        except (SinkRefused, SinkUnavailable) as error:
            errors.append(error)

    frozen = threading.Thread(target=deliver)
    frozen.start()
    wait_until(lambda: proxy.is_frozen)
    other = setting.made()
    other.deliver(batch_of(2, rows(2, 90)))
    other.deliver(batch_of(3, rows(3, 2)))
    proxy.thaw()
    frozen.join()
    other.deliver(batch_of(4, rows(4, 2)))
    other.close()
    zombie.close()
    proxy.close()
    assert setting.found() == rows(1, 3) + rows(2, 90) + rows(3, 2) + rows(4, 2)
    assert len(errors) == 1
    assert "delivers batch 2" in str(errors[0])


def test_two_actives_at_once_deliver_each_row_once(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW_ENTRIES", 3)

    wanted = deliver_at_once([setting.made(), setting.made()])
    assert setting.found() == wanted


@pytest.mark.parametrize("seed", range(3))
def test_random_kills_deliver_each_row_once(
    own: Setting, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers and actives end at random moments, and every batch is repeated at random."""
    monkeypatch.setattr(module, "WINDOW_ENTRIES", 2)
    wanted = deliver_with_kills(own.made, own.broker, seed, 200)
    assert own.found() == wanted


def test_other_ends_of_the_stream_are_refused(setting: Setting) -> None:
    def refusal(number: int, values: list[bytes], sink: str = "sink") -> str:
        one = setting.made(sink=sink)
        with pytest.raises(SinkRefused) as refused:
            one.deliver(batch_of(number, values, sink=sink))
        return str(refused.value)

    setting.made().deliver(batch_of(5, rows(5, 3)))
    assert "has batch 5 of sink group/query/sink already" in refusal(1, rows(1, 3))
    assert "has other rows of batch 5" in refusal(5, rows(6, 3))
    assert "comes from group/query/sink, but sink group/query/other" in refusal(
        6, rows(1, 1), sink="other"
    )
    setting.client.xdel(setting.name, "5-2")
    setting.client.execute_command("XSETID", setting.name, "5-1")
    assert "ends with row 2 of 3 of batch 5" in refusal(6, rows(6, 1))
    setting.client.xadd(setting.name, {"value": "foreign"}, id="5-9")
    assert "comes from another writer" in refusal(6, rows(6, 1))


# -- failures --------------------------------------------------------------------------------------


def test_missing_replica_is_unavailable_and_the_rows_are_there_once(setting: Setting) -> None:
    sink = setting.made(replicas=1, timeout="400ms")
    for _ in range(2):
        with pytest.raises(SinkUnavailable, match="0 of 1 replicas have batch 1"):
            sink.deliver(batch_of(1, rows(1, 3)))
    assert setting.found() == rows(1, 3)


def test_delivery_waits_for_a_replica(own: Setting) -> None:
    with running_broker("--replicaof", f"127.0.0.1 {own.broker.port}") as replica:
        sink = own.made(replicas=1)
        number = iter(range(1, 1000))

        def deliver() -> bool:
            try:
                one = next(number)
                sink.deliver(batch_of(one, rows(one, 3)))
            except SinkUnavailable:
                return False
            return True

        wait_until(deliver)
        copy = [fields[b"value"] for _, fields in replica.client().xrange(own.name)]
        assert copy == own.found()
        sink.close()


def test_full_server_is_unavailable(own: Setting) -> None:
    sink = own.made()
    own.client.config_set("maxmemory", 1)
    with pytest.raises(SinkUnavailable, match="maxmemory"):
        sink.deliver(batch_of(1, rows(1, 3)))
    own.client.config_set("maxmemory", 0)
    sink.deliver(batch_of(1, rows(1, 3)))
    sink.close()
    assert own.found() == rows(1, 3)


def test_server_that_is_down_is_unavailable(setting: Setting) -> None:
    sink = setting.made(port=free_port())
    for call in (sink.check, lambda: sink.deliver(batch_of(1, rows(1, 1)))):
        with pytest.raises(SinkUnavailable, match="is not available"):
            call()


def test_refused_credentials_and_wrong_keys(setting: Setting) -> None:
    sink = setting.made(user="nobody", password="hunter2")
    with pytest.raises(SinkRefused, match="refuses the credentials") as refused:
        sink.deliver(batch_of(1, rows(1, 1)))
    assert "hunter2" not in repr(refused.value) + repr(refused.value.__cause__)
    setting.client.set(setting.name, "text")
    with pytest.raises(SinkRefused, match="is no stream"):
        setting.made().check()
