"""Faults of the parts around a pair on a cluster: executors, workers, masters, brokers."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.cluster.deployment import Services
from tests.connectors.kafka_broker import ANSWER_SECONDS, admin

FAULTS = ("executor", "worker", "master", "broker")
"""kill -9 of an executor; of a worker with its executors, like the loss of a host; of the master
that leads; of a broker."""
Heal = Callable[[], object]
"""Ends a fault: starts again what was killed."""
_TRANSACTIONS = "__transaction_state"


def inflict(fault: str, services: Services, chance: random.Random, application: str = "") -> Heal:
    """Inject a fault. The executor or the worker is one of the ``application`` of Spark, if that is
    given."""
    cluster = services.cluster
    match fault:
        case "executor":
            worker = chance.choice(cluster.workers_of(application))
            chance.choice(worker.executors(application)).kill()
            return lambda: None  # the worker starts another one
        case "worker":
            worker = chance.choice(cluster.workers_of(application))
            worker.kill()
            return worker.start
        case "master":
            master = next(master for master in cluster.masters if master.leads())
            master.kill()
            return master.start
        case "broker":
            return kill_broker(services, chance.randint(1, 3))
    raise ValueError(fault)


def kill_broker(services: Services, number: int) -> Heal:
    services.brokers.kill(number)
    return lambda: services.brokers.start(number)


def coordinator_of(services: Services, transactional_id: str) -> int:
    """Return the number of the broker that coordinates the transactions with this id: it leads a
    partition of a topic of Kafka's own, which follows from Java's hash of the id."""
    topic = admin(services.brokers.brokers).list_topics(_TRANSACTIONS, timeout=ANSWER_SECONDS)
    partitions = topic.topics[_TRANSACTIONS].partitions
    code = 0
    for character in transactional_id:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return int(partitions[(code & 0x7FFFFFFF) % len(partitions)].leader)


def is_whole(services: Services) -> bool:
    """Return whether a master leads, and each partition has all its replicas in sync."""
    topics = admin(services.brokers.brokers).list_topics(timeout=ANSWER_SECONDS).topics.values()
    parts = [part for topic in topics for part in topic.partitions.values()]
    in_sync = all(len(part.isrs) == len(part.replicas) for part in parts)
    return in_sync and any(master.leads() for master in services.cluster.masters)
