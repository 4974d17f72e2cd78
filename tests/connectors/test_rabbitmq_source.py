"""The source kind ``rabbitmq`` with a real RabbitMQ."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ha_engine.connectors.rabbitmq.source import RabbitSource, RabbitSourceOptions
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Backlog, Messages, SourceBatch, SourcePlace
from ha_engine.testing import QueueSourceContract
from ha_engine.testing.sink_contract import SCHEMA
from tests.connectors.mqtt_broker import free_port
from tests.connectors.rabbitmq_broker import Rabbit
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = needs("rabbitmq-server")

_names = (f"queue{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    with Rabbit(tmp_path_factory.mktemp("rabbit")).running() as broker:
        yield broker


@pytest.fixture(params=["classic", "quorum"])
def queue(broker: Rabbit, request: pytest.FixtureRequest) -> str:
    name = next(_names)
    broker.declare(name, request.param)
    return name


@pytest.mark.usefixtures("broker_of_class")
class TestContract(QueueSourceContract):
    kind = RabbitSource
    queue_type = "classic"
    broker: Rabbit

    @pytest.fixture(scope="class")
    def broker_of_class(self, broker: Rabbit, request: pytest.FixtureRequest) -> None:
        request.cls.broker = broker

    def setup_method(self, method: Callable[..., None]) -> None:
        super().setup_method(method)

    def make_queue(self) -> None:
        self.queue = next(_names)
        self.broker.declare(self.queue, self.queue_type)

    def options(self) -> dict[str, Any]:
        return self.broker.options | {"queue": self.queue}

    def put(self, rows: list[dict[str, Any]]) -> None:
        self.broker.put(self.queue, *(json.dumps(row).encode() for row in rows))


class TestContractOfQuorumQueues(TestContract):
    queue_type = "quorum"


def source_of(broker: Rabbit, queue: str, *attributes: str, **options: Any) -> RabbitSource:
    place = SourcePlace("group", "stream", "source", SCHEMA, frozenset(attributes))
    written = broker.options | {"queue": queue} | options
    return RabbitSource(RabbitSourceOptions.model_validate(written), place)


def opened(broker: Rabbit, queue: str, **options: Any) -> RabbitSource:
    source = source_of(broker, queue, **options)
    source.open(None)
    return source


def put(broker: Rabbit, queue: str, first: int, count: int) -> None:
    broker.put(queue, *(str(row).encode() for row in range(first, first + count)))


def batch_of(source: RabbitSource, rows_max: int = 1_000) -> SourceBatch:
    found = list[SourceBatch]()

    def read() -> bool:
        batch = source.read(rows_max, 0.2)
        if batch is not None:
            found.append(batch)
        return bool(found)

    wait_until(read)
    return found[0]


def values_of(batch: SourceBatch) -> list[bytes | None]:
    assert isinstance(batch.rows, Messages)
    return list(batch.rows.values)


def rest_of(source: RabbitSource, least: int) -> list[int]:
    found = list[int]()
    while len(found) < least:
        found += [int(value or b"") for value in values_of(batch_of(source))]
    assert source.read(1_000, 0.2) is None
    return found


def open_within(source: RabbitSource) -> None:
    """Open ``source`` as the engine does, which tries again while it is unavailable."""

    def is_open() -> bool:
        try:
            source.open(None)
        except SourceUnavailable:
            return False
        return True

    wait_until(is_open)


# -- the next active -------------------------------------------------------------------------------


def test_the_next_active_waits_for_the_connection_of_the_former(broker: Rabbit, queue: str) -> None:
    put(broker, queue, 0, 10)
    former, following = opened(broker, queue), source_of(broker, queue)
    batch_of(former, 4)
    with pytest.raises(SourceUnavailable, match="another consumer, such as the former active"):
        following.open(None)
    former.close()
    open_within(following)
    assert rest_of(following, 10) == list(range(10))
    following.close()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_single_active_consumer_gets_what_the_former_one_had(broker: Rabbit, kind: str) -> None:
    queue = next(_names)
    broker.declare(queue, kind, **{"x-single-active-consumer": True})
    put(broker, queue, 0, 10)
    former = opened(broker, queue, single_active_consumer=True)
    batch_of(former, 4)
    following = opened(broker, queue, single_active_consumer=True)
    assert following.read(10, 0.2) is None
    former.close()
    assert rest_of(following, 10) == list(range(10))
    following.close()


def test_a_restart_of_the_broker_loses_nothing(tmp_path: Path) -> None:
    with Rabbit(tmp_path / "rabbit").running() as broker:
        for kind in ("classic", "quorum"):
            broker.declare(kind, kind)
        sources = [opened(broker, kind) for kind in ("classic", "quorum")]
        for end, first in ((broker.stop, 0), (broker.kill, 50)):
            for source in sources:
                put(broker, source._options.queue, first, 50)
                batch_of(source, 20)
            end()
            for source in sources:
                with pytest.raises(SourceUnavailable):
                    wait_until(lambda one=source: one.read(20, 0.1) is None and False)
                with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1"):
                    source.open(None)
            broker.start()
            for source in sources:
                open_within(source)
                assert rest_of(source, 50) == list(range(first, first + 50))
        for source in sources:
            source.close()


# -- messages --------------------------------------------------------------------------------------


def test_attributes_of_a_message(broker: Rabbit, queue: str) -> None:
    names = ("key", "exchange", "message_id", "correlation_id", "content_type", "timestamp")
    source = source_of(broker, queue, *names, "redelivered", "header.unit", "header.count")
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    broker.put(
        queue,
        b"1",
        message_id="m1",
        correlation_id="c1",
        content_type="text/plain",
        timestamp=at,
        headers={"unit": "K", "count": 3},
    )
    broker.put(queue, b"2")
    source.open(None)
    found = dict[str, list[Any]]()
    while len(found.get("key", ())) < 2:
        batch = batch_of(source)
        assert isinstance(batch.rows, Messages)
        for name, values in batch.rows.attributes.items():
            found.setdefault(name, []).extend(values)
    assert found.pop("message_id")[0] == "m1"  # the client of the test invents the other one
    assert found == {
        "key": [queue, queue],
        "exchange": ["", ""],
        "correlation_id": ["c1", None],
        "content_type": ["text/plain", None],
        "timestamp": [at, None],
        "redelivered": [False, False],
        "header.unit": ["K", None],
        "header.count": ["3", None],
    }
    source.close()


def test_a_message_of_10_mb_comes_alone(broker: Rabbit, queue: str) -> None:
    broker.put(queue, b"1", b"x" * 10_000_000, b"2")
    source, sizes = opened(broker, queue), list[list[int]]()
    while sum(map(len, sizes)) < 3:
        sizes.append([len(value or b"") for value in values_of(batch_of(source))])
    assert [10_000_000] in sizes
    source.close()


def test_no_more_is_in_flight_than_the_options_allow(broker: Rabbit, queue: str) -> None:
    put(broker, queue, 0, 20)
    source = opened(broker, queue, prefetch=7)
    batch = batch_of(source)
    assert len(batch.rows) <= 7
    assert isinstance(batch.backlog, Backlog)
    source.open(None)
    assert rest_of(source, 20) == list(range(20))
    source.close()


# -- failures --------------------------------------------------------------------------------------


def test_a_broker_that_is_down_is_unavailable() -> None:
    options = {"host": "127.0.0.1", "port": free_port(), "queue": "q"}
    source = RabbitSource(
        RabbitSourceOptions.model_validate(options), SourcePlace("g", "s", "o", SCHEMA)
    )
    for call in (lambda: source.open(None), source.check):
        with pytest.raises(SourceUnavailable, match=r"RabbitMQ 127\.0\.0\.1"):
            call()
    with pytest.raises(SourceUnavailable):
        source.read(10, 0.1)
    source.close()


def test_wrong_credentials_are_refused_and_not_shown(broker: Rabbit, queue: str) -> None:
    source = source_of(broker, queue, user="guest", password="Sesame")
    for call in (lambda: source.open(None), source.check):
        with pytest.raises(SourceRefused, match="correct user and password") as refusal:
            call()
        assert "Sesame" not in str(refusal.value)


def test_a_missing_queue_is_refused(broker: Rabbit) -> None:
    source = source_of(broker, "missing")
    for call in (lambda: source.open(None), source.check):
        with pytest.raises(SourceRefused, match=r"no queue 'missing'.*create it"):
            call()


def test_a_queue_that_is_deleted_is_noticed(broker: Rabbit, queue: str) -> None:
    source = opened(broker, queue)
    broker.delete(queue)
    with pytest.raises(SourceUnavailable, match=f"queue {queue} is gone"):
        wait_until(lambda: source.read(10, 0.2) is None and False)
    with pytest.raises(SourceRefused, match="no queue"):
        source.open(None)


def test_check_takes_nothing_from_an_active(broker: Rabbit, queue: str) -> None:
    source = opened(broker, queue)
    put(broker, queue, 0, 3)
    source_of(broker, queue).check()
    put(broker, queue, 3, 2)
    assert rest_of(source, 5) == list(range(5))
    source.close()


def test_close_is_quick_while_the_broker_is_stopped(broker: Rabbit, queue: str) -> None:
    source = opened(broker, queue)
    assert broker._process is not None
    os.killpg(broker._process.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        source.close()
        assert time.monotonic() - began < 5  # the timeout of the connection is 10 s
    finally:
        os.killpg(broker._process.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "wrong", [{"queue": ""}, {"prefetch": 0}, {"ca_file": "ca.pem"}, {"heartbeat": "0s"}]
)
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RabbitSourceOptions.model_validate({"host": "h", "queue": "q"} | wrong)
