"""The sink kind ``rabbitmq`` with a real RabbitMQ."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.connectors.rabbitmq.sink import RabbitSink, RabbitSinkOptions
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import Messages, OutputBatch, SinkPlace
from ha_engine.testing import SinkContract
from ha_engine.testing.sink_contract import SCHEMA, batch_of, numbered
from tests.connectors.mqtt_broker import free_port
from tests.connectors.rabbitmq_broker import Rabbit
from tests.programs import needs

pytestmark = needs("rabbitmq-server")

_names = (f"sink{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    with Rabbit(tmp_path_factory.mktemp("rabbit")).running() as broker:
        yield broker


@pytest.fixture
def queue(broker: Rabbit) -> str:
    name = next(_names)
    broker.declare(name)
    return name


@pytest.mark.usefixtures("broker_of_class")
class TestContract(SinkContract):
    kind = RabbitSink
    broker: Rabbit

    @pytest.fixture(scope="class")
    def broker_of_class(self, broker: Rabbit, request: pytest.FixtureRequest) -> None:
        request.cls.broker = broker

    def setup_method(self, method: Callable[..., None]) -> None:
        super().setup_method(method)
        self.queue = next(_names)
        self._sinks = list[Any]()
        self._declared = False

    def teardown_method(self, method: Callable[..., None]) -> None:
        for sink in self._sinks:
            sink.close()
        super().teardown_method(method)

    def opened(self) -> Any:
        sink = super().opened()
        self._sinks.append(sink)
        return sink

    def options(self) -> dict[str, Any]:
        if not self._declared:
            self.broker.declare(self.queue)
            self._declared = True
        return self.broker.options | {"routing_key": self.queue}

    def delivered(self) -> list[dict[str, Any]]:
        return [json.loads(one.body) for one in self.broker.take(self.queue)]


class Aside:
    """The dead letters of a sink: the reason, and the ids of the rows."""

    def __init__(self) -> None:
        self.letters: list[tuple[str, list[int]]] = []

    def __call__(self, batch: OutputBatch, reason: str, rows: pa.Table) -> None:
        self.letters.append((reason, rows.column("id").to_pylist()))


def sink_of(
    options: dict[str, Any], aside: Aside | None = None, *, mapped: str = "", **more: Any
) -> RabbitSink:
    place = SinkPlace("group", "query", "sink", aside or Aside(), frozenset(mapped.split()))
    sink = RabbitSink(RabbitSinkOptions.model_validate(options | more), place)
    sink.prepare(SCHEMA)
    return sink


def with_attributes(batch: OutputBatch, attributes: dict[str, list[Any]]) -> OutputBatch:
    values = batch.messages().values
    return replace(batch, messages=lambda: Messages(values, attributes))


def test_each_message_has_the_key_of_its_row_and_is_persistent(broker: Rabbit, queue: str) -> None:
    for _ in range(2):
        sink = sink_of(broker.options, routing_key=queue)
        sink.deliver(batch_of(7, numbered(7)))
        sink.close()
    found = broker.take(queue)
    assert [one.message_id for one in found] == 2 * [f"group/query/sink/7/{r}" for r in range(3)]
    assert {int(one.delivery_mode or 0) for one in found} == {2}


def test_attributes_of_a_message(broker: Rabbit, queue: str) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    names = "key correlation_id content_type reply_to type timestamp header.unit"
    sink, aside = None, Aside()
    sink = sink_of(broker.options, aside, mapped=names)
    batch = with_attributes(
        batch_of(1, numbered(1, 3)),
        {
            "key": [queue, None, queue],
            "correlation_id": ["c", None, None],
            "content_type": ["application/json", None, None],
            "reply_to": ["answers", None, None],
            "type": ["order", None, None],
            "timestamp": [at, None, None],
            "header.unit": ["K", None, None],
        },
    )
    sink.deliver(batch)
    sink.close()
    first, last = broker.take(queue)
    assert (first.correlation_id, first.content_type) == ("c", "application/json")
    assert (first.reply_to, first.type, first.timestamp) == ("answers", "order", at)
    assert dict(first.headers) == {"unit": "K"}
    assert (last.correlation_id, last.timestamp, dict(last.headers)) == (None, None, {})
    ((reason, ids),) = aside.letters
    assert "routing key is missing" in reason
    assert ids == [1001]


def test_a_message_without_a_queue_is_refused(broker: Rabbit) -> None:
    sink = sink_of(broker.options, routing_key="nowhere")
    with pytest.raises(SinkRefused, match="no queue for a message with the routing key 'nowhere'"):
        sink.deliver(batch_of(1, numbered(1)))
    broker.declare("nowhere")
    sink.deliver(batch_of(1, numbered(1)))
    assert len(broker.take("nowhere")) == 3
    sink.close()


def test_a_missing_exchange_is_refused(broker: Rabbit) -> None:
    sink = sink_of(broker.options, exchange="missing", routing_key="a")
    for call in (lambda: sink.deliver(batch_of(1, numbered(1))), sink.check):
        with pytest.raises(SinkRefused, match=r"no exchange 'missing'.*create it"):
            call()


def test_a_message_of_10_mb(broker: Rabbit, queue: str) -> None:
    rows = pa.table({"id": [1, 2], "text": ["x" * 10_000_000, "y"]}, schema=SCHEMA)
    sink = sink_of(broker.options, routing_key=queue, timeout="60s")
    sink.deliver(batch_of(1, rows, seconds=60))
    sink.close()
    assert [len(one.body) > 10_000_000 for one in broker.take(queue)] == [True, False]


def test_a_broker_that_is_down_is_unavailable() -> None:
    sink = sink_of({"host": "127.0.0.1", "port": free_port()}, routing_key="a")
    for call in (lambda: sink.deliver(batch_of(1, numbered(1))), sink.check):
        with pytest.raises(SinkUnavailable, match=r"RabbitMQ 127\.0\.0\.1"):
            call()


def test_wrong_credentials_are_refused_and_not_shown(broker: Rabbit) -> None:
    sink = sink_of(broker.options, routing_key="a", password="Sesame")
    for call in (lambda: sink.deliver(batch_of(1, numbered(1))), sink.check):
        with pytest.raises(SinkRefused, match="correct user and password") as refusal:
            call()
        assert "Sesame" not in str(refusal.value)


def test_a_delivery_ends_in_time_while_the_broker_hangs(broker: Rabbit, queue: str) -> None:
    sink = sink_of(broker.options, routing_key=queue)
    sink.deliver(batch_of(1, numbered(1)))
    assert broker._process is not None
    os.killpg(broker._process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(SinkUnavailable, match="does not confirm 3 messages"):
            sink.deliver(batch_of(2, numbered(2), seconds=0.3))
    finally:
        os.killpg(broker._process.pid, signal.SIGCONT)
    sink.deliver(batch_of(2, numbered(2)))
    sink.close()


def test_a_broker_killed_during_a_delivery_loses_no_row(tmp_path: Path) -> None:
    chance = random.Random(1)
    with Rabbit(tmp_path / "rabbit").running() as broker:
        broker.declare("rows")
        sink = sink_of(broker.options, routing_key="rows")
        for number in range(1, 3):
            batch = batch_of(number, numbered(number, 500), seconds=60)
            killer = threading.Timer(chance.uniform(0, 0.1), broker.kill)
            killer.start()
            try:
                sink.deliver(batch)
                delivered = True
            except SinkUnavailable:
                delivered = False
            killer.join()
            broker.start()
            if not delivered:
                sink.deliver(batch)
        sink.close()
        found = {json.loads(one.body)["id"] for one in broker.take("rows")}
        assert found == {number * 1000 + row for number in range(1, 3) for row in range(500)}


def test_a_sink_without_a_routing_key_is_refused() -> None:
    with pytest.raises(SinkRefused, match="set routing_key, or map a column"):
        sink_of({"host": "h"})
