"""The ledger of Kafka sinks: a compacted topic with one record for each group, query and sink.

The transaction that writes the rows of a batch also writes the ledger record, so the rows are there
if and only if the ledger names their batch.

All records are in partition 0, whatever other partitions the topic has, so that no change of the
topic can hide a record. The price is a short wait: a reader of committed records cannot pass the
open transaction of another sink. Each of these ends by a commit, by the next claim of its sink, or
by its timeout. A group that must not wait for others has a ledger topic of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ha_engine.connectors.kafka.cluster import Cluster
from ha_engine.connectors.kafka.errors import SINK, LastError
from ha_engine.connectors.kafka.options import ClusterOptions, TopicName, settings
from ha_engine.connectors.library import library
from ha_engine.errors import SinkRefused, SinkUnavailable

PARTITION = 0
MESSAGES = 1_000
POLL_SECONDS = 0.1
LEADER_SECONDS = 0.05
"""A new topic gets its leader within some of these pauses."""

_CONFIG = {
    "cleanup.policy": "compact",
    "unclean.leader.election.enable": "false",
    # The broker compacts only closed segments. Small ones keep the time of a claim short.
    "segment.bytes": str(1 << 20),
    "segment.ms": str(3_600_000),
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": str(3_600_000),
}


class LedgerOptions(BaseModel):
    """The ledger topic. A claim creates ``topic`` if it does not exist, with ``replication``
    replicas, ``min_insync_replicas`` of which must have a record before it counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: TopicName = "ha-engine-ledger"
    replication: Annotated[int, Field(ge=1, le=32_767)] = 3
    min_insync_replicas: Annotated[int, Field(ge=1)] = 2


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the ledger: the last batch of a sink, and the epoch that may write the next."""

    group_id: str
    epoch: int
    batch: int

    @classmethod
    def parse(cls, value: bytes, where: str) -> Record:
        """Raises SinkRefused if ``value`` is no record of a ledger."""
        try:
            read = json.loads(value)
            return cls(str(read["group_id"]), int(read["epoch"]), int(read["batch"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SinkRefused(
                f"the record at {where} is none of a ledger; name another topic in ledger.topic"
            ) from error

    @property
    def value(self) -> bytes:
        """The record as a message."""
        written = {"group_id": self.group_id, "epoch": self.epoch, "batch": self.batch}
        return json.dumps(written, separators=(",", ":")).encode()


def key_of(group: str, query: str, sink: str) -> bytes:
    """The key of a sink's record."""
    return json.dumps([group, query, sink], separators=(",", ":")).encode()


def divided(key: bytes) -> tuple[bytes, bytes]:
    """The sink of a key without its bucket, and its number of buckets, empty if it has none."""
    sink, _, bucket = key.removesuffix(b'"]').partition(b"#")
    return sink, bucket.rpartition(b"/")[2]


def require_topic(cluster: Cluster, options: LedgerOptions, remaining: Callable[[], float]) -> int:
    """Create the ledger topic, or check that it keeps its records. Return its first offset."""
    if cluster.has(options.topic):
        require_compacted(cluster, options)
        return _first(cluster, options.topic)
    config = _CONFIG | {"min.insync.replicas": str(options.min_insync_replicas)}
    cluster.create(options.topic, options.replication, config)
    while True:
        try:
            return _first(cluster, options.topic)
        except (SinkRefused, SinkUnavailable) as error:
            # A broker that knows no new topic, or a leader that does not know its new part yet.
            if remaining() <= 0:
                raise SinkUnavailable(
                    f"the leader of the new topic {options.topic} does not answer yet: {error}"
                ) from error
        time.sleep(LEADER_SECONDS)


def _first(cluster: Cluster, topic: str) -> int:
    return cluster.first(topic, [PARTITION])[PARTITION]


def require_compacted(cluster: Cluster, options: LedgerOptions) -> None:
    """Raise SinkRefused if the broker deletes old records of the ledger topic."""
    policy = cluster.settings_of(options.topic).get("cleanup.policy")
    if policy != "compact":
        raise SinkRefused(
            f"topic {options.topic} has cleanup.policy={policy}, so the ledger would expire; set "
            "cleanup.policy=compact, or name another topic in ledger.topic"
        )


class LedgerReader:
    """Reads the record of one sink from ``first``, the first offset of the ledger. ``record`` is
    the last one that was read, or None. ``divides_otherwise`` says whether the sink has a record
    with another number of buckets, or with none.

    librdkafka could look up the first offset itself, but tries that only every half second.
    """

    def __init__(
        self, options: ClusterOptions, ledger: LedgerOptions, key: bytes, first: int
    ) -> None:
        self.record: Record | None = None
        self.divides_otherwise = False
        self._divided = divided(key)
        self._key, self._topic, self._next = key, ledger.topic, first
        self._kafka: Any = library("confluent_kafka", "kafka", SinkRefused)
        self._last = LastError()
        try:
            self._consumer = self._kafka.Consumer(
                settings(options)
                | {
                    "group.id": "ha-engine-ledger",  # librdkafka demands a name; nothing uses it
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 10,
                    "error_cb": self._last.note,
                }
            )
            self._consumer.assign([self._kafka.TopicPartition(self._topic, PARTITION, first)])
        except self._kafka.KafkaException as error:
            raise SINK.of_options(error, options) from error

    def read_visible(self, remaining: Callable[[], float]) -> None:
        """Read to the first open transaction, or to the end."""
        self._read(lambda at_end: at_end, remaining, "the end")

    def read_to(self, end: int, remaining: Callable[[], float]) -> None:
        """Read all records before the offset ``end``.

        Raises SinkUnavailable if an open transaction before ``end`` lasts longer than
        ``remaining()`` seconds.
        """
        self._read(lambda _: self._next >= end, remaining, f"offset {end}")

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _read(self, done: Callable[[bool], bool], remaining: Callable[[], float], end: str) -> None:
        at_end = False
        while not done(at_end):
            if (left := remaining()) <= 0:
                raise self._late(end)
            message = self._consumer.poll(min(POLL_SECONDS, left))
            if message is None:
                if self._last.stops_all:
                    raise SINK.of(self._last.error, f"topic {self._topic} cannot be read")
                continue
            for one in (message, *self._consumer.consume(MESSAGES, 0)):
                at_end = self._take(one) or at_end

    def _take(self, message: Any) -> bool:
        """Return whether the message is the event at the end of what is visible now."""
        error = message.error()
        if error is None:
            if message.key() == self._key:
                where = f"{self._topic}, partition {PARTITION}, offset {message.offset()}"
                self.record = Record.parse(message.value() or b"", where)
            elif message.value() is not None:
                sink, buckets = divided(message.key() or b"")
                if sink == self._divided[0] and buckets != self._divided[1]:
                    self.divides_otherwise = True
            self._next = message.offset() + 1
            return False
        if error.name() == "_PARTITION_EOF":
            self._next = max(self._next, message.offset())
            return True
        if error.name() == "GROUP_AUTHORIZATION_FAILED":
            return False
        raise SINK.of(error, f"topic {self._topic}, partition {PARTITION}, cannot be read")

    def _late(self, end: str) -> SinkUnavailable:
        return SinkUnavailable(
            f"topic {self._topic}, partition {PARTITION}, could be read only to offset "
            f"{self._next}, and not to {end} in time; if that lasts, a transaction of another "
            "program is open there: find and abort it with kafka-transactions"
        )
