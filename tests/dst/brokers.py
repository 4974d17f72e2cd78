"""Simulated brokers with one topic, behind the interface of Kafka's client library.

A partition has three replicas. What a leader has appended counts once all replicas in sync have
it: that is the *high watermark*. The *last stable offset* is the first record of a transaction
whose end does not count yet, or the high watermark. Each leader has an epoch of its own.

Brokers die, and a replica in sync becomes leader. If the topic permits it, a replica that is not in
sync becomes leader too, and the others drop what it lacks. A leader that its controller no longer
reaches goes on answering from its own log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import confluent_kafka
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

REPLICAS = 3
IN_SYNC_MIN = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with an event, or without one the marker that ends a transaction."""

    epoch: int
    event: int | None
    transaction: int | None = None
    committed: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """The knowledge of a leader: its log, the high watermark, and its epoch."""

    log: tuple[Entry, ...]
    high: int
    epoch: int

    @property
    def stable(self) -> int:
        """The last stable offset."""
        replicated = self.log[: self.high]
        ended = {one.transaction for one in replicated if one.event is None} | {None}
        is_open = (at for at, one in enumerate(replicated) if one.transaction not in ended)
        return next(is_open, self.high)

    def events(self, start: int, end: int) -> tuple[int, ...]:
        """The events that a reader of committed records finds from ``start`` up to ``end``."""
        aborted = {one.transaction for one in self.log if one.event is None and not one.committed}
        return tuple(
            one.event
            for one in self.log[start:end]
            if one.event is not None and (one.transaction is None or one.transaction not in aborted)
        )

    def end_of(self, epoch: int) -> int:
        """The offset at which the records of later epochs begin."""
        later = (at for at, one in enumerate(self.log) if one.epoch > epoch)
        return next(later, len(self.log))


def _same(log: list[Entry], other: list[Entry]) -> int:
    """The offset at which two logs begin to differ."""
    pairs = enumerate(zip(log, other, strict=False))
    return next((at for at, (one, two) in pairs if one != two), min(len(log), len(other)))


