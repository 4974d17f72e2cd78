"""A random history of two nodes that publish through a Kafka sink, each of which may be outdated.

The sink is the engine's own. Simulated are the transaction coordinator and the two topics: of the
output, and of the ledger. A commit may happen long after its caller has given up, and the end of a
transaction reaches the two topics one after the other. While a node waits for the brokers, the
other one works.

Readers of committed records must find each batch once and in order, and no transaction may commit
after a node of a later epoch has claimed the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
from confluent_kafka.admin import OffsetSpec

from ha_engine.connectors.kafka.ledger import LedgerOptions, Record
from ha_engine.connectors.kafka.sink import KafkaSink, KafkaSinkOptions
from ha_engine.errors import Fenced, SinkUnavailable
from ha_engine.plugins import Claim, Messages, OutputBatch, SinkPlace
from tests.dst.brokers import answer, clients_for, error
from tests.dst.history import History

STEPS = 120
OUTPUT, LEDGER, GROUP = "output", LedgerOptions().topic, "7c0e"
OPTIONS = KafkaSinkOptions.model_validate({"brokers": ["b:9092"], "topic": OUTPUT})
DEPTH_MAX = 3
"""The most calls that happen during one another."""
CLAIM_SECONDS, POLLED_SECONDS = 2.0, 0.1


@dataclass(eq=False)
class Transaction:
    """A transaction of a producer. ``known_in`` are the topics that have its marker."""

    producer: Producer
    is_committed: bool | None = None
    known_in: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Entry:
    transaction: Transaction
    key: bytes | None
    value: bytes


class Brokers:
    """The two topics, and the coordinator of the one transactional id."""

    def __init__(self, history: KafkaSinkHistory) -> None:
        self.history = history
        self.logs: dict[str, list[Entry]] = {OUTPUT: [], LEDGER: []}
        self.newest: Producer | None = None
        self.open: Transaction | None = None

    def append(self, transaction: Transaction, topic: str, key: bytes | None, value: bytes) -> None:
        """Append a record, after the end of the transaction before."""
        if self.open is not transaction:
            self._finish()
            self.open = transaction
        self.logs[topic].append(Entry(transaction, key, value))

    def begin(self, producer: Producer) -> None:
        """Fence the producers before, and end what they have left."""
        self._finish()
        self.newest = producer

    def _finish(self) -> None:
        if self.open is not None:
            self.end(self.open, is_committed=False)
            self.open.known_in |= set(self.logs)
        self.open = None

    def end(self, transaction: Transaction, *, is_committed: bool) -> None:
        """Decide a transaction, unless it is decided."""
        if transaction.is_committed is None:
            transaction.is_committed = is_committed
            if is_committed:
                self.history.judge_commit(transaction)

    def tell_topics(self) -> None:
        """Let one topic get the marker of a decided transaction."""
        if self.open is not None and self.open.is_committed is not None:
            lacking = sorted(set(self.logs) - self.open.known_in)
            self.open.known_in.add(self.history.random.choice(lacking))
            if self.open.known_in == set(self.logs):
                self.open = None

    def stable(self, topic: str) -> int:
        is_open = (
            at for at, e in enumerate(self.logs[topic]) if topic not in e.transaction.known_in
        )
        return next(is_open, len(self.logs[topic]))

    def serving(self) -> AbstractContextManager[None]:
        """Let the engine's code use these brokers."""
        return clients_for(
            "cluster",
            "ledger",
            "sink",
            AdminClient=lambda _: _Admin(self),
            Consumer=lambda _: _Consumer(self),
            Producer=lambda settings: Producer(self, settings["on_delivery"]),
        )


