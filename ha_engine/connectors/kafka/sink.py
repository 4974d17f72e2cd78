"""The sink kind ``kafka`` writes the rows of each batch to a topic, exactly once for readers of
committed records.

Each delivery is one transaction with the rows and the ledger record (module ``ledger``). Why no row
is lost or doubled:

- A claim calls ``init_transactions`` with the transactional id of the sink. The transaction
  coordinator then has aborted, or completely committed, the transaction that an earlier active had
  open, and refuses each later request of the earlier active. Only after that the claim reads the
  ledger, to the end that the partition has then. So it reads the last word of every earlier active.
- If the ledger has a higher epoch, the claim raises Fenced. It looks before ``init_transactions``
  too, so that a node that wakes late seldom disturbs the present active.
- Otherwise the claim writes its epoch. Two claims that overlap fence each other's producer, so only
  the later one commits; the other one claims again, and then sees the epoch of the later one.
- A producer that another one has fenced does not mean a higher epoch: an earlier active may have
  claimed late. The sink raises SinkUnavailable, the engine claims again, and the ledger decides.
- A commit whose outcome is unknown, as any failure, ends the producer. The next claim resolves the
  transaction, and the ledger says which batch is there.

A delivery that takes longer than the engine waits continues, up to ``transaction_timeout``, as long
as the brokers take rows. Otherwise a large batch would begin again forever. That is safe, since a
claim by another node ends the transaction, and the engine waits for the end of the call before it
claims again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, Field, model_validator

from ha_engine.config.quantities import Duration, Size
from ha_engine.connectors.kafka.cluster import Cluster
from ha_engine.connectors.kafka.errors import ADVICE, SINK, LastError
from ha_engine.connectors.kafka.ledger import (
    PARTITION,
    LedgerOptions,
    LedgerReader,
    Record,
    key_of,
    require_compacted,
    require_topic,
)
from ha_engine.connectors.kafka.options import ClusterOptions, request_seconds, settings
from ha_engine.connectors.library import library
from ha_engine.errors import Fenced, SinkRefused, SinkUnavailable
from ha_engine.plugins import Claim, Messages, OutputBatch, SinkPlace

BUFFER_KIB = 64 << 10
BUFFER_MESSAGES = 100_000
POLL_ROWS = 1_000
POLL_SECONDS = 0.1
ABORT_SECONDS = 2.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEADER = "header."
_PURGED = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})
_FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})


class KafkaSinkOptions(ClusterOptions):
    """The options of the sink kind ``kafka``, besides those of the connection.

    ``ledger`` has the options of the ledger topic. ``transactional_id_prefix`` begins the
    transactional id ``PREFIXgroup/query/sink``. The brokers abort a transaction after
    ``transaction_timeout``; until then an active that died holds up the readers of the topic, if no
    node claims the sink. ``message_max`` is the largest message that the topic accepts.
    """

    ledger: LedgerOptions = LedgerOptions()
    transactional_id_prefix: str = Field("", max_length=200)
    transaction_timeout: Annotated[Duration, Field(ge=1, le=900)] = 60.0
    message_max: Annotated[Size, Field(ge=1 << 10, le=1_000_000_000)] = 1 << 20

    @model_validator(mode="after")
    def _waits_in_time(self) -> KafkaSinkOptions:
        least = request_seconds(self)
        if self.transaction_timeout < least:
            raise ValueError(
                f"transaction_timeout must be at least timeout, and at least {least:g} s here"
            )
        return self


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A producer that is the last one of its transactional id, as far as it knows, and the ledger
    record that it has written or found."""

    producer: Any
    record: Record
    last: LastError
    failed: list[Any]