class Partition:
    """The replicas of a partition. ``first`` is the first offset that retention has left."""

    def __init__(self) -> None:
        self.logs: list[list[Entry]] = [[] for _ in range(REPLICAS)]
        self.alive = set(range(REPLICAS))
        self.in_sync = set(range(REPLICAS))
        self.leader: int | None = 0
        self._last_leader = 0
        self.epoch = self.high = self.first = self._epoch_start = 0
        # A former leader that does not know of its successor.
        self.deposed: View | None = None
        # The highest end of which a node may know, and whether records before it were lost.
        self.answered, self.was_truncated = 0, False

    @property
    def log(self) -> list[Entry]:
        assert self.leader is not None
        return self.logs[self.leader]

    @property
    def view(self) -> View:
        return View(tuple(self.log), self.high, self.epoch)

    @property
    def knows_its_end(self) -> bool:
        """Whether the leader answers where the partition ends (KIP-207)."""
        return self.leader is not None and self.high >= self._epoch_start

    @property
    def is_writable(self) -> bool:
        return self.leader is not None and len(self.in_sync) >= IN_SYNC_MIN

    def append(self, event: int | None, transaction: int | None = None, *, ok: bool = True) -> int:
        self.log.append(Entry(self.epoch, event, transaction, ok))
        return len(self.log) - 1

    def fill(self, events: list[int], first: int) -> None:
        """Let the partition begin with ``events``, of which retention has left those from ``first``
        on."""
        for log in self.logs:
            log += [Entry(self.epoch, event) for event in events]
        self.high, self.first = len(self.log), first

    def replicate(self, random: Random) -> None:
        """Let one replica fetch some records."""
        others = sorted(self.alive - {self.leader})
        if self.leader is None or not others:
            return
        replica = random.choice(others)
        same = _same(self.logs[replica], self.log)
        self.logs[replica] = self.log[: same + random.randint(1, 6)]
        if len(self.logs[replica]) >= max(self.high, self._epoch_start):
            self.in_sync.add(replica)
        self._advance()

    def _advance(self) -> None:
        ends = [len(self.logs[one]) for one in self.in_sync]
        self.high = max(self.high, min(ends))

    def kill(self, replica: int) -> None:
        """Let the broker of a replica die, or lose its controller if it leads."""
        self.alive.discard(replica)
        if len(self.in_sync) > 1:
            self.in_sync.discard(replica)
        if self.leader == replica:
            self.leader = None
        elif self.leader is not None:
            self._advance()

    def depose(self) -> None:
        """Let the controller lose the leader, which does not notice it."""
        if self.leader is not None and self.knows_its_end and len(self.in_sync) > 1:
            self.deposed = self.view
            self.kill(self.leader)

    def start(self, replica: int) -> None:
        self.alive.add(replica)

    def elect(self, random: Random, *, unclean: bool) -> None:
        """Elect a leader if there is none.

        An unclean leader lacks records here, and never has other ones in their place, and the
        former leader answers no more. Kafka's readers cannot always notice that: they compare where
        an epoch ends (KIP-320), and the log of an earlier leader may end later.
        """
        clean = sorted(self.alive & self.in_sync)
        candidates = clean or (sorted(self.alive) if unclean else [])
        if self.leader is not None or not candidates:
            return
        before, self.leader = self.logs[self._last_leader], random.choice(candidates)
        self._last_leader = self.leader
        self.epoch += 1
        if clean:
            for replica in clean:
                del self.logs[replica][_same(self.logs[replica], self.log) :]
            # The new leader learns of the high watermark when the others fetch from it.
            self.high = random.randint(self.first, self.high)
        else:
            del self.log[_same(self.log, before) :]
            self.in_sync, self.deposed = {self.leader}, None
            self.was_truncated = self.was_truncated or len(self.log) < self.answered
            self.high = len(self.log)
            self.first = min(self.first, self.high)
        self._epoch_start = len(self.log)


class Topic:
    """The partitions of a topic of this id."""

    def __init__(self, number: int, partitions: int) -> None:
        self.identity = f"id-{number}"
        self.partitions = [Partition() for _ in range(partitions)]


@dataclass
class Brokers:
    """The cluster, as programs and faults use it.

    ``interlude`` runs before each answer. ``outage`` is the share of calls that get no answer.
    ``answers`` has the view from which each partition's last end was answered, and ``firsts`` the
    last answer about its first offset.
    """

    random: Random
    counts: Counter[str]
    interlude: Callable[[], None]
    outage: float = 0.0
    topics: int = 1
    topic: Topic = field(init=False)
    answers: dict[int, tuple[str, View]] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.topic = Topic(1, self.random.randint(1, 3))

    def recreate(self) -> None:
        self.topics += 1
        self.topic = Topic(self.topics, len(self.topic.partitions))

    def asked(self, number: int) -> View | None:
        """Return the view of the broker that answers a question about a partition, or None."""
        partition = self.topic.partitions[number]
        if partition.deposed is not None and self.random.random() < 0.3:
            self.counts["answers of deposed leaders"] += 1
            return partition.deposed
        return partition.view if partition.knows_its_end else None

    def is_away(self) -> bool:
        self.interlude()
        return self.random.random() < self.outage

    def serving(self) -> AbstractContextManager[None]:
        """Let the engine's code use these brokers."""
        return clients_for(
            "cluster",
            "history",
            AdminClient=lambda _: _Admin(self),
            Consumer=lambda _: _Consumer(self),
        )


@contextmanager
def clients_for(*modules: str, **clients: Callable[..., Any]) -> Iterator[None]:
    """Let these modules of the engine's connector make ``clients`` in place of those of Kafka's
    library. A client that is not given cannot be made."""
    library = SimpleNamespace(
        KafkaException=confluent_kafka.KafkaException,
        TopicPartition=confluent_kafka.TopicPartition,
        TopicCollection=confluent_kafka.TopicCollection,
        IsolationLevel=confluent_kafka.IsolationLevel,
        OffsetSpec=OffsetSpec,
        ConfigResource=ConfigResource,
        ResourceType=ResourceType,
        **clients,
    )
    with ExitStack() as stack:
        for module in modules:
            place = f"ha_engine.connectors.kafka.{module}.library"
            stack.enter_context(patch(place, lambda *_: library))
        yield


