"""The sink kind ``nats`` with a real server: each row is in the stream exactly once."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.connectors.nats import sink as module
from ha_engine.connectors.nats.sink import NatsSink
from ha_engine.connectors.nats.subjects import is_covered
from ha_engine.connectors.row_label import NAME
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import OutputBatch, SinkPlace
from ha_engine.testing import SinkContract
from ha_engine.testing.sink_contract import SCHEMA, refusal_of
from tests.connectors.deliveries import batch_of, deliver_at_once, deliver_with_kills, rows
from tests.connectors.nats_broker import NatsBroker, NatsClient, running_broker
from tests.connectors.proxy import Proxy
from tests.connectors.server import free_port
from tests.connectors.settings import OfSetting
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = needs("nats-server")

Shared = tuple[NatsBroker, NatsClient]


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with running_broker() as broker:
        client = NatsClient(broker.url)
        yield broker, client
        client.close()


class Setting:
    """A stream of a server, and sinks that deliver to it."""

    def __init__(self, broker: NatsBroker, client: NatsClient, **config: Any) -> None:
        self.broker, self.client = broker, client
        self.name = f"S{random.randrange(1 << 40)}"
        client.create(self.name, f"{self.name}.>", **config)
        self.aside: list[tuple[int, str, list[Any]]] = []

    def options(self, **options: Any) -> dict[str, Any]:
        written = {"servers": [self.broker.url], "stream": self.name, "subject": f"{self.name}.a"}
        return {"timeout": "60s"} | written | options

    def made(self, *attributes: str, sink: str = "sink", **options: Any) -> NatsSink:
        def put_aside(batch: OutputBatch, reason: str, rows: pa.Table) -> None:
            self.aside.append((batch.number, reason, rows.to_pylist()))

        place = SinkPlace("group", "query", sink, put_aside, frozenset(attributes))
        return NatsSink(NatsSink.Options.model_validate(self.options(**options)), place)

    def found(self) -> list[bytes]:
        return [one.data for one in self.client.stored(self.name)]


@pytest.fixture
def setting(shared: Shared) -> Setting:
    return Setting(*shared)


@pytest.fixture
def own() -> Iterator[Setting]:
    """A setting whose server the test may kill."""
    with running_broker() as broker:
        client = NatsClient(broker.url)
        yield Setting(broker, client)
        client.close()


@pytest.mark.parametrize(
    ("pattern", "covers"),
    [
        ("orders.new", True),
        ("orders.*", True),
        ("*.new", True),
        ("orders.>", True),
        (">", True),
        ("orders", False),
        ("orders.new.>", False),
        ("orders.*.*", False),
    ],
)
def test_subject_is_covered_by_the_patterns_that_match_it(pattern: str, covers: bool) -> None:
    assert is_covered("orders.new", [pattern]) is covers


class TestContract(OfSetting, SinkContract):
    kind = NatsSink

    def delivered(self) -> list[dict[str, Any]]:
        return [json.loads(value) for value in self.setting.found()]


class TestContractOfSharedStream(TestContract):
    def options(self) -> dict[str, Any]:
        return self.setting.options(exclusive=False)


# -- messages --------------------------------------------------------------------------------------


def test_messages_have_their_subject_and_headers(setting: Setting) -> None:
    sink = setting.made("subject", "header.Origin")
    sink.prepare(SCHEMA)
    subjects = [f"{setting.name}.x", None, "a b", f"{setting.name}.y", f"{setting.name}.z"]
    origins = ["JFK", None, "JFK", "line\nbreak", "é"]
    attributes = {"subject": subjects, "header.Origin": origins}
    sink.deliver(batch_of(1, rows(1, 5), **attributes))
    sink.deliver(batch_of(1, rows(1, 5), **attributes))
    sink.close()
    stored = setting.client.stored(setting.name)
    assert [one.data for one in stored] == [b"1/0", b"1/1", b"1/4"]
    assert [one.subject.split(".")[1] for one in stored] == ["x", "a", "z"]
    assert [one.headers.get("Origin") for one in stored] == ["JFK", None, "é"]
    assert [row for _, _, row in setting.aside[:2]] == [[{"id": 2}], [{"id": 3}]]
    assert "not a subject" in setting.aside[0][1]
    assert "line break" in setting.aside[1][1]


def test_message_of_ten_megabytes_is_delivered_and_a_too_large_one_refused(
    setting: Setting,
) -> None:
    sink = setting.made()
    sink.deliver(batch_of(1, [b"x" * 10_000_000]))
    assert [len(value) for value in setting.found()] == [10_000_000]
    with pytest.raises(SinkRefused, match=r"row 0 of batch 2 .* raise their max_payload"):
        sink.deliver(batch_of(2, [b"x" * 17_000_000]))
    sink.close()


# -- exactly once ----------------------------------------------------------------------------------


def test_next_active_continues_within_a_batch(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW_MESSAGES", 3)
    proxy = Proxy(setting.broker.port)
    first = setting.made(servers=[f"nats://127.0.0.1:{proxy.port}"])
    first.deliver(batch_of(1, rows(1, 4)))
    proxy.freeze_after(2_000)
    with pytest.raises(SinkUnavailable):
        first.deliver(batch_of(2, rows(2, 40), seconds=2))
    proxy.close()
    assert 4 < setting.client.state(setting.name).messages < 44
    other = setting.made()
    other.deliver(batch_of(2, rows(2, 40)))
    other.close()
    assert setting.found() == rows(1, 4) + rows(2, 40)


@pytest.mark.parametrize("size", [1_500, 4_000, 9_000])
def test_frozen_active_writes_nothing_after_the_next_one(setting: Setting, size: int) -> None:
    proxy = Proxy(setting.broker.port)
    zombie = setting.made(servers=[f"nats://127.0.0.1:{proxy.port}"], timeout="60s")
    zombie.deliver(batch_of(1, rows(1, 3)))
    proxy.freeze_after(size)
    errors = list[BaseException]()

    def deliver() -> None:
        try:
            zombie.deliver(batch_of(2, rows(2, 50)))
        except (SinkRefused, SinkUnavailable) as error:
            errors.append(error)

    frozen = threading.Thread(target=deliver)
    frozen.start()
    wait_until(lambda: proxy.is_frozen)
    other = setting.made()
    other.deliver(batch_of(2, rows(2, 50)))
    other.deliver(batch_of(3, rows(3, 2)))
    proxy.thaw()
    frozen.join()
    other.deliver(batch_of(4, rows(4, 2)))
    other.close()
    zombie.close()
    proxy.close()
    assert setting.found() == rows(1, 3) + rows(2, 50) + rows(3, 2) + rows(4, 2)
    # The server knows the ids of its messages, and confirms those that the next active stored.
    assert all("delivers batch 2" in str(error) for error in errors)


def test_two_actives_at_once_deliver_each_row_once(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW_MESSAGES", 7)

    wanted = deliver_at_once([setting.made(), setting.made()])
    assert setting.found() == wanted


@pytest.mark.parametrize("seed", range(3))
def test_random_kills_deliver_each_row_once(
    own: Setting, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers and actives end at random moments, and every batch is repeated at random."""
    monkeypatch.setattr(module, "WINDOW_MESSAGES", 5)
    wanted = deliver_with_kills(own.made, own.broker, seed, 60)
    assert own.found() == wanted


