"""The sink kind ``rabbitmq`` with a real broker: every row is there at least once."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from ha_engine.connectors.rabbitmq.sink import RabbitSink
from ha_engine.connectors.row_label import RowLabel
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import OutputBatch, SinkPlace
from ha_engine.testing import SinkContract
from ha_engine.testing.sink_contract import SCHEMA
from tests.connectors.deliveries import batch_of, deliver_at_once, deliver_with_kills, rows
from tests.connectors.rabbitmq_broker import RabbitBroker
from tests.connectors.server import free_port
from tests.connectors.settings import OfSetting
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [needs("rabbitmq-server"), pytest.mark.rotates("file")]

_names = (f"sink{number}" for number in itertools.count())


class Setting:
    """A queue of the broker, and sinks whose routing key is its name."""

    def __init__(self, broker: RabbitBroker, kind: str = "classic", **arguments: Any) -> None:
        self.broker, self.name = broker, next(_names)
        self.aside: list[tuple[str, list[int]]] = []
        broker.declare(self.name, kind, **arguments)

    def options(self, **options: Any) -> dict[str, Any]:
        return self.broker.options | {"routing_key": self.name} | options

    def made(self, *attributes: str, **options: Any) -> RabbitSink:
        place = SinkPlace("group", "query", "sink", self._put_aside, frozenset(attributes))
        sink = RabbitSink(RabbitSink.Options.model_validate(self.options(**options)), place)
        sink.prepare(SCHEMA)
        return sink

    def found(self) -> list[bytes]:
        return [one.body for one in self.broker.stored(self.name)]

    def _put_aside(self, batch: OutputBatch, reason: str, letters: Any) -> None:
        self.aside.append((reason, letters.column("id").to_pylist()))


@pytest.fixture
def setting(rabbit: RabbitBroker) -> Setting:
    return Setting(rabbit)


class TestContract(OfSetting, SinkContract):
    kind = RabbitSink

    def delivered(self) -> list[dict[str, Any]]:
        return [json.loads(value) for value in self.setting.found()]


# -- messages --------------------------------------------------------------------------------------


def test_each_message_is_labelled_and_persistent(setting: Setting) -> None:
    for _ in range(2):
        sink = setting.made()
        sink.deliver(batch_of(7, rows(7, 3)))
        sink.close()
    found = setting.broker.stored(setting.name)
    labels = [RowLabel.parse(one.message_id) for one in found]
    assert [(one.sink, one.batch, one.row) for one in labels] == 2 * [
        ("group/query/sink", 7, row) for row in range(3)
    ]
    assert labels[:3] == labels[3:]
    assert {int(one.delivery_mode or 0) for one in found} == {2}


def test_attributes_of_a_message(setting: Setting) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    attributes: dict[str, list[Any]] = {
        "key": [setting.name, "x" * 256, None],
        "correlation_id": ["c", None, None],
        "content_type": ["application/json", None, None],
        "reply_to": ["answers", None, None],
        "type": ["order", None, None],
        "timestamp": [at, None, None],
        "header.unit": ["K", None, None],
    }
    sink = setting.made(*attributes)
    sink.deliver(batch_of(1, rows(1, 3), **attributes))
    sink.close()
    first, last = setting.broker.stored(setting.name)
    assert (first.correlation_id, first.content_type) == ("c", "application/json")
    assert (first.reply_to, first.type, first.timestamp) == ("answers", "order", at)
    assert dict(first.headers) == {"unit": "K"}
    assert (last.correlation_id, last.timestamp, dict(last.headers)) == (None, None, {})
    assert setting.aside == [("the key of the row is longer than 255 bytes", [1])]


def test_rows_without_a_routing_key_are_put_aside(setting: Setting) -> None:
    sink = setting.made("key", routing_key=None)
    sink.deliver(batch_of(1, rows(1, 2), key=[None, setting.name]))
    sink.close()
    assert setting.found() == rows(1, 2)[1:]
    assert setting.aside == [("the row has no routing key", [0])]


def test_rows_whose_properties_no_message_can_have_are_put_aside(setting: Setting) -> None:
    """The broker ends the connection at headers that do not fit into one frame."""
    sink = setting.made("timestamp", "header.a", "header.b")
    early = datetime(1969, 12, 31, tzinfo=UTC)
    headers = {"header.a": ["a", "x" * 70_000, None], "header.b": [None, "y" * 70_000, "b"]}
    sink.deliver(batch_of(1, rows(1, 3), timestamp=[early, None, datetime.now(UTC)], **headers))
    sink.close()
    assert setting.found() == rows(1, 3)[2:]
    assert setting.aside == [
        ("the timestamp of the row is before 1970", [0]),
        ("the headers of the row are longer than 100000 bytes together", [1]),
    ]


def test_messages_of_10_mb_are_delivered(setting: Setting) -> None:
    sink, values = setting.made(), [b"x" * 10_000_000, b"y", b"z" * 10_000_000]
    sink.deliver(batch_of(1, values))
    sink.close()
    assert setting.found() == values


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_other_kinds_of_queues_confirm_too(rabbit: RabbitBroker, kind: str) -> None:
    setting = Setting(rabbit, kind)
    sink = setting.made()
    sink.deliver(batch_of(1, rows(1, 500)))
    sink.close()
    if kind == "quorum":
        assert setting.found() == rows(1, 500)


# -- refusals --------------------------------------------------------------------------------------


def test_message_without_a_queue_is_refused_by_name(setting: Setting) -> None:
    nowhere = f"nowhere-{setting.name}"
    sink = setting.made("key")
    batch = batch_of(1, rows(1, 3), key=[setting.name, nowhere, setting.name])
    for _ in range(3):
        with pytest.raises(SinkRefused, match=f"routing key '{nowhere}'; bind a queue"):
            sink.deliver(batch)
    setting.broker.declare(nowhere)
    sink.deliver(batch)
    sink.close()
    assert len(setting.broker.stored(nowhere)) == 1
    # What was confirmed is not repeated.
    assert setting.found() == [rows(1, 3)[0], rows(1, 3)[2]]


def test_refused_row_is_named_and_no_other_is_repeated(setting: Setting) -> None:
    """The broker ends the channel at a message that it refuses, and may not confirm the messages
    before it."""
    broker, values = setting.broker, rows(1, 30)
    values[20] += b"." * 2_000
    sink, named = setting.made(), r"row 20 of batch 1: .* 2004 is larger than .* max size 1000"
    broker.evaluate("application:set_env(rabbit, max_message_size, 1000)")

    def is_named() -> bool:
        with pytest.raises(SinkRefused, match="2004 is larger than") as refusal:
            sink.deliver(batch_of(1, values))
        return re.search(named, str(refusal.value)) is not None

    try:
        wait_until(is_named)
        found = setting.found()
        for _ in range(3):
            with pytest.raises(SinkRefused, match=named):
                sink.deliver(batch_of(1, values))
        assert setting.found() == found
    finally:
        broker.evaluate("application:set_env(rabbit, max_message_size, 134217728)")
    sink.deliver(batch_of(1, values))
    sink.deliver(batch_of(2, rows(2, 3)))
    sink.close()
    assert list(dict.fromkeys(setting.found())) == values + rows(2, 3)


def test_other_rows_of_the_same_batch_are_delivered(setting: Setting) -> None:
    """After a forced failover a batch may have other rows."""
    sink = setting.made()
    sink.deliver(batch_of(1, rows(1, 2)))
    sink.deliver(batch_of(1, rows(2, 2)))
    sink.close()
    assert setting.found() == rows(1, 2) + rows(2, 2)


def test_missing_exchange_is_refused(setting: Setting) -> None:
    sink = setting.made(exchange="missing")
    for call in (lambda: sink.deliver(batch_of(1, rows(1, 1))), sink.check):
        with pytest.raises(SinkRefused, match=r"no exchange 'missing'.*create it"):
            call()


def test_exchange_that_is_deleted_is_refused(setting: Setting) -> None:
    async def declare(channel: Any) -> None:
        exchange = await channel.declare_exchange("passing", "fanout")
        await (await channel.get_queue(setting.name)).bind(exchange)

    setting.broker.run(declare)
    sink = setting.made(exchange="passing")
    sink.deliver(batch_of(1, rows(1, 1)))
    setting.broker.run(lambda channel: channel.exchange_delete("passing"))
    with pytest.raises(SinkRefused, match="no exchange 'passing'"):
        sink.deliver(batch_of(2, rows(2, 1)))
    assert setting.found() == rows(1, 1)


def test_missing_permission_is_refused_by_name(setting: Setting) -> None:
    name = f"writer-{setting.name}"
    setting.broker.add_user(name, "pw", "^$", "^$", "^$")
    sink = setting.made(user=name, password="pw")
    with pytest.raises(SinkRefused, match=r"access to exchange.*give the user this permission"):
        sink.deliver(batch_of(1, rows(1, 1)))
    sink.close()


def test_wrong_credentials_are_refused_and_not_shown(setting: Setting) -> None:
    sink = setting.made(password="Sesame")
    for call in (lambda: sink.deliver(batch_of(1, rows(1, 1))), sink.check):
        with pytest.raises(SinkRefused, match="correct user and password") as refusal:
            call()
        assert "Sesame" not in str(refusal.value) + repr(refusal.value.__cause__)


def test_sink_without_a_routing_key_is_refused(setting: Setting) -> None:
    with pytest.raises(SinkRefused, match="write the key routing_key, or map a column"):
        setting.made(routing_key=None)


# -- failures --------------------------------------------------------------------------------------


def test_broker_that_is_down_is_unavailable(setting: Setting) -> None:
    sink = setting.made(port=free_port())
    calls: list[Callable[[], None]] = [lambda: sink.deliver(batch_of(1, rows(1, 1))), sink.check]
    for call in calls:
        with pytest.raises(SinkUnavailable, match=r"RabbitMQ at 127\.0\.0\.1:\d+ is not available"):
            call()


def test_full_queue_is_unavailable(rabbit: RabbitBroker) -> None:
    setting = Setting(rabbit, **{"x-max-length": 3, "x-overflow": "reject-publish"})
    sink = setting.made()
    with pytest.raises(SinkUnavailable, match="the queue is full"):
        sink.deliver(batch_of(1, rows(1, 20)))
    sink.close()


def test_alarm_of_the_broker_is_unavailable(setting: Setting) -> None:
    sink, numbers, problems = setting.made(), itertools.count(1), list[str]()
    expected, failed = list[bytes](), list[int]()

    def shows_the_alarm() -> bool:
        """The broker may take some messages before it notices the alarm."""
        number = next(numbers)
        expected.extend(rows(number, 3))
        try:
            sink.deliver(batch_of(number, rows(number, 3), seconds=0.5))
        except SinkUnavailable as error:
            problems.append(str(error))
            failed.append(number)
        return any("has an alarm of memory or disk space" in one for one in problems)

    with setting.broker.alarm():
        wait_until(shows_the_alarm)
    for number in failed:
        sink.deliver(batch_of(number, rows(number, 3)))
    sink.close()
    wait_until(lambda: set(setting.found()) == set(expected))


def test_alarm_repeats_a_batch_once_at_most(setting: Setting) -> None:
    """The broker reads what a blocked connection has sent when the alarm ends, also if the client
    has ended the connection."""
    sink, number, broker = setting.made(), 0, setting.broker
    connections = "length(rabbit_networking:connections())"

    def is_blocked() -> bool:
        nonlocal number
        number += 1
        try:
            sink.deliver(batch_of(number, rows(number, 20), seconds=0.3))
        except SinkUnavailable as error:
            return "has an alarm of memory or disk space" in str(error)
        return False

    with broker.alarm():
        wait_until(is_blocked)
        open_now = broker.evaluate(connections)
        for _ in range(5):
            with pytest.raises(SinkUnavailable, match="has an alarm of memory or disk space"):
                sink.deliver(batch_of(number, rows(number, 20), seconds=0.3))
        assert broker.evaluate(connections) == open_now
    sink.deliver(batch_of(number, rows(number, 20)))
    sink.close()
    copies = Counter(setting.found())
    assert all(1 <= copies[row] <= 2 for row in rows(number, 20))


def test_delivery_ends_in_time_while_the_broker_hangs(setting: Setting) -> None:
    sink = setting.made()
    sink.deliver(batch_of(1, rows(1, 3)))
    setting.broker.freeze()
    try:
        with pytest.raises(SinkUnavailable, match="does not confirm 3 messages"):
            sink.deliver(batch_of(2, rows(2, 3), seconds=0.3))
    finally:
        setting.broker.thaw()
    sink.deliver(batch_of(2, rows(2, 3)))
    sink.close()
    assert set(setting.found()) == {*rows(1, 3), *rows(2, 3)}


def test_two_actives_at_once_lose_nothing(setting: Setting) -> None:
    """The former active, which is not aware of the next one, delivers the same batches."""

    expected = deliver_at_once([setting.made(), setting.made()])
    assert list(dict.fromkeys(setting.found())) == expected


def test_deliveries_that_end_at_random_moments_lose_nothing(setting: Setting) -> None:
    chance, sink, number = random.Random(5), setting.made(), 1
    expected = [row for number in range(1, 9) for row in rows(number, 200)]
    attempts = 0
    while number <= 8:
        attempts += 1
        # The patience grows, so that even a slow host gets on.
        seconds = chance.choice((0.01, 0.03, 0.1, 1.0)) * (1 + attempts / 20)
        try:
            sink.deliver(batch_of(number, rows(number, 200), seconds))
            number += 1
        except SinkUnavailable:
            pass
        if chance.random() < 0.3:
            sink = setting.made()  # the former active still has its connection
    sink.close()
    assert list(dict.fromkeys(setting.found())) == expected


@pytest.mark.nightly("test_deliveries_that_end_at_random_moments_lose_nothing runs instead")
def test_kills_of_the_broker_lose_nothing(rabbit: RabbitBroker) -> None:
    setting = Setting(rabbit, "quorum")
    rabbit.sync()
    expected = deliver_with_kills(setting.made, rabbit, 3, 300)
    assert list(dict.fromkeys(setting.found())) == expected
