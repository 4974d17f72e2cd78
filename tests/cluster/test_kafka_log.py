"""A pair whose stream has its events in Kafka, and whose queries read them from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
import yaml
from confluent_kafka import Producer

from ha_engine.client.payload import of_batch
from ha_engine.demo.nodes import sample_application
from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.connectors.kafka_broker import kafka, new_topic
from tests.connectors.kafka_jars import SPARK, fetch, needs_kafka, spark_jars
from tests.connectors.receivers import Receiver
from tests.e2e.databases import fresh_database
from tests.e2e.flights import Flights
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.e2e.pair import Pair, running_pair
from tests.e2e.test_restore import snapshot_now
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [
    needs_kafka(),
    needs("javac"),
    pytest.mark.nightly("two Sparks and a broker take a minute and a half"),
    pytest.mark.spark,
]


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[str]]:
    with kafka() as cluster:
        yield cluster.brokers


class LoggedFlights(Flights):
    """Sends the year of flights to Kafka in place of the active."""

    def __init__(self, pair: Pair, url: str, brokers: list[str], topic: str) -> None:
        super().__init__(pair, url)
        self.topic, self._logged = topic, 0
        self._producer = Producer({"bootstrap.servers": ",".join(brokers)})

    def send(self, count: int) -> None:
        taken: pa.Table = self._year.slice(self._sent, count)
        for number, row in enumerate(taken.to_pylist()):
            value = json.dumps(row, default=lambda when: when.isoformat())
            self._producer.produce(self.topic, value.encode(), partition=number % 2)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0
        self._sent += count
        self._logged += count

    def send_to_active(self, count: int) -> None:
        super().send(count)

    def send_to(self, receiver: Receiver, count: int) -> None:
        """Send the next flights to a receiver, which writes them to Kafka."""
        url = f"{receiver.url}/v1/streams/departures/events"
        for batch in self._year.slice(self._sent, count).to_batches(max_chunksize=500):
            payload = of_batch(batch)
            answer = httpx.post(
                url,
                content=payload.body,
                headers={"Content-Type": payload.form.value},
                timeout=SPARK_SECONDS,
            )
            assert answer.status_code == 200, answer.text
        self._sent += count
        self._logged += count

    def require_equal(self) -> None:
        if self._logged:
            wait_until(self._is_read, within=SPARK_SECONDS)
        super().require_equal()

    def _is_read(self) -> bool:
        active = self.pair.active()
        status = active.status() if active else None
        return status is not None and status["sources"]["departures"]["log"]["rows"] == self._logged


def application(brokers: list[str], topic: str) -> str:
    tree = yaml.safe_load(sample_application("flights.yaml"))
    tree["streams"]["departures"]["log"] = {"type": "kafka", "brokers": brokers, "topic": topic}
    return yaml.safe_dump(tree, sort_keys=False)


@contextmanager
def flying(
    brokers: list[str], directory: Path, postgres: EmbeddedPostgres, topic: str, text: str
) -> Iterator[LoggedFlights]:
    """Run a pair with the application ``text``."""
    build(JAR)
    fetch(SPARK)
    spark: dict[str, Any] = {"spark": {"spark.jars": spark_jars()}}
    with fresh_database(postgres, "kafka_log") as url:
        pair = Pair(directory, text, url, query=spark)
        with running_pair(pair):
            pair.wait_protected()
            yield LoggedFlights(pair, url, brokers, topic)


@pytest.fixture
def flights(
    brokers: list[str], tmp_path: Path, postgres: EmbeddedPostgres
) -> Iterator[LoggedFlights]:
    topic = new_topic(brokers, partitions=2)
    with flying(brokers, tmp_path, postgres, topic, application(brokers, topic)) as found:
        yield found


def moving(brokers: list[str], topic: str) -> str:
    """The application whose stream gets a topic, and whose queries keep their state."""
    tree = yaml.safe_load(application(brokers, topic))
    tree["streams"]["departures"]["log"]["journal"] = True
    for query in tree["queries"].values():
        query["on_change"] = "keep"
    return yaml.safe_dump(tree, sort_keys=False)


def published(node: NodeUnderTest) -> dict[str, int]:
    status = node.status()
    assert status is not None
    return {name: min(query["published"].values()) for name, query in status["queries"].items()}


def test_stream_moves_to_kafka_and_back_and_loses_no_state_and_no_event(
    brokers: list[str], tmp_path: Path, postgres: EmbeddedPostgres
) -> None:
    topic, before = new_topic(brokers, partitions=2), sample_application("flights.yaml")
    with flying(brokers, tmp_path, postgres, topic, before) as flights:
        pair = flights.pair
        flights.send_to_active(20_000)
        flights.require_equal()
        active = pair.wait_protected()
        passive, last = pair.other(active), published(active)
        passive.stop()
        active.stop()
        for node in (active, passive):
            node.application_path.write_text(moving(brokers, topic))
        active.start()
        active.wait_running()
        snapshot_now(active)
        passive.start()
        pair.wait_protected()
        flights.send_to_active(5_000)
        flights.send(10_000)
        active.kill_everything()
        flights.send(5_000)
        wait_until(lambda: passive.is_active(), within=SPARK_SECONDS)
        flights.require_equal()
        active.start()
        pair.wait_protected()
        flights.send_to_active(5_000)
        flights.require_equal()
        assert all(number > last[name] > 0 for name, number in published(passive).items())
        assert "a batch differs" not in active.log_text() + passive.log_text()


def test_rows_are_those_of_the_reference_after_the_active_was_killed(
    flights: LoggedFlights, brokers: list[str], tmp_path: Path
) -> None:
    flights.send(20_000)
    flights.require_equal()
    pair = flights.pair
    active = pair.active()
    assert active is not None
    active.kill_everything()
    flights.send(10_000)
    flights.require_equal()
    active.start()
    pair.wait_protected()
    flights.send(5_000)
    flights.require_equal()
    receiver = Receiver(tmp_path / "receiver", application(brokers, flights.topic))
    receiver.start()
    flights.send_to(receiver, 5_000)
    receiver.stop()
    flights.require_equal()