def test_purged_stream_continues(setting: Setting) -> None:
    sink = setting.made()
    sink.deliver(batch_of(1, rows(1, 3)))
    setting.client.call(lambda _, js: js.purge_stream(setting.name))
    for one in (sink, setting.made()):
        number = 2 if one is sink else 3
        one.deliver(batch_of(number, rows(number, 2)))
        one.close()
    assert setting.found() == rows(2, 2) + rows(3, 2)


def test_other_ends_of_the_stream_are_refused(setting: Setting) -> None:
    def refusal(number: int, values: list[bytes], sink: str = "sink") -> str:
        one = setting.made(sink=sink)
        with pytest.raises(SinkRefused) as refused:
            one.deliver(batch_of(number, values, sink=sink))
        one.close()
        return str(refused.value)

    setting.made().deliver(batch_of(5, rows(5, 3)))
    assert "has batch 5 of sink group/query/sink already" in refusal(1, rows(1, 3))
    assert "has other rows of batch 5" in refusal(5, rows(6, 3))
    assert "comes from group/query/sink, but sink group/query/other" in refusal(
        1, rows(1, 1), sink="other"
    )
    last = setting.client.stored(setting.name)[-1].headers[NAME]
    partial = last.replace("/5/", "/6/").removesuffix("/2/3") + "/1/3"
    setting.client.put(f"{setting.name}.a", b"6/1", **{NAME: partial})
    assert "ends with row 2 of 3 of batch 6" in refusal(7, rows(7, 1))
    setting.client.put(f"{setting.name}.a", b"foreign")
    assert "comes from another writer" in refusal(7, rows(7, 1))
    end = setting.client.state(setting.name).last_seq
    setting.client.call(lambda _, js: js.delete_msg(setting.name, end))
    assert f"at sequence {end}, was deleted" in refusal(7, rows(7, 1))