class KafkaSink:
    """Implements ``plugins.LedgerSinkPlugin``."""

    Options: ClassVar[type[BaseModel]] = KafkaSinkOptions
    guarantee: ClassVar[str] = (
        "exactly once, for readers of committed records: the rows and the ledger are in one "
        "transaction"
    )
    buckets: ClassVar[bool] = True
    attributes: ClassVar[MappingProxyType[str, pa.DataType]] = MappingProxyType(
        {
            "key": pa.binary(),
            "partition": pa.int32(),
            "timestamp": pa.timestamp("ms", "UTC"),
            "headers": pa.binary(),
        }
    )

    def __init__(self, options: KafkaSinkOptions, place: SinkPlace) -> None:
        self._options, self._place = options, place
        self._key = key_of(place.group, place.query, place.sink)
        self._claimed: _Claimed | None = None

    # -- the interface -----------------------------------------------------------------------------

    def prepare(self, schema: pa.Schema) -> None:
        """Accept every schema, since messages have no columns."""

    def check(self) -> None:
        """Require that the topic exists, and that the ledger topic, if it exists, is one."""
        cluster = Cluster(self._options, SINK)
        cluster.topic(self._options.topic)
        if cluster.has(self._options.ledger.topic):
            require_compacted(cluster, self._options.ledger)

    def claim(self, claim: Claim) -> int:
        self.close()
        cluster, ledger = Cluster(self._options, SINK), self._options.ledger
        cluster.topic(self._options.topic)
        first = require_topic(cluster, ledger, claim.remaining_seconds)
        reader = LedgerReader(self._options, ledger, self._key, first)
        try:
            reader.read_visible(claim.remaining_seconds)
            self._require_ours(reader, claim)
            claimed = self._fencing(claim)
            end = cluster.last(ledger.topic, [PARTITION])[PARTITION]
            reader.read_to(end, claim.remaining_seconds)
            self._require_ours(reader, claim)
        finally:
            reader.close()
        found = reader.record or Record(claim.group_id, -1, claim.start_after)
        claimed = replace(claimed, record=replace(found, epoch=claim.epoch))
        if found.epoch != claim.epoch:
            self._transact(claimed, Messages([]))
        self._claimed = claimed
        return found.batch

    def deliver(self, batch: OutputBatch) -> None:
        claimed = self._claimed
        if claimed is None:
            raise SinkUnavailable(f"sink {self._place.sink} is not claimed; the node claims it")
        ledger = claimed.record
        if batch.number <= ledger.batch:
            return
        if batch.number > ledger.batch + 1:
            raise SinkRefused(
                f"the ledger of sink {self._place.sink} ends at batch {ledger.batch}, so batch "
                f"{batch.number} would leave a gap; check whether {self._options.ledger.topic} was "
                "restored to an older state"
            )
        messages = batch.messages() if batch.rows else Messages([])
        self._claimed = None  # unless the transaction commits, only the next claim knows the batch
        claimed = replace(claimed, record=replace(ledger, batch=batch.number))
        self._transact(claimed, messages)
        self._claimed = claimed

    def close(self) -> None:
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            _discard(claimed.producer)

    # -- a claim -----------------------------------------------------------------------------------

    def _require_ours(self, reader: LedgerReader, claim: Claim) -> None:
        record = reader.record
        if reader.divides_otherwise:
            raise SinkRefused(
                f"topic {self._options.ledger.topic} has sink {self._place.sink} of query "
                f"{self._place.query} with another number of buckets, which cannot change; give "
                "the sink a new name"
            )
        if record is None:
            return
        if record.group_id != claim.group_id:
            place = self._place
            raise SinkRefused(
                f"the record of sink {place.sink} of query {place.query} in topic "
                f"{self._options.ledger.topic} belongs to group {record.group_id}, not to this "
                f"group {claim.group_id}, but both are named {place.group}; give this sink or this "
                "group another name, or name another topic in ledger.topic"
            )
        if record.epoch > claim.epoch:
            raise Fenced(record.epoch, self._place.sink)

    def _fencing(self, claim: Claim) -> _Claimed:
        """A producer after which no earlier one of the same transactional id can commit."""
        kafka = library("confluent_kafka", "kafka", SinkRefused)
        place, last, failed = self._place, LastError(), list[Any]()
        name = f"{self._options.transactional_id_prefix}{place.group}/{place.query}/{place.sink}"

        def report(error: Any, message: Any) -> None:
            # After a fatal error librdkafka purges all messages, and the commit says why.
            if error is not None and not failed and error.name() not in _PURGED:
                failed.append((error, message))

        try:
            producer = kafka.Producer(
                {
                    "queue.buffering.max.kbytes": max(
                        BUFFER_KIB, 2 * self._options.message_max >> 10
                    ),
                    "queue.buffering.max.messages": BUFFER_MESSAGES,
                    "partitioner": "murmur2_random",  # as Java's producer
                }
                | settings(self._options)
                | {
                    "transactional.id": name,
                    "transaction.timeout.ms": round(self._options.transaction_timeout * 1000),
                    "message.max.bytes": self._options.message_max,
                    "acks": "all",
                    "delivery.report.only.error": True,
                    "on_delivery": report,
                    "error_cb": last.note,
                }
            )
        except kafka.KafkaException as error:
            raise SINK.of_options(error, self._options) from error
        try:
            producer.init_transactions(max(0.1, claim.remaining_seconds()))
        except kafka.KafkaException as error:
            _discard(producer)
            raise self._failure(error, last, f"transactional id {name} is not available") from error
        return _Claimed(producer, Record(claim.group_id, claim.epoch, 0), last, failed)

    # -- a transaction -----------------------------------------------------------------------------

    def _transact(self, claimed: _Claimed, messages: Messages) -> None:
        """Commit ``messages`` and the ledger record, or end the producer and raise."""
        work = _Transaction(self._options, claimed)
        kafka = library("confluent_kafka", "kafka", SinkRefused)
        try:
            claimed.producer.begin_transaction()
            work.send(messages)
            work.commit(self._key)
            claimed.last.clear()
        except kafka.KafkaException as error:
            work.abandon()
            failed = claimed.failed[0][0] if claimed.failed else error
            doing = f"{self._options.where} did not take a batch{work.place()}"
            raise self._failure(failed, claimed.last, doing) from error
        except BaseException:
            work.abandon()
            raise

    def _failure(self, error: Any, last: LastError, doing: str) -> Exception:
        inner = error.args[0] if getattr(error, "args", None) else error
        if inner.name() in _FENCED:
            return SinkUnavailable(
                f"{doing}: another producer has the transactional id of sink {self._place.sink}; "
                "the node claims the sink again, and the ledger says who may write"
            )
        if inner.name() in ("_TIMED_OUT", "_TRANSPORT", "_STATE") and last.error is not None:
            return SINK.of(last.error, doing)
        return SINK.of(error, doing)


