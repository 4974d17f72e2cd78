"""Ask the brokers about a topic: its id, its partitions, and their first and last offset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ha_engine.connectors.kafka.errors import Failures, LastError
from ha_engine.connectors.kafka.offsets import UNKNOWN
from ha_engine.connectors.kafka.options import ClusterOptions, settings
from ha_engine.connectors.library import library

CALL_TIMEOUTS = 3
"""The limit of a call, in timeouts of its requests. A call may have several requests."""
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of every topic of a broker that has no ids, which are part of Kafka since 2.8."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as a broker describes it.

    ``identity`` differs between a topic and a later topic of the same name. ``led`` are the
    partitions that have a leader, of the ``partitions`` partitions. Each partition has at least
    ``replicas`` replicas. In ``under_replicated`` partitions some of them are not in sync.
    """

    name: str
    identity: tuple[str, str]
    partitions: int
    led: frozenset[int]
    replicas: int = 1
    under_replicated: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """An offset, and the epoch of the leader that answered it, or UNKNOWN."""

    offset: int
    epoch: int


class Cluster:
    """The connection for questions. Every method blocks for at most a few times
    ``options.timeout``, and raises the errors of ``failures``.

    After a failure, the next question gets a new client: when a broker died, a client sometimes
    answers no call that was under way, or asks that broker and no other one for ever.
    """

    def __init__(self, options: ClusterOptions, failures: Failures) -> None:
        self._options, self._failures = options, failures
        self._kafka: Any = library("confluent_kafka", "kafka", failures.refused)
        self._api: Any = library("confluent_kafka.admin", "kafka", failures.refused)
        self._last = LastError()
        self._made = self._new_client()

    def _new_client(self) -> Any:
        try:
            return self._api.AdminClient(settings(self._options) | {"error_cb": self._last.note})
        except self._kafka.KafkaException as error:
            raise self._failures.of_options(error, self._options) from error

    @property
    def _client(self) -> Any:
        if self._made is None:
            self._last.clear()
            self._made = self._new_client()
        return self._made

    def topic(self, name: str) -> Topic:
        """Describe the topic ``name``."""
        asked = self._kafka.TopicCollection([name])
        described = self._client.describe_topics(asked, request_timeout=self._options.timeout)
        found = self._answer(described[name], f"topic {name} cannot be described")
        parts = {one.id: one.leader for one in found.partitions}
        identity = ("topic_id", str(found.topic_id))
        if found.topic_id is None or identity[1] == _NO_ID:
            identity = ("cluster_id", self.cluster_id())
        led = frozenset(number for number, leader in parts.items() if _exists(leader))
        replicas = min((len(one.replicas) for one in found.partitions), default=0)
        behind = sum(len(one.isr) < len(one.replicas) for one in found.partitions)
        return Topic(name, identity, len(parts), led, replicas, behind)

    def first(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """The first offset that each of the partitions still has."""
        found = self._offsets(topic, partitions, self._api.OffsetSpec.earliest(), committed=False)
        return {number: one.offset for number, one in found.items()}

    def last(
        self, topic: str, partitions: Collection[int], *, committed: bool = False
    ) -> dict[int, int]:
        """The offset after the last replicated record of each of the partitions.

        With ``committed``, it is the offset of the first record of an open transaction, if there is
        one before.
        """
        found = self._offsets(topic, partitions, self._api.OffsetSpec.latest(), committed=committed)
        return {number: one.offset for number, one in found.items()}

    def committed_ends(self, topic: str, partitions: Collection[int]) -> dict[int, End]:
        """The offsets of ``last`` with ``committed``, and the epoch of each leader."""
        return self._offsets(topic, partitions, self._api.OffsetSpec.latest(), committed=True)

    def settings_of(self, topic: str) -> dict[str, str]:
        """The configuration of the topic."""
        resource = self._api.ConfigResource(self._api.ResourceType.TOPIC, topic)
        asked = self._client.describe_configs([resource], request_timeout=self._options.timeout)
        found = self._answer(asked[resource], f"the configuration of topic {topic} is unknown")
        return {name: one.value for name, one in found.items()}

    def create(self, topic: str, replication: int, config: Mapping[str, str]) -> None:
        """Create the topic with one partition, if it does not exist."""
        new = self._api.NewTopic(
            topic, num_partitions=1, replication_factor=replication, config=dict(config)
        )
        made = self._client.create_topics([new], request_timeout=self._options.timeout)
        error = self._error(made[topic])
        if error is not None and error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise self._failure(error, f"topic {topic} cannot be created") from error

    def has(self, topic: str) -> bool:
        """Whether the topic exists."""
        asked = self._kafka.TopicCollection([topic])
        described = self._client.describe_topics(asked, request_timeout=self._options.timeout)
        error = self._error(described[topic])
        if error is not None and error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
            raise self._failure(error, f"topic {topic} cannot be described") from error
        return error is None

    def cluster_id(self) -> str:
        """The id of the cluster."""
        return str(self._described().cluster_id)

    def brokers(self) -> int:
        """The number of brokers that run."""
        return len(self._described().nodes)

    def _described(self) -> Any:
        asked = self._client.describe_cluster(request_timeout=self._options.timeout)
        return self._answer(asked, "the cluster cannot be described")

    def _offsets(
        self, topic: str, partitions: Collection[int], spec: Any, *, committed: bool
    ) -> dict[int, End]:
        if not partitions:
            return {}
        level = self._kafka.IsolationLevel
        asked = self._client.list_offsets(
            {self._kafka.TopicPartition(topic, number): spec for number in partitions},
            isolation_level=level.READ_COMMITTED if committed else level.READ_UNCOMMITTED,
            request_timeout=self._options.timeout,
        )
        found = dict[int, End]()
        for one, answer in asked.items():
            place = f"topic {topic}, partition {one.partition}"
            result = self._answer(answer, f"the offsets of {place}, are unknown")
            if result.offset < 0:  # without an error, while the partition has no leader
                self._made = None
                raise self._failures.unavailable(f"{place}, has no leader that knows its offsets")
            epoch = UNKNOWN if result.leader_epoch is None else result.leader_epoch
            found[one.partition] = End(result.offset, epoch)
        return found

    def _answer(self, asked: Future[Any], problem: str) -> Any:
        if error := self._error(asked):
            raise self._failure(error, problem) from error
        self._client.poll(0)  # otherwise errors of connections would pile up
        self._last.clear()
        return asked.result()

    def _error(self, asked: Future[Any]) -> BaseException | None:
        """Wait for an answer. Return the error of Kafka, or None.

        The wait has its own limit, since the client may never answer.

        An error that ``result`` raises would have a traceback, and so refer to its own future. Such
        a cycle would keep the threads of clients until the garbage collector finds it.
        """
        seconds = CALL_TIMEOUTS * self._options.timeout
        try:
            error = asked.exception(seconds)
        except TimeoutError:
            self._made = None
            raise self._failures.unavailable(
                f"the client of Kafka gave no answer within {seconds:g} s; it is made again"
            ) from None
        if error is None or isinstance(error, self._kafka.KafkaException):
            return error
        raise error

    def _failure(self, error: Any, problem: str) -> Exception:
        """The error of a call. A call that times out tells no reason, but the connections do."""
        self._client.poll(0)
        self._made = None
        last = self._last.error
        if error.args[0].name() in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN") and last:
            return self._failures.of(last, f"{problem} by {self._options.brokers[0]}")
        return self._failures.of(error, f"{problem} by {self._options.brokers[0]}")


def _exists(leader: Any) -> bool:
    return leader is not None and leader.id >= 0