class Producer:
    """A client's producer, of the node that works when it is made."""

    def __init__(self, brokers: Brokers, report: Callable[[Any, Any], None]) -> None:
        self._brokers, self._report = brokers, report
        self.epoch = brokers.history.working[-1].epoch
        self._transaction = Transaction(self)
        self._sent: list[tuple[str, bytes | None, bytes]] = []

    def __len__(self) -> int:
        return len(self._sent)

    def init_transactions(self, _: float) -> None:
        self._brokers.history.interlude()
        self._unless_lost(lambda: self._brokers.begin(self))

    def begin_transaction(self) -> None:
        self._transaction = Transaction(self)

    def produce(self, topic: str, value: bytes, key: bytes | None = None, **_: object) -> None:
        self._sent.append((topic, key, value))

    def poll(self, _: float) -> None:
        """Send what waits."""
        self._brokers.history.interlude()
        sent, self._sent = self._sent, []
        for topic, key, value in sent:
            if self._brokers.newest is not self:
                self._report(error("_FENCED"), None)
                return
            self._brokers.append(self._transaction, topic, key, value)

    def commit_transaction(self, _: float) -> None:
        self._brokers.history.interlude()
        transaction = self._transaction

        def commit() -> None:
            if self._brokers.newest is not self:
                raise confluent_kafka.KafkaException(error("_FENCED"))
            self._brokers.end(transaction, is_committed=True)

        self._unless_lost(commit)

    def abort_transaction(self, _: float) -> None:
        if self._brokers.newest is self:
            self._brokers.end(self._transaction, is_committed=False)

    def purge(self) -> None:
        self._sent.clear()

    def _unless_lost(self, request: Callable[[], None]) -> None:
        """Lose the request or its answer, or let it happen later."""
        history = self._brokers.history
        fate = history.random.random() / max(history.failure_rate, 1e-9)
        if fate < 0.5:
            history.counts["requests without an answer"] += 1
            if fate < 0.2:
                request()
            elif fate < 0.4:
                late = history.random.uniform(0, 3)
                history.agenda.after(late, lambda: history.land(request))
            raise confluent_kafka.KafkaException(error("_TIMED_OUT"))
        request()


class _Admin:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def poll(self, _: float) -> None:
        pass

    def describe_topics(self, asked: Any, **_: object) -> Mapping[str, Future[Any]]:
        self._brokers.history.interlude()
        partitions = [SimpleNamespace(id=0, leader=SimpleNamespace(id=0), replicas=[0], isr=[0])]
        found = SimpleNamespace(topic_id="id", partitions=partitions)
        return {name: answer(found) for name in asked.topic_names}

    def describe_configs(self, asked: Any, **_: object) -> Mapping[Any, Future[Any]]:
        policy = {"cleanup.policy": SimpleNamespace(value="compact")}
        return {one: answer(policy) for one in asked}

    def list_offsets(
        self, asked: Mapping[Any, OffsetSpec], **_: object
    ) -> Mapping[Any, Future[Any]]:
        self._brokers.history.interlude()
        ((place, spec),) = asked.items()
        end = 0 if spec is OffsetSpec.earliest() else len(self._brokers.logs[place.topic])
        return {place: answer(SimpleNamespace(offset=end, leader_epoch=0))}


