"""All parts of a cluster on this machine, as docs/CLUSTER.md and docs/RECEIVERS.md start them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.cluster.nodes import node_on
from tests.cluster.standalone import Cluster, running_cluster
from tests.connectors.kafka_broker import KafkaCluster, mortal_kafka
from tests.connectors.kafka_jars import SPARK, fetch, spark_jars
from tests.connectors.receivers import Receiver
from tests.e2e.databases import fresh_database
from tests.e2e.pair import Pair

Step = Callable[[str], AbstractContextManager[None]]
"""A context in which a part starts, with words for what happens in it."""


@dataclass(frozen=True)
class Services:
    """The needs of a pair on a cluster: a database, three brokers, two masters and four workers."""

    postgres: EmbeddedPostgres
    url: str
    brokers: KafkaCluster
    cluster: Cluster

    def pair(self, home: Path, application: str, **sections: dict[str, Any]) -> Pair:
        """Make a pair, which is not started yet. Each node has two executors of one core."""
        spark = {"spark.jars": spark_jars()}
        query = {"spark": spark, **sections.pop("query", {})}
        node = partial(node_on, self.cluster, home / "shared")
        return Pair(home, application, self.url, node, query=query, **sections)


def start_services(stack: ExitStack, home: Path, step: Step) -> Services:
    """Start the services, which end with ``stack``."""
    fetch(SPARK)
    build(JAR)
    with step("start PostgreSQL"):
        postgres = stack.enter_context(EmbeddedPostgres(home / "postgres"))
        url = stack.enter_context(fresh_database(postgres, "cluster"))
    with step("start three brokers"):
        brokers = stack.enter_context(mortal_kafka(3))
    with step("start two masters and four workers"):
        cluster = stack.enter_context(running_cluster(4, cores=1, memory="600m", masters=2))
    return Services(postgres, url, brokers, cluster)


def start_receivers(stack: ExitStack, home: Path, application: str) -> list[Receiver]:
    """Start two receivers, which end with ``stack``."""
    receivers = [Receiver(home / f"receiver-{number}", application) for number in (1, 2)]
    for receiver in receivers:
        stack.callback(receiver.kill)
        receiver.start()
    return receivers
