"""The alerts of a cluster with a real Prometheus: each must fire on its fault.

tests/e2e/test_monitoring.py has the alerts of a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition

from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.cluster.nodes import node_on
from tests.cluster.standalone import Cluster, running_cluster
from tests.connectors.kafka_broker import ANSWER_SECONDS, KafkaCluster, admin, create, mortal_kafka
from tests.connectors.kafka_jars import SPARK, fetch, needs_kafka, spark_jars
from tests.connectors.receivers import Receiver
from tests.e2e.alerts import hastened_rules, require_firing
from tests.e2e.databases import fresh_database
from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.prometheus import Prometheus, running_prometheus
from tests.programs import needs
from tests.waiting import wait_until

STREAM, PARTITIONS = "numbers", 3
SPARK_CONF = Path(__file__).parents[2] / "compose" / "cluster" / "spark.conf"
METRICS = dict(
    line.split()
    for line in SPARK_CONF.read_text().splitlines()
    if line.startswith("spark.metrics.")
)
PATIENCE = 240
"""The increase of refused requests counts for two minutes."""


@dataclass
class Story:
    """A node on a cluster, a receiver, and the world around them."""

    prometheus: Prometheus
    node: NodeUnderTest
    receiver: Receiver
    brokers: KafkaCluster
    cluster: Cluster

    def send(self) -> int:
        """Send a number to the receiver, and return the status of its answer."""
        events = f"/v1/streams/{STREAM}/events"
        return self.receiver.request("POST", events, json=[{"n": 1}]).status_code

    def read_records(self) -> int:
        """Return how many records of the topic are in batches of the query."""
        source: dict[str, Any] = self.node.require_status()["sources"][STREAM]
        return int(source["log"]["rows"])


@contextmanager
def story(home: Path, database: str) -> Iterator[Story]:
    """Run all parts, each of which Prometheus scrapes."""
    build(JAR)
    fetch(SPARK)
    with ExitStack() as stack:
        brokers = stack.enter_context(mortal_kafka(3))
        # Each of the three replicas must have a record before a receiver acknowledges it.
        create(brokers.brokers, STREAM, PARTITIONS, replicas=3, min_insync_replicas=3)
        cluster = stack.enter_context(running_cluster(2, settings=METRICS))
        text = application(brokers.brokers)
        receiver = Receiver(home / "receiver", text)
        stack.callback(receiver.kill)
        receiver.start()
        node = node_on(
            cluster,
            home / "shared",
            home,
            text,
            database,
            query={"spark": {"spark.jars": spark_jars()}},
        )
        stack.enter_context(running(node))
        node.wait_running()
        (place := home / "prometheus").mkdir()
        (place / "alerts.yaml").write_text(hastened_rules())
        jobs = [
            job("ha-engine", node.url),
            job("ha-engine-receivers", receiver.url),
            job("spark-masters", *pages(cluster.masters), path="/metrics/prometheus/"),
            job("spark-workers", *pages(cluster.workers), path="/metrics/prometheus/"),
        ]
        prometheus = stack.enter_context(
            running_prometheus(place, rule_files=["alerts.yaml"], scrape_configs=jobs)
        )
        yield Story(prometheus, node, receiver, brokers, cluster)


def application(brokers: list[str]) -> str:
    log = {
        "type": "kafka",
        "brokers": brokers,
        "topic": STREAM,
        "timeout": "2s",
        "invalid": "skip",
    }
    streams = {STREAM: {"schema": {"n": "bigint not null"}, "log": log}}
    queries = {"all": {"sql": f"SELECT n FROM {STREAM}"}}
    return yaml.safe_dump({"name": "numbers", "streams": streams, "queries": queries})


def pages(daemons: list[Any]) -> list[str]:
    return [f"http://127.0.0.1:{daemon.web_port}" for daemon in daemons]


def job(name: str, *urls: str, path: str = "/metrics") -> dict[str, Any]:
    targets = [url.removeprefix("http://") for url in urls]
    return {"job_name": name, "metrics_path": path, "static_configs": [{"targets": targets}]}


# -- faults: each lasts for its with block; all but the last two are healed then -----------------

Fault = Callable[[Story], AbstractContextManager[None]]


@contextmanager
def dead_worker(story: Story) -> Iterator[None]:
    worker = story.cluster.workers[0]
    worker.kill()
    yield
    worker.start()


@contextmanager
def dead_receiver(story: Story) -> Iterator[None]:
    story.receiver.kill()
    yield
    story.receiver.start()


@contextmanager
def dead_broker(story: Story) -> Iterator[None]:
    assert story.send() == 200
    story.brokers.kill(1)
    wait_until(lambda: story.send() == 503, within=PATIENCE)
    yield
    story.brokers.start(1)


@contextmanager
def dead_brokers(story: Story) -> Iterator[None]:
    story.brokers.kill()
    yield
    story.brokers.start()
    story.receiver.await_ready()


@contextmanager
def record_that_is_no_event(story: Story) -> Iterator[None]:
    producer = Producer({"bootstrap.servers": ",".join(story.brokers.brokers)})
    producer.produce(STREAM, b"no number")
    assert producer.flush(ANSWER_SECONDS) == 0
    yield


@contextmanager
def deleted_records(story: Story) -> Iterator[None]:
    """Delete records that the queries have read, but that the journal still names."""
    before = story.read_records()
    assert story.send() == 200
    wait_until(lambda: story.read_records() > before, within=PATIENCE)
    ends = [TopicPartition(STREAM, number, -1) for number in range(PARTITIONS)]
    client = admin(story.brokers.brokers)
    for one in client.delete_records(ends).values():
        one.result(ANSWER_SECONDS)
    yield


FAULTS: Mapping[Fault, set[str]] = {
    dead_worker: {"HaEngineExecutorsMissing", "HaEngineSparkDown"},
    dead_receiver: {"HaEngineReceiverDown"},
    dead_broker: {"HaEngineReplicasMissing", "HaEngineReceiverRequestsFail"},
    dead_brokers: {"HaEngineReceiverWithoutBrokers"},
    record_that_is_no_event: {"HaEngineRecordsSkipped"},
    deleted_records: {"HaEngineLogRetentionShort"},
}


@needs_kafka()
@needs("prometheus")
@needs("javac")
@pytest.mark.spark
@pytest.mark.nightly("promtool tests each alert with numbers")
def test_each_alert_of_a_cluster_fires_on_its_fault(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with fresh_database(postgres, "cluster_alerts") as url, story(tmp_path, url) as told:
        for fault, names in FAULTS.items():
            require_firing(told.prometheus, names, fault(told), within=PATIENCE)