class _Unanswered(Future[Any]):
    """The future of a call that the client never answers."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        raise TimeoutError


def error(name: str) -> confluent_kafka.KafkaError:
    """The error of Kafka of this name."""
    return confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name))


def answer(result: object) -> Future[Any]:
    """The future of a call that is over, with its result or its error."""
    future = Future[Any]()
    if isinstance(result, confluent_kafka.KafkaError):
        future.set_exception(confluent_kafka.KafkaException(result))
    else:
        future.set_result(result)
    return future


class _Admin:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def poll(self, _: float) -> None:
        pass

    def _fails(self) -> Future[Any] | None:
        brokers = self._brokers
        if not brokers.is_away():
            return None
        brokers.counts["calls without an answer"] += 1
        return brokers.random.choice([_Unanswered(), answer(error("_TIMED_OUT"))])

    def describe_topics(self, asked: Any, **_: object) -> Mapping[str, Future[Any]]:
        topic = self._brokers.topic
        found = SimpleNamespace(
            topic_id=topic.identity,
            partitions=[
                SimpleNamespace(
                    id=number,
                    leader=None if one.leader is None else SimpleNamespace(id=one.leader),
                    replicas=range(REPLICAS),
                    isr=range(REPLICAS),
                )
                for number, one in enumerate(topic.partitions)
            ],
        )
        (name,) = asked.topic_names
        return {name: self._fails() or answer(found)}

    def list_offsets(
        self, asked: Mapping[Any, OffsetSpec], isolation_level: Any, **_: object
    ) -> Mapping[Any, Future[Any]]:
        failed = self._fails()
        if failed is not None:
            return dict.fromkeys(asked, failed)
        committed = isolation_level == confluent_kafka.IsolationLevel.READ_COMMITTED
        return {
            place: answer(self._offset(place.partition, spec, committed=committed))
            for place, spec in asked.items()
        }

    def _offset(self, number: int, spec: OffsetSpec, *, committed: bool) -> object:
        brokers = self._brokers
        if number >= len(brokers.topic.partitions):
            return error("UNKNOWN_TOPIC_OR_PART")
        partition = brokers.topic.partitions[number]
        if spec is OffsetSpec.earliest():
            if partition.leader is None:
                return error("LEADER_NOT_AVAILABLE")
            brokers.firsts[number] = partition.first
            return SimpleNamespace(offset=partition.first, leader_epoch=None)
        view = brokers.asked(number)
        if view is None:
            none = SimpleNamespace(offset=-1, leader_epoch=None)
            return brokers.random.choice([error("OFFSET_NOT_AVAILABLE"), none])
        end = view.stable if committed else view.high
        brokers.answers[number] = brokers.topic.identity, view
        partition.answered = max(partition.answered, end)
        return SimpleNamespace(offset=end, leader_epoch=view.epoch)


class _Consumer:
    """Compares positions with the history of the leaders."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers, self._places = brokers, list[Any]()

    def assign(self, places: list[Any]) -> None:
        self._places = list(places)

    def seek(self, place: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def poll(self, _: float) -> Any:
        if self._brokers.is_away():
            return None
        place = self._places.pop(0)
        partitions = self._brokers.topic.partitions
        view = self._brokers.asked(place.partition) if place.partition < len(partitions) else None
        if view is None or view.epoch < place.leader_epoch:
            return None  # the client looks for the leader until its time is over
        changed = view.end_of(place.leader_epoch) < place.offset
        found = error("_AUTO_OFFSET_RESET" if changed else "_PARTITION_EOF")
        return SimpleNamespace(error=lambda: found, partition=lambda: place.partition)
