"""Servers that the tests of several modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connectors.kafka_broker import KafkaCluster, kafka
from tests.connectors.rabbitmq_broker import RabbitBroker, running_broker


@pytest.fixture(scope="session")
def cluster() -> Iterator[KafkaCluster]:
    """A broker of Kafka, whose tests have topics of their own."""
    with kafka() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def brokers(cluster: KafkaCluster) -> list[str]:
    return cluster.brokers


@pytest.fixture(scope="session")
def rabbit() -> Iterator[RabbitBroker]:
    """A broker that runs. A test that stops it starts it again."""
    with running_broker() as broker:
        yield broker
