"""A topic that is the log of a stream: its events stay in Kafka, and Spark's executors read them.

``KafkaLog`` reads no events. It asks the brokers where each partition ends, and returns these
offsets as the offset of a batch, with the number of events before them. The journal keeps them, so
every node runs the same batches.

A partition ends at its last stable offset, so a batch has no record of an open transaction. The
first batch has the offsets where the log begins, and no events.

What the source kind ``kafka`` refuses, a log refuses too: a topic that was created again, records
that are gone, and a partition that ends before the journal's offset, or that ended before it since.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator

from ha_engine.connectors.kafka.cluster import Cluster, End, Topic
from ha_engine.connectors.kafka.errors import SOURCE
from ha_engine.connectors.kafka.history import require_history
from ha_engine.connectors.kafka.offsets import UNKNOWN, Positions
from ha_engine.connectors.kafka.options import ClusterOptions, protocol
from ha_engine.connectors.streams import parsed_position
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Backlog, SourceBatch, SourcePlace

POLL_SECONDS = 60
"""The time that a task of Spark waits for a record. Kafka's client then waits as long again to ask
where the partition begins, and fails the task if no broker answers."""
LOOK_SECONDS = 0.05
"""The pause between two questions about the ends of an idle topic."""


class KafkaLogOptions(ClusterOptions):
    """The options of a stream's log, besides those of the connection.

    ``partition_by`` are the columns whose values are the key of a record that a receiver writes.
    Records with equal keys are in one partition, in order. ``invalid`` says whether a record that
    is no event of the stream fails the query or is skipped. With ``deduplicate``, queries drop the
    events that a receiver has stored twice. With ``journal``, nodes take events too, and keep them
    in the journal, so that a stream can move without losing the state of its queries.

    Spark's reader is another client than librdkafka, so ``client`` has no settings for both.
    """

    partition_by: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    invalid: Literal["fail", "skip"] = "fail"
    deduplicate: bool = False
    journal: bool = False

    @model_validator(mode="after")
    def _is_for_both_clients(self) -> KafkaLogOptions:
        if self.client:
            raise ValueError("a log has no settings of librdkafka; remove client")
        if self.sasl is not None and self.sasl.password is None:
            raise ValueError(f"a log has no credentials of {self.sasl.mechanism}; use SCRAM")
        return self


class KafkaLog:
    """Implements ``plugins.SourcePlugin``."""

    Options: ClassVar[type[BaseModel]] = KafkaLogOptions
    guarantee: ClassVar[str] = (
        "exactly once: the journal has the end of each partition, and only committed records count"
    )

    def __init__(self, options: KafkaLogOptions, place: SourcePlace) -> None:
        self._options, self._place = options, place
        self._cluster: Cluster | None = None
        self._positions = Positions(options.topic, ("", ""))
        self._is_begun = False

    def open(self, offset: str | None) -> None:
        self._cluster = cluster = Cluster(self._options, SOURCE)
        topic = cluster.topic(self._options.topic)
        self._is_begun = offset is not None
        if offset is None:
            self._positions = self._beginning(cluster, topic)
            return
        self._positions = parsed_position(
            Positions.parse, offset, self._options.topic, self._place.source
        )
        _require_same(self._positions, topic, self._options)
        first = cluster.first(topic.name, sorted(topic.led))
        for number, at in enumerate(self._positions.next):
            # Queries may still need older records; their tasks say so if these are gone.
            if at < first.get(number, 0):
                reason = f"the records before offset {first[number]} were deleted"
                raise _lost(self._positions, number, reason, self._options)

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        if not self._is_begun:
            self._is_begun = True
            return SourceBatch(self._positions.text)
        until = time.monotonic() + seconds
        while (batch := self._grown(rows_max)) is None and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        return batch

    def close(self) -> None:
        self._cluster = None

    def check(self) -> None:
        """Ask for the topic."""
        Cluster(self._options, SOURCE).topic(self._options.topic)

    def _beginning(self, cluster: Cluster, topic: Topic) -> Positions:
        numbers = range(topic.partitions)
        if missing := sorted(set(numbers) - topic.led):
            raise SourceUnavailable(
                f"partition {missing[0]} of {self._options.where} has no leader, so its first "
                "offset is unknown"
            )
        first = cluster.first(topic.name, numbers)
        offsets = [first[number] for number in numbers]
        return Positions(topic.name, topic.identity, offsets, [UNKNOWN] * len(offsets))

    def _grown(self, rows_max: int) -> SourceBatch | None:
        """The next batch of at most ``rows_max`` events, or None if no partition grew.

        The topic is described after its ends are known: ids are never used again, so the ends are
        of this topic if the id is still the same.
        """
        if self._cluster is None:
            raise SourceUnavailable(f"{self._options.where} is not open")
        before = self._positions
        known = range(len(before.next))
        ends = self._cluster.committed_ends(self._options.topic, known)
        topic = self._cluster.topic(self._options.topic)
        _require_same(before, topic, self._options)
        _require_history(before, ends, self._options)
        after = _between(before.next, [ends[number].offset for number in known], rows_max)
        kept = sum(after) - sum(before.next)
        if not kept and topic.partitions == len(before.next):
            return None
        self._positions = Positions(before.topic, topic.identity, after, before.epochs)
        self._positions.add(topic.partitions)
        left = sum(end.offset for end in ends.values()) - sum(after)
        return SourceBatch(self._positions.text, backlog=Backlog(events=left), kept=kept)


class TopicIdentity:
    """Whether the topic is still the one that the journal's offsets are of, with the same records.

    Kafka tells no reader that a topic was deleted and created again, or that a leader lost records
    and got others. An id is never used again, and neither is an epoch. So a batch that was read, if
    the topic then has the id and the history of the journal's offset, has the records of the mark.
    """

    def __init__(self, options: KafkaLogOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._cluster: Cluster | None = None
        self._known: Positions | None = None

    def require(self, offset: str) -> None:
        """Ask the brokers. Raises SourceRefused if it is another topic or another history, and
        SourceUnavailable."""
        # The queries ask in threads. A client that one thread replaces answers no other thread.
        with self._lock:
            self._require(offset)

    def _require(self, offset: str) -> None:
        if self._cluster is None:
            self._cluster = Cluster(self._options, SOURCE)
        known = Positions.parse(offset)
        if self._known is not None and self._known.next == known.next:
            known.epochs = self._known.epochs  # of leaders that had these records too
        ends = self._cluster.committed_ends(known.topic, range(len(known.next)))
        _require_same(known, self._cluster.topic(self._options.topic), self._options)
        _require_history(known, ends, self._options)
        self._known = known


def _require_same(known: Positions, topic: Topic, options: KafkaLogOptions) -> None:
    kind, identity = known.identity
    if (kind, identity) != topic.identity:
        raise SourceRefused(
            f"the journal's offset is of topic {known.topic} with {kind} {identity}, and "
            f"{options.where} has {topic.identity[0]} {topic.identity[1]}: it was deleted and "
            "created again, or belongs to another cluster; give the stream a new name to begin "
            "with this topic"
        )


def _require_history(known: Positions, ends: Mapping[int, End], options: KafkaLogOptions) -> None:
    """Require that each partition still has the records before its position, and note the epochs of
    the leaders in ``known``.

    A leader only appends, so nothing has changed while the epoch is the same. A leader that its
    controller does not reach may not know of its successor, and may lack the newest records.
    """
    for number, end in ends.items():
        if UNKNOWN < end.epoch < known.epochs[number]:
            raise SourceUnavailable(
                f"{options.where}, partition {number}: the leader of epoch {end.epoch} answered, "
                f"and epoch {known.epochs[number]} is known; the next question may reach its leader"
            )
        if end.offset < known.next[number] and known.epochs[number] == UNKNOWN:
            # Where the log begins, no leader has been known, so this may be one of former times.
            raise SourceUnavailable(
                f"{options.where}, partition {number}: a leader says that it ends at offset "
                f"{end.offset}, before its first offset {known.next[number]}; the next question "
                "may reach another one"
            )
        if end.offset < known.next[number]:
            reason = f"it ends at offset {end.offset}: its log was truncated"
            raise _lost(known, number, reason, options)
    new = {n: end.epoch for n, end in ends.items() if end.epoch not in (UNKNOWN, known.epochs[n])}
    if changed := [number for number in new if known.epochs[number] != UNKNOWN]:
        require_history(options, known, changed)
    known.epochs = [new.get(number, epoch) for number, epoch in enumerate(known.epochs)]


def _lost(known: Positions, partition: int, reason: str, options: KafkaLogOptions) -> SourceRefused:
    place = f"{options.where}, partition {partition}"
    at = known.next[partition]
    return SourceRefused(f"{place}, offset {at}: {reason}; give the stream a new name")


def _between(start: list[int], end: list[int], rows_max: int) -> list[int]:
    """Move from ``start`` towards ``end`` by at most ``rows_max``, divided by what each lacks."""
    lacking = sum(end) - sum(start)
    if lacking <= rows_max:
        return end
    moved = [low + (high - low) * rows_max // lacking for low, high in zip(start, end, strict=True)]
    if moved == start:
        first = next(number for number, low in enumerate(start) if low < end[number])
        moved[first] += 1
    return moved


def ends_of(offset: str) -> str:
    """The offsets of Spark's Kafka source, as JSON, at the journal's offset ``offset``."""
    positions = Positions.parse(offset)
    return json.dumps({positions.topic: {str(n): at for n, at in enumerate(positions.next)}})


def spark_options(options: KafkaLogOptions) -> dict[str, str]:
    """The options of Spark's Kafka source for ``options``, without offsets.

    Files of TLS are read here, so that executors need none. Raises OSError.
    """
    found = {"subscribe": options.topic, "kafka.bootstrap.servers": ",".join(options.brokers)}
    tls, sasl = options.tls, options.sasl
    # Spark's own default is the limit with which its processes watch each other, a day on one host.
    found["kafkaConsumer.pollTimeoutMs"] = str(POLL_SECONDS * 1000)
    found["kafka.security.protocol"] = protocol(options)
    if tls is not None:
        if tls.ca_file is not None:
            found["kafka.ssl.truststore.type"] = "PEM"
            found["kafka.ssl.truststore.certificates"] = tls.ca_file.read_text()
        if tls.certificate_file is not None and tls.key_file is not None:
            found["kafka.ssl.keystore.type"] = "PEM"
            found["kafka.ssl.keystore.certificate.chain"] = tls.certificate_file.read_text()
            found["kafka.ssl.keystore.key"] = tls.key_file.read_text()
        if tls.key_password is not None:
            found["kafka.ssl.key.password"] = tls.key_password.get_secret_value()
    if sasl is not None and sasl.user is not None and sasl.password is not None:
        kind = "plain.Plain" if sasl.mechanism == "PLAIN" else "scram.Scram"
        found["kafka.sasl.mechanism"] = sasl.mechanism
        found["kafka.sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{kind}LoginModule required "
            f"username={_quoted(sasl.user)} password={_quoted(sasl.password.get_secret_value())};"
        )
    return found


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