def test_active_notices_that_the_stream_lost_its_batches(setting: Setting) -> None:
    sink = setting.made()
    sink.deliver(batch_of(1, rows(1, 3)))
    setting.client.call(lambda _, js: js.delete_stream(setting.name))
    setting.client.create(setting.name, f"{setting.name}.>")
    with pytest.raises(SinkRefused, match=r"ends at sequence 0, but had 3: .*restart the node"):
        sink.deliver(batch_of(2, rows(2, 3)))
    setting.made().deliver(batch_of(2, rows(2, 3)))
    assert setting.found() == rows(2, 3)


def test_other_writer_of_an_exclusive_stream_is_noticed(setting: Setting) -> None:
    sink = setting.made()
    sink.deliver(batch_of(1, rows(1, 2)))
    setting.client.put(f"{setting.name}.b", b"foreign")
    with pytest.raises(
        SinkRefused, match=r"at sequence 3, comes from another writer.*stream of its own"
    ):
        sink.deliver(batch_of(2, rows(2, 2)))
    sink.close()
    # The second row must not take the place after the foreign message, where it would fit.
    assert setting.found() == [*rows(1, 2), b"foreign"]


def test_shared_stream_ignores_repetitions_in_the_duplicate_window(setting: Setting) -> None:
    first, second = setting.made(exclusive=False), setting.made(exclusive=False)
    first.deliver(batch_of(1, rows(1, 3)))
    setting.client.put(f"{setting.name}.b", b"foreign")
    second.deliver(batch_of(1, rows(1, 3)))
    second.deliver(batch_of(2, rows(2, 1)))
    first.close()
    second.close()
    assert setting.found() == [*rows(1, 3), b"foreign", *rows(2, 1)]


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [True, False])
def test_what_the_stream_does_not_take_is_refused(setting: Setting, exclusive: bool) -> None:
    for options, part in (
        ({"stream": "NONE"}, "does not exist"),
        ({"subject": "elsewhere"}, "does not take the subject elsewhere"),
    ):
        sink = setting.made(exclusive=exclusive, **options)
        calls: list[Callable[[], None]] = [
            sink.check,
            lambda sink=sink: sink.deliver(batch_of(1, rows(1, 1))),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(SinkRefused, match=part):
                call()


def test_exclusive_stream_must_keep_its_messages(shared: Shared) -> None:
    setting = Setting(*shared, retention="workqueue")
    with pytest.raises(SinkRefused, match="retention workqueue"):
        setting.made().check()
    setting.made(exclusive=False).check()


def test_full_stream_is_unavailable(shared: Shared) -> None:
    setting = Setting(*shared, max_msgs=3, discard="new")
    sink = setting.made()
    for exclusive in (True, False):
        sink = setting.made(exclusive=exclusive)
        with pytest.raises(SinkUnavailable, match="maximum messages exceeded"):
            sink.deliver(batch_of(1, rows(1, 5)))
    setting.client.call(lambda _, js: js.purge_stream(setting.name, keep=1))
    setting.made().deliver(batch_of(1, rows(1, 5)))
    assert setting.found() == rows(1, 5)[2:]


def test_server_that_is_down_is_unavailable(setting: Setting) -> None:
    began = time.monotonic()
    sink = setting.made(servers=[f"nats://127.0.0.1:{free_port()}"])
    with pytest.raises(SinkUnavailable, match="is not available"):
        sink.deliver(batch_of(1, rows(1, 1)))
    assert time.monotonic() - began < 20


def test_refused_credentials_show_no_secret() -> None:
    with running_broker("authorization { user: writer, password: swordfish }") as broker:
        client = NatsClient(broker.url, user="writer", password="swordfish")
        setting = Setting(broker, client)
        sink = setting.made(user="writer", password="hunter2")
        with pytest.raises(SinkRefused, match="refuses the credentials") as refused:
            sink.deliver(batch_of(1, rows(1, 1)))
        assert "hunter2" not in repr(refused.value) + repr(refused.value.__cause__)
        client.close()


def test_sink_needs_a_subject_and_no_reserved_header(setting: Setting) -> None:
    with pytest.raises(SinkRefused, match="has no subject"):
        setting.made(subject=None).prepare(SCHEMA)
    setting.made("subject", subject=None).prepare(SCHEMA)
    with pytest.raises(SinkRefused, match="Nats-Rollup, whose name is reserved"):
        setting.made("header.Nats-Rollup").prepare(SCHEMA)
    assert "orders.new" in refusal_of(NatsSink.Options, setting.options(subject="a.*"))
