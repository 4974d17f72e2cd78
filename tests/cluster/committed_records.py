"""Records in topics of Kafka, and which of them readers of committed records must see."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

from confluent_kafka import Message, Producer

from tests.cluster.marks import Ends
from tests.connectors.kafka_broker import ANSWER_SECONDS

START = datetime(2024, 1, 1, tzinfo=UTC)
WINDOW_SECONDS = 10
KEYS = 7


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a record in a topic."""

    topic: str
    partition: int
    offset: int


@dataclass
class Records:
    """Committed records by place, in ``topics`` of so many partitions each."""

    topics: dict[str, int]
    committed: dict[Place, dict[str, Any]] = field(default_factory=dict)
    _ids: Iterable[int] = field(default_factory=count)

    def within(self, start: Ends, end: Ends) -> dict[Place, dict[str, Any]]:
        """Return the committed records from ``start`` to before ``end``."""
        return {
            place: record
            for place, record in self.committed.items()
            if start[place.topic].get(place.partition, 0)
            <= place.offset
            < end[place.topic].get(place.partition, 0)
        }

    def write(self, brokers: Sequence[str], transactions: int, chance: random.Random) -> None:
        """Write transactions over all topics; a third of them abort, and readers see no record of
        these."""
        address = {"bootstrap.servers": ",".join(brokers), "log_level": 0}
        producer = Producer(address | {"transactional.id": f"writer-{chance.random()}"})
        producer.init_transactions(ANSWER_SECONDS)
        for _ in range(transactions):
            taken = dict[Place, dict[str, Any]]()
            producer.begin_transaction()
            for _ in range(chance.randrange(1, 40)):
                self._produce(producer, chance, taken)
            if producer.flush(ANSWER_SECONDS):
                raise TimeoutError("the broker took not all records")
            if chance.random() < 1 / 3:
                producer.abort_transaction(ANSWER_SECONDS)
            else:
                producer.commit_transaction(ANSWER_SECONDS)
                self.committed |= taken

    def _produce(
        self, producer: Producer, chance: random.Random, taken: dict[Place, dict[str, Any]]
    ) -> None:
        record = _record(next(iter(self._ids)), chance)
        topic = chance.choice(list(self.topics))

        def stored(error: object, message: Message) -> None:
            assert error is None, error
            taken[Place(topic, message.partition(), message.offset())] = record

        partition = chance.randrange(self.topics[topic])
        producer.produce(topic, json.dumps(record), partition=partition, on_delivery=stored)


def _record(number: int, chance: random.Random) -> dict[str, Any]:
    at = START + timedelta(milliseconds=250 * number)
    amount = Decimal(chance.randrange(10_000)) / 100
    key = f"key-{chance.randrange(KEYS)}"
    return {"id": number, "at": at.isoformat(), "key": key, "amount": str(amount)}


Groups = dict[tuple[str, str], tuple[int, str]]
"""Count and sum of the amounts, by key and start of the window."""


def add(groups: Groups, records: Iterable[dict[str, Any]]) -> Groups:
    """Add ``records`` to ``groups``, and return the groups that changed."""
    changed = set[tuple[str, str]]()
    for record in records:
        seconds = (datetime.fromisoformat(record["at"]) - START).total_seconds()
        window = START + timedelta(seconds=seconds // WINDOW_SECONDS * WINDOW_SECONDS)
        group = record["key"], window.isoformat()
        rows, total = groups.get(group, (0, "0.00"))
        groups[group] = rows + 1, f"{Decimal(total) + Decimal(record['amount']):.2f}"
        changed.add(group)
    return {group: groups[group] for group in changed}
