"""The source kind ``kafka`` reads the partitions of one topic, without a consumer group.

The offset has the next offset of each partition, and the engine journals it together with the rows.
The journal has exactly the committed records before these offsets, so that any node can continue
there: no record is lost or stored twice.

Kafka orders the records of one partition. When records of several partitions are read again, since
they were not journalled, their order among partitions may be another one. That is harmless. No
query has seen the first order, because queries read only the journal, which is equal on all nodes.

What could break the guarantee, and what the source does:

1. *Retention deletes records before they are read.* The broker answers that the offset is out of
   range, and librdkafka must not choose another one (``auto.offset.reset=error``). The source
   refuses to continue.
2. *The topic is deleted and created again.* Then the offset means other records. librdkafka
   continues silently if the new topic has this offset. So the source asks for the topic's id after
   it has taken the records of a batch and before it returns them. An id is never used again: if it
   is still the same, the records are from this topic. The exception is a broker that answers
   without having heard of the deletion and of the new topic, while another one serves its records.
3. *A replica that lacks records becomes leader* (unclean election). The broker has no record at the
   offset, or others. When the source opens, each offset is compared with the partition's end, and
   the leader epoch of the record before with the history of the leader (KIP-320).
4. *Markers of transactions and aborted records fill offsets.* The position moves over them at the
   end of a partition, by the event PARTITION_EOF, whose offset is the next one to fetch.
5. *A partition is added.* It begins at offset 0. If its first records are gone, case 1 applies.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import methodcaller
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import BaseModel

from ha_engine.connectors.kafka.cluster import Cluster, Topic
from ha_engine.connectors.kafka.errors import SOURCE, LastError
from ha_engine.connectors.kafka.offsets import UNKNOWN, Positions
from ha_engine.connectors.kafka.options import ClusterOptions, settings
from ha_engine.connectors.library import library
from ha_engine.connectors.streams import BATCH_BYTES_MAX, parsed_position, time_of
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Backlog, DeadLetter, Messages, SourceBatch, SourcePlace

FETCH_MESSAGES = 1_000
PREFETCH_KIB = 16 << 10
FETCH_BYTES = 8 << 20
LOOK_EVERY_SECONDS = 10.0
"""An idle source looks for new partitions at this interval."""
OFFSET_EVERY_SECONDS = 10.0
"""An offset that moved without rows is returned at most at this interval, since each costs a record
of the journal."""
BACKLOG_EVERY_SECONDS = 0.5
FIRST_SECONDS = 0.1
_HEADER = "header."
_read_headers = methodcaller("headers")
"""Raises SystemError if a name is not in UTF-8. A plain call, which Python may specialise, would
raise that only at a later statement, since the package returns a value and sets an error too."""

_GUARANTEE_SETTINGS = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
}
_DEFAULTS = {
    "check.crcs": True,
    "queued.max.messages.kbytes": PREFETCH_KIB,
    "fetch.max.bytes": FETCH_BYTES,
    # The wait after the prefetched messages have reached their limit. A source that catches up
    # reads them in less than the default of a second.
    "fetch.queue.backoff.ms": 20,
    "fetch.wait.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 10_000,
}


class KafkaSourceOptions(ClusterOptions):
    """The options of the source kind ``kafka``, besides those of the connection.

    ``start`` says where a source without an offset in the journal begins: at the earliest record
    that each partition has, or after the latest one. ``lost`` says what happens if records behind
    the journal's offset are gone: ``refuse``, or ``skip`` to the first record that is left, with a
    dead letter that names the lost offsets.
    """

    start: Literal["earliest", "latest"] = "earliest"
    lost: Literal["refuse", "skip"] = "refuse"


class KafkaSource:
    """Implements ``plugins.SourcePlugin``."""

    Options: ClassVar[type[BaseModel]] = KafkaSourceOptions
    guarantee: ClassVar[str] = (
        "exactly once: the journal has the next offset of each partition, and reads only committed "
        "records"
    )
    attributes: ClassVar[MappingProxyType[str, pa.DataType]] = MappingProxyType(
        {
            "key": pa.binary(),
            "timestamp": pa.timestamp("ms", "UTC"),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "topic": pa.string(),
            "headers": pa.binary(),
        }
    )

    def __init__(self, options: KafkaSourceOptions, place: SourcePlace) -> None:
        self._options, self._place = options, place
        self._cluster: Cluster | None = None
        self._consumer: Any = None
        self._kafka: Any = None
        self._last = LastError()
        self._positions = Positions(options.topic, ("", ""))
        # Messages and events that were fetched and are not in a batch yet, of one fetch at most.
        self._held: deque[Any] = deque()
        self._lost: list[DeadLetter] = []
        self._returned, self._returned_at = "", 0.0
        self._looked_at = 0.0
        self._backlog, self._backlog_at = Backlog(), 0.0

    # -- the interface -----------------------------------------------------------------------------

    def open(self, offset: str | None) -> None:
        # A new consumer: no record that an earlier call has fetched can come into the new position.
        self.close()
        self._kafka = library("confluent_kafka", "kafka", SourceRefused)
        self._cluster = Cluster(self._options, SOURCE)
        topic = self._cluster.topic(self._options.topic)
        if offset is None:
            self._positions = self._begin(topic)
        else:
            name, source = self._options.topic, self._place.source
            self._positions = parsed_position(Positions.parse, offset, name, source)
            self._resume(topic)
        # The first batch has the offsets that ``latest`` chose, even without rows. Otherwise the
        # next active would choose later ones, and skip the records between.
        decided = offset is None and self._options.start == "latest"
        self._returned = "" if decided else self._positions.text
        self._returned_at = 0.0
        self._consume()
        self._await_first(len(topic.led))

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        if self._consumer is None:
            raise SourceUnavailable(f"{self._options.where} is not open")
        if not self._returned or self._lost:
            return self._batch([])
        rows = self._take(rows_max, seconds)
        if rows or time.monotonic() - self._looked_at > LOOK_EVERY_SECONDS:
            self._look()
        if rows or self._lost:
            return self._batch(rows)
        self._require_brokers()
        moved_long_ago = time.monotonic() - self._returned_at > OFFSET_EVERY_SECONDS
        if moved_long_ago and self._positions.text != self._returned:
            return self._batch([])
        return None

    def close(self) -> None:
        consumer, self._consumer, self._cluster = self._consumer, None, None
        self._held.clear()
        self._lost = []
        self._last.clear()
        self._backlog, self._backlog_at = Backlog(), 0.0
        if consumer is not None:
            consumer.close()

    def check(self) -> None:
        """Open the topic, which fetches from it."""
        try:
            self.open(None)
        finally:
            self.close()

    def peek(self, offset: str | None, rows_max: int, seconds: float) -> SourceBatch | None:
        """Return the next rows after ``offset``, or None."""
        try:
            self.open(offset)
            rows = self._take(rows_max, seconds)
            self._look()
            return self._batch(rows) if rows else None
        finally:
            self.close()

    # -- positions ---------------------------------------------------------------------------------

    def _begin(self, topic: Topic) -> Positions:
        """The positions of a source that the journal does not know."""
        numbers = range(topic.partitions)
        if missing := sorted(set(numbers) - topic.led):
            raise SourceUnavailable(
                f"partition {missing[0]} of {self._options.where} has no leader, so its "
                f"{self._options.start} offset is unknown"
            )
        assert self._cluster is not None
        if self._options.start == "latest":
            # The records of a transaction that is open now may be committed later, so they count
            # as later records.
            found = self._cluster.last(topic.name, numbers, committed=True)
        else:
            found = self._cluster.first(topic.name, numbers)
        offsets = [found[number] for number in numbers]
        return Positions(topic.name, topic.identity, offsets, [UNKNOWN] * len(offsets))

    def _resume(self, topic: Topic) -> None:
        """Check the journal's positions, and begin new partitions."""
        positions = self._positions
        if self._identity(topic) != positions.identity:
            self._lose_topic(topic)
            return
        positions.identity = topic.identity
        self._add_partitions(topic)
        assert self._cluster is not None
        led = sorted(topic.led)
        first, last = self._cluster.first(topic.name, led), self._cluster.last(topic.name, led)
        for number in led:
            at = positions.next[number]
            if at < first[number]:
                self._lose(
                    number,
                    first[number],
                    f"the records from offset {at} to {first[number] - 1} were deleted before they "
                    "were read, by the retention of the topic or by a person",
                )
            elif at > last[number]:
                self._lose(
                    number,
                    last[number],
                    f"it ends at offset {last[number]}, before the journal's offset {at}; its log "
                    "was truncated, for example when a replica without the last records became "
                    "leader",
                )

    def _identity(self, topic: Topic) -> tuple[str, str]:
        """The identity of ``topic`` in the terms of the journal's offset."""
        assert self._cluster is not None
        if self._positions.identity[0] == topic.identity[0]:
            return topic.identity
        return self._positions.identity[0], self._cluster.cluster_id()

    def _lose_topic(self, topic: Topic) -> None:
        old = self._positions
        reason = (
            f"the journal's offset is of topic {old.topic} with {old.identity[0]} "
            f"{old.identity[1]}, and {self._options.where} has {topic.identity[0]} "
            f"{topic.identity[1]}: it was deleted and created again, or belongs to another cluster"
        )
        if self._options.lost == "refuse":
            raise SourceRefused(
                f"{reason}; give the source a new name to read the topic from its start, or set "
                "lost: skip to continue this source with the first record of the topic"
            )
        assert self._cluster is not None
        first = self._cluster.first(topic.name, sorted(topic.led))
        offsets = [first.get(number, 0) for number in range(topic.partitions)]
        self._positions = Positions(
            topic.name, topic.identity, offsets, [UNKNOWN] * topic.partitions
        )
        self._lost.append(DeadLetter(f"topic {old.topic}", reason))

    def _lose(self, partition: int, left: int, reason: str) -> None:
        """Refuse to continue, or continue in ``partition`` at offset ``left``."""
        positions = self._positions
        place = f"{positions.topic}, partition {partition}, offset {positions.next[partition]}"
        if self._options.lost == "refuse":
            raise SourceRefused(
                f"{place}: {reason}; set lost: skip to continue with the first record that is "
                "left, or give the source a new name to read the topic again from its start"
            )
        positions.next[partition], positions.epochs[partition] = left, UNKNOWN
        self._lost.append(DeadLetter(place, reason))

    # -- the consumer ------------------------------------------------------------------------------

    def _consume(self) -> None:
        """Make the consumer and let it fetch from the positions."""
        place, positions = self._place, self._positions
        try:
            self._consumer = self._kafka.Consumer(
                _DEFAULTS
                | settings(self._options)
                | _GUARANTEE_SETTINGS
                # librdkafka demands the name of a group. The consumer neither joins it nor commits.
                | {"group.id": f"{place.group}/{place.stream}/{place.source}"}
                | {"error_cb": self._last.note}
            )
        except self._kafka.KafkaException as error:
            raise SOURCE.of_options(error, self._options) from error
        try:
            self._consumer.assign([self._at(number) for number in range(len(positions.next))])
            for number, epoch in enumerate(positions.epochs):
                if epoch != UNKNOWN:
                    # Only ``seek`` lets librdkafka compare the epoch with the leader's history.
                    self._consumer.seek(self._at(number))
        except self._kafka.KafkaException as error:
            raise SOURCE.of(error, f"{self._options.where} cannot be read") from error
        self._looked_at = time.monotonic()

    def _at(self, partition: int) -> Any:
        return self._kafka.TopicPartition(
            self._positions.topic,
            partition,
            self._positions.next[partition],
            leader_epoch=self._positions.epochs[partition],
        )

    def _take(self, rows_max: int, seconds: float) -> list[Any]:
        """Take messages until there are enough or no more come, and move the positions."""
        taken, size, last = list[Any](), 0, dict[int, Any]()
        until = time.monotonic() + seconds
        while len(taken) < rows_max:
            if not self._held:
                self._fetch(0.0 if taken else max(0.0, until - time.monotonic()))
            if not self._held:
                break
            message = self._held[0]
            if message.error() is not None:
                self._held.popleft()
                self._move(last)
                self._event(message)
                continue
            size += len(message) + len(message.key() or b"")
            if taken and size > BATCH_BYTES_MAX:
                break
            self._held.popleft()
            last[message.partition()] = message
            taken.append(message)
        self._move(last)
        return taken

    def _move(self, last: dict[int, Any]) -> None:
        """Move the positions after the last message of each partition, and forget these."""
        for message in last.values():
            self._positions.read(message.partition(), message.offset(), message.leader_epoch())
        last.clear()

    def _await_first(self, partitions: int) -> None:
        """Wait for a message, or until ``partitions`` partitions have none, so that the first read
        knows what is there. Raises what prevents the first fetch."""
        empty, until = set[int](), time.monotonic() + self._options.timeout
        while len(empty) < partitions and time.monotonic() < until:
            if not self._held:
                self._fetch(FIRST_SECONDS)
                self._require_brokers()
            elif self._held[0].error() is None:
                return
            else:
                event = self._held.popleft()
                if event.error().name() == "_PARTITION_EOF":
                    empty.add(event.partition())
                self._event(event)

    def _fetch(self, seconds: float) -> None:
        """Wait for one message or event, and take what else is there."""
        first = self._consumer.poll(seconds)
        if first is not None:
            self._held.append(first)
            self._held.extend(self._consumer.consume(FETCH_MESSAGES, 0))
            if first.error() is None:
                self._last.clear()

    def _event(self, message: Any) -> None:
        """Handle an event of a partition or of the consumer. Raises what stops the source."""
        error, partition = message.error(), message.partition()
        match error.name():
            case "_PARTITION_EOF":
                self._positions.reached(partition, message.offset())
            case "_AUTO_OFFSET_RESET":
                self._out_of_range(partition, error.str())
            case "GROUP_AUTHORIZATION_FAILED":
                pass  # the consumer uses no group
            case "_UNKNOWN_PARTITION":
                raise SourceUnavailable(
                    f"a broker does not know partition {partition} of {self._options.where} yet"
                )
            case _:
                where = self._options.where
                if partition is not None and partition >= 0:
                    where = f"{where}, partition {partition}, offset {message.offset()},"
                raise SOURCE.of(error, f"{where} cannot be read")

    def _out_of_range(self, partition: int, reason: str) -> None:
        """Refuse to continue where the broker has no record, or another one than before."""
        assert self._cluster is not None
        topic, at = self._options.topic, self._positions.next[partition]
        first = self._cluster.first(topic, [partition])[partition]
        last = self._cluster.last(topic, [partition])[partition]
        if not first <= at <= last:
            raise SourceUnavailable(
                f"{topic}, partition {partition}, has no offset {at}, only {first} to {last}; the "
                "source opens it again, and then says what is lost"
            )
        self._lose(partition, at, f"the log has changed before this offset: {reason}")
        self._reopen()

    def _reopen(self) -> None:
        """Fetch from the changed positions."""
        self._consumer.close()
        self._held.clear()
        self._consume()

    def _require_brokers(self) -> None:
        """Raise the error of the connections, if nothing can come."""
        if self._last.stops_all:
            raise SOURCE.of(self._last.error, f"{self._options.where} cannot be read")

    # -- the topic ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Require that the topic is still the same, and read its new partitions."""
        assert self._cluster is not None
        topic = self._cluster.topic(self._options.topic)
        self._looked_at = time.monotonic()
        if self._identity(topic) != self._positions.identity:
            # Nothing that was taken may be returned. ``open`` says what has happened.
            raise SourceUnavailable(
                f"{self._options.where} was deleted and created again; the source opens it again"
            )
        known = len(self._positions.next)
        self._add_partitions(topic)
        if new := [self._at(number) for number in range(known, topic.partitions)]:
            self._consumer.incremental_assign(new)

    def _add_partitions(self, topic: Topic) -> None:
        known = len(self._positions.next)
        if topic.partitions < known and topic.identity[0] == "topic_id":
            raise SourceUnavailable(
                f"a broker knows only {topic.partitions} of the {known} partitions of "
                f"{self._options.where} yet"
            )
        if topic.partitions < known:
            raise SourceRefused(
                f"{self._options.where} has {topic.partitions} partitions, and the journal's "
                f"offset has {known}; give the source a new name, since this is another topic"
            )
        self._positions.add(topic.partitions)

    # -- batches -----------------------------------------------------------------------------------

    def _batch(self, rows: list[Any]) -> SourceBatch:
        text = self._positions.text
        self._returned, self._returned_at = text, time.monotonic()
        rows = self._with_headers(rows)
        letters, self._lost = tuple(self._lost), []
        return SourceBatch(
            text,
            Messages(
                [message.value() for message in rows],
                {name: self._attribute(name, rows) for name in self._place.attributes},
            ),
            letters,
            lambda row: _place(rows[row]),
            self._waiting(rows),
        )

    def _with_headers(self, rows: list[Any]) -> list[Any]:
        """Make dead letters of the rows whose headers are wanted and cannot be read."""
        if not any(name.startswith(_HEADER) for name in self._place.attributes):
            return rows
        found = list[Any]()
        for row in rows:
            try:
                _read_headers(row)
                found.append(row)
            except (SystemError, UnicodeDecodeError):
                reason = "the name of a header is not in UTF-8"
                self._lost.append(DeadLetter(_place(row), reason, row.value() or b""))
        return found

    def _attribute(self, name: str, rows: Sequence[Any]) -> list[Any]:
        if name.startswith(_HEADER):
            header = name.removeprefix(_HEADER)
            return [_header(message, header) for message in rows]
        get: dict[str, Callable[[Any], Any]] = {
            "key": lambda message: message.key(),
            "timestamp": _timestamp,
            "partition": lambda message: message.partition(),
            "offset": lambda message: message.offset(),
            "topic": lambda message: message.topic(),
        }
        return [get[name](message) for message in rows]

    def _waiting(self, rows: list[Any]) -> Backlog:
        """The backlog by what the last fetches told, at most every BACKLOG_EVERY_SECONDS."""
        now = time.monotonic()
        if now - self._backlog_at < BACKLOG_EVERY_SECONDS:
            return self._backlog
        self._backlog_at, events = now, self._events()
        # The next record is unknown unless it was fetched. It is then younger than the last row.
        held = next((one for one in self._held if one.error() is None), None)
        at_most = _timestamp(held or rows[-1]) if held or rows else None
        seconds = None
        if events == 0:
            seconds = 0.0
        elif at_most is not None:
            seconds = max(0.0, (datetime.now(UTC) - at_most).total_seconds())
        self._backlog = Backlog(events=events, seconds=seconds)
        return self._backlog

    def _events(self) -> int | None:
        """The offsets up to the end of each partition, or None before each was fetched from."""
        events = 0
        for number, at in enumerate(self._positions.next):
            part = self._kafka.TopicPartition(self._options.topic, number)
            _, high = self._consumer.get_watermark_offsets(part, cached=True)
            if high < 0:
                return None
            events += max(0, high - at)
        return events


def _place(message: Any) -> str:
    return f"{message.topic()}, partition {message.partition()}, offset {message.offset()}"


def _timestamp(message: Any) -> datetime | None:
    kind, milliseconds = message.timestamp()
    return time_of(milliseconds) if kind and milliseconds >= 0 else None


def _header(message: Any, name: str) -> Any:
    """The value of the last header ``name``, as a record may have several."""
    found = [value for key, value in message.headers() or () if key == name]
    return found[-1] if found else None