class _Transaction:
    """One transaction of a producer. Its time is over when the brokers took no message for
    ``options.timeout``, or after ``transaction_timeout``."""

    def __init__(self, options: KafkaSinkOptions, claimed: _Claimed) -> None:
        self._options, self._claimed, self._producer = options, claimed, claimed.producer
        self._kafka: Any = library("confluent_kafka", "kafka", SinkRefused)
        self._began = self._moved = time.monotonic()
        self._taken, self._sent = 0, 0
        self._committing = False

    def send(self, messages: Messages) -> None:
        """Produce all messages."""
        columns = messages.attributes
        keys, partitions = columns.get("key"), columns.get("partition")
        timestamps = columns.get("timestamp")
        headers = {
            name.removeprefix(_HEADER): values
            for name, values in columns.items()
            if name.startswith(_HEADER)
        }
        for row, value in enumerate(messages.values):
            more: dict[str, Any] = {}
            if keys is not None:
                more["key"] = keys[row]
            if partitions is not None and partitions[row] is not None:
                more["partition"] = _partition(partitions[row], row)
            if timestamps is not None and timestamps[row] is not None:
                more["timestamp"] = _milliseconds(timestamps[row], row)
            if headers:
                more["headers"] = _headers(headers, row)
            self._produce(self._options.topic, value, more)
            if row % POLL_ROWS == 0:
                self._serve(0)

    def commit(self, key: bytes) -> None:
        """Produce the ledger record, wait for all messages, and commit."""
        record, ledger = self._claimed.record, self._options.ledger.topic
        self._produce(ledger, record.value, {"key": key, "partition": PARTITION})
        while len(self._producer):
            self._serve(POLL_SECONDS)
        self._serve(0)
        self._committing = True
        until = time.monotonic() + self._options.timeout
        while True:
            try:
                self._producer.commit_transaction(max(0.1, until - time.monotonic()))
                return
            except self._kafka.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= until:
                    raise

    def abandon(self) -> None:
        """End the producer. The next claim ends the transaction, if the brokers do not now."""
        if not self._committing and not self._claimed.last.stops_all:
            try:
                self._producer.abort_transaction(ABORT_SECONDS)
            except self._kafka.KafkaException:
                pass  # the next claim aborts it
        _discard(self._producer)

    def place(self) -> str:
        """The message that the brokers refused, for an error."""
        if not self._claimed.failed or self._claimed.failed[0][1] is None:
            return ""
        message = self._claimed.failed[0][1]
        size = len(message.value() or b"")
        return f": a message of {size} bytes for partition {message.partition()}"

    def _produce(self, topic: str, value: bytes | None, more: dict[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(topic, value, **more)
                self._sent += 1
                return
            except BufferError:
                self._serve(POLL_SECONDS)
            except self._kafka.KafkaException as error:
                if error.args[0].name() == "_STATE":
                    self._require_sound()
                size, partition = len(value or b""), more.get("partition", "any")
                doing = f"row {self._sent} of {size} bytes for partition {partition} of {topic}"
                raise SINK.of(error, f"{doing} cannot be sent") from error

    def _require_sound(self) -> None:
        """Raise the error that has ended the transaction. librdkafka then takes no message, but
        only a call that is wrong at this time says why."""
        self._serve(0)
        try:
            self._producer.begin_transaction()
        except self._kafka.KafkaException as error:
            if error.args[0].name() != "_STATE":
                raise

    def _serve(self, seconds: float) -> None:
        """Let librdkafka report, and raise when a message failed or time is over."""
        self._producer.poll(seconds)
        if self._claimed.failed:
            raise self._kafka.KafkaException(self._claimed.failed[0][0])
        now, taken = time.monotonic(), self._sent - len(self._producer)
        if taken > self._taken:
            self._taken, self._moved = taken, now
        if now - self._began > self._options.transaction_timeout:
            raise SinkUnavailable(
                f"{self._options.where} did not take a batch within transaction_timeout; raise "
                "transaction_timeout if the batch is large, and lower it otherwise"
            )
        if seconds and now - self._moved > self._options.timeout:
            reason = self._claimed.last.error
            problem = f"the brokers took no row for {self._options.timeout:g} s"
            raise SinkUnavailable(f"{problem}: {reason.str()}" if reason else problem)


def _discard(producer: Any) -> None:
    """Drop what the producer has not sent, so that its end does not wait for brokers."""
    kafka = library("confluent_kafka", "kafka", SinkRefused)
    try:
        producer.purge()
        producer.poll(0)
    except kafka.KafkaException:
        pass  # a fatal error of the producer, which ends anyway; its cause was raised before


def _headers(headers: dict[str, Sequence[Any]], row: int) -> list[tuple[str, Any]]:
    return [(name, values[row]) for name, values in headers.items() if values[row] is not None]


def _partition(number: int, row: int) -> int:
    """Raises SinkRefused for a negative number, since librdkafka takes -1 for any partition."""
    if number < 0:
        raise SinkRefused(f"row {row} has partition {number}; {ADVICE['_UNKNOWN_PARTITION']}")
    return number


def _milliseconds(time_of: datetime, row: int) -> int:
    """Raises SinkRefused for a time before 1970. A broker takes it, but Kafka has no such time."""
    if time_of < _EPOCH:
        raise SinkRefused(
            f"row {row} has the timestamp {time_of}, and the times of Kafka begin in 1970; correct "
            "the column of timestamp"
        )
    return (time_of - _EPOCH) // timedelta(milliseconds=1)