class _Consumer:
    """Reads committed records."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers, self._topic, self._next = brokers, "", 0

    def assign(self, places: list[Any]) -> None:
        self._topic, self._next = places[0].topic, places[0].offset

    def poll(self, _: float) -> Any:
        self._brokers.history.interlude()
        return self._read()

    def consume(self, *_: object) -> list[Any]:
        """Return the other visible records, and the event at their end."""
        found = [self._read()]
        while found[-1].error() is None:
            found.append(self._read())
        return found

    def _read(self) -> Any:
        at, end = self._next, self._brokers.stable(self._topic)
        while at < end:
            entry, at = self._brokers.logs[self._topic][at], at + 1
            if entry.transaction.is_committed:
                self._next = at
                return _message(None, at - 1, entry.key, entry.value)
        self._next = end
        return _message(error("_PARTITION_EOF"), end, None, None)

    def close(self) -> None:
        pass


def _message(problem: Any, offset: int, key: bytes | None, value: bytes | None) -> Any:
    return SimpleNamespace(
        error=lambda: problem, offset=lambda: offset, key=lambda: key, value=lambda: value
    )


class Node:
    """A node with its sink, which publishes until the ledger has a later epoch."""

    def __init__(self, history: KafkaSinkHistory, name: str) -> None:
        self.history, self.name = history, name
        self.sink = KafkaSink(OPTIONS, SinkPlace("group", "query", "sink", lambda *_: None))
        self.epoch, self.batch, self.is_busy = 0, -1, False

    def become_active(self) -> None:
        self.history.epoch += 1
        self.epoch, self.batch = self.history.epoch, -1
        self.history.counts["takeovers"] += 1
        self.history.tell(f"{self.name} is active under epoch {self.epoch}")

    def work(self) -> None:
        """Claim the sink, or deliver the next batch."""
        history = self.history
        if not self.epoch or self.is_busy:
            return
        self.is_busy = True
        history.working.append(self)
        try:
            if self.batch < 0:
                self.batch = self._claim()
            else:
                self._deliver(self.batch + 1)
                self.batch += 1
        except SinkUnavailable as unavailable:
            history.tell(f"{self.name}: {unavailable}")
            history.counts["calls that failed"] += 1
            self.batch = -1
        except Fenced as fenced:
            history.tell(f"{self.name}: {fenced}")
            history.require(fenced.epoch > self.epoch, "fenced by no later epoch")
            history.counts["fenced"] += 1
            self.epoch = 0
        finally:
            history.working.pop()
            self.is_busy = False

    def _claim(self) -> int:
        left = CLAIM_SECONDS

        def remaining() -> float:
            nonlocal left
            left -= POLLED_SECONDS
            return left

        epoch = self.epoch
        batch = self.sink.claim(Claim(epoch, 0, GROUP, remaining))
        self.history.tell(f"{self.name} has claimed under epoch {epoch}, after batch {batch}")
        self.history.claimed = max(self.history.claimed, epoch)
        return batch

    def _deliver(self, number: int) -> None:
        messages = Messages([b"%d" % number for _ in range(number % 3)])
        rows = len(messages.values)
        read = SimpleNamespace  # a sink of messages reads no table
        self.sink.deliver(OutputBatch(number, rows, "key", read, lambda: 60.0, lambda: messages))


class KafkaSinkHistory(History):
    def __init__(self, seed: int, root: Path) -> None:
        super().__init__(seed, root)
        self.brokers = Brokers(self)
        self.epoch = self.claimed = 0
        self.working: list[Node] = []
        self.failure_rate = self.random.choice([0.0, 0.2, 0.5])
        self.silent = False
        self.nodes = [Node(self, name) for name in "ab"]

    def play(self) -> None:
        with self.brokers.serving():
            for _ in range(STEPS):
                self._step()
                self.wait(0.1)
            self._heal()

    def _step(self) -> None:
        node = self.random.choice(self.nodes)
        if self.random.random() < 0.05 and not node.is_busy:
            node.become_active()
        else:
            node.work()

    def interlude(self) -> None:
        """Let something happen before a call of the engine reaches the brokers."""
        self.agenda.run_until(self.agenda.now + self.random.uniform(0, 0.2))
        self.brokers.tell_topics() if self.random.random() < 0.7 else None
        if not self.silent and len(self.working) < DEPTH_MAX and self.random.random() < 0.1:
            self.counts["calls during another one"] += 1
            self._step()

    def land(self, request: Callable[[], None]) -> None:
        """Let a request happen whose caller no longer waits."""
        self.counts["late requests"] += 1
        try:
            request()
        except confluent_kafka.KafkaException:
            self.counts["late requests refused"] += 1

    def judge_commit(self, transaction: Transaction) -> None:
        epoch = transaction.producer.epoch
        self.counts["transactions"] += 1
        self.require(epoch >= self.claimed, f"epoch {epoch} commits after {self.claimed} claimed")
        records = [one for one in self.brokers.logs[LEDGER] if one.transaction.is_committed]
        ledger = Record.parse(records[-1].value, LEDGER)
        found = [
            int(one.value) for one in self.brokers.logs[OUTPUT] if one.transaction.is_committed
        ]
        want = [number for number in range(1, ledger.batch + 1) for _ in range(number % 3)]
        self.require(found == want, f"the topic has {found} at batch {ledger.batch}")

    def _heal(self) -> None:
        self.silent, self.failure_rate = True, 0.0
        self.wait(10)
        node = self.nodes[0]
        node.become_active()
        for _ in range(10):
            node.work()
        self.require(node.batch > 0, "nothing is published")
        self.counts["batches"] += node.batch
