"""Write records to one topic with an idempotent producer, and watch its brokers.

Two threads serve a topic. One lets librdkafka report which records the brokers have. The other one
describes the topic each second, since a producer without records does not notice that its brokers
are away.

``acks=all`` and ``enable.idempotence`` let the brokers acknowledge a record when all replicas in
sync have it, and store it once however often librdkafka repeats it. A record that is not
acknowledged within ``timeout`` counts as failed, although the brokers may have it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import structlog

from ha_engine.connectors.kafka.cluster import Cluster
from ha_engine.connectors.kafka.errors import SOURCE, LastError
from ha_engine.connectors.kafka.log import KafkaLogOptions
from ha_engine.connectors.kafka.options import request_seconds, settings
from ha_engine.connectors.library import library
from ha_engine.errors import EngineError, SourceRefused, SourceUnavailable
from ha_engine.receiver.records import Records

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
POLL_SECONDS = 0.1
BYTES_MAX = 1_000_000
"""The largest record if the brokers do not show the configuration of the topic. It is less than
their default."""
_BYTES_RANGE = 1_000, 1_000_000_000
"""The values that librdkafka takes for message.max.bytes."""

Settled = Callable[[Any], None]
"""Gets the KafkaError of the first record that failed, or None if the brokers have all records."""


class Topic:
    """The topic of a stream. ``on_fatal`` gets the reason when the producer can write no more; any
    thread may call it. The constructor raises SourceRefused for options that librdkafka refuses."""

    def __init__(self, options: KafkaLogOptions, on_fatal: Callable[[str], object]) -> None:
        self._options, self._on_fatal = options, on_fatal
        self._cluster = Cluster(options, SOURCE)
        self._kafka: Any = library("confluent_kafka", "kafka", SourceRefused)
        self._producer: Any = None
        self._last = LastError()
        self._problem: str | None = f"{options.where} has not answered yet"
        self._is_closed = threading.Event()
        self.bytes_max = BYTES_MAX
        """The size of the largest record that the topic takes."""
        self.under_replicated = 0
        """The partitions with a replica that is not in sync, when the brokers last answered."""

    @property
    def where(self) -> str:
        """The topic and its cluster, for messages."""
        return self._options.where

    @property
    def partition_by(self) -> tuple[str, ...] | None:
        """The columns of the key of a record."""
        return self._options.partition_by

    @property
    def problem(self) -> str | None:
        """The reason why the topic takes no records now, or None if it does."""
        problem, error = self._problem, self._last.error  # which other threads change
        if problem is None and error is not None and self._last.stops_all:
            return f"{self.where}: {error.str()}"
        return problem

    def start(self) -> None:
        """Begin to watch the brokers."""
        threading.Thread(target=self._watch, name=f"watch {self.where}", daemon=True).start()

    def write(self, records: Records, settled: Settled) -> None:
        """Give all ``records`` to the producer, and call ``settled`` when the last one is decided.
        Any thread may call this method, and any thread may call ``settled``."""
        delivery = _Delivery(len(records.values), settled)
        for row, value in enumerate(records.values):
            key = None if records.keys is None else records.keys[row]
            headers = records.headers_of(row) or None
            try:
                self._producer.produce(
                    self._options.topic, value, key, headers=headers, on_delivery=delivery.report
                )
            except self._kafka.KafkaException as error:
                delivery.settle(len(records.values) - row, error.args[0])
                return

    def close(self) -> None:
        """End the threads, without a wait. The producer must have no records."""
        self._is_closed.set()

    # -- threads -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._look()
            except EngineError as error:
                self._become(str(error))
            else:
                self._last.clear()
                self._become(None)
            self._is_closed.wait(LOOK_SECONDS)

    def _look(self) -> None:
        """Describe the topic, and open the producer the first time. Raises SourceUnavailable,
        SourceRefused."""
        topic = self._cluster.topic(self._options.topic)
        self.under_replicated = topic.under_replicated
        if not topic.led:
            raise SourceUnavailable(f"no partition of {self.where} has a leader")
        if self._producer is None:
            self.bytes_max = self._limit()
            self._open()

    def _limit(self) -> int:
        try:
            found = self._cluster.settings_of(self._options.topic)
        except SourceRefused as refused:
            log.warning("topic shows no settings", reason=str(refused), largest_record=BYTES_MAX)
            return BYTES_MAX
        return int(found.get("max.message.bytes") or BYTES_MAX)

    def _open(self) -> None:
        """Open the producer. Raises SourceRefused for files of TLS that became unusable."""
        milliseconds = round(request_seconds(self._options) * 1_000)
        low, high = _BYTES_RANGE
        own = {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "message.timeout.ms": milliseconds,
            # A batch of records must not be larger than a record may be.
            "message.max.bytes": max(low, min(self.bytes_max, high)),
            # The store limits what waits, so that a request is never written in part.
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": (1 << 31) - 1,
            "error_cb": self._last.note,
        }
        try:
            self._producer = self._kafka.Producer(settings(self._options) | own)
        except self._kafka.KafkaException as error:
            raise SOURCE.of_options(error, self._options) from error
        threading.Thread(target=self._poll, name=f"poll {self.where}", daemon=True).start()

    def _poll(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._producer.poll(POLL_SECONDS)
            except self._kafka.KafkaException as error:
                # confluent_kafka raises a fatal error here, and does not call error_cb. The next
                # calls report the records that the producer then gives up.
                self._on_fatal(
                    f"the producer of {self.where} can write no more: {error.args[0].str()}"
                )

    def _become(self, problem: str | None) -> None:
        if problem != self._problem:
            if problem is None:
                log.info("the brokers answer", topic=self.where)
            else:
                log.warning("the brokers take no events", reason=problem)
        self._problem = problem


class _Delivery:
    """Counts the records of one request that are not decided yet, and keeps the first error."""

    def __init__(self, records: int, settled: Settled) -> None:
        self._left, self._settled = records, settled
        self._error: Any = None
        self._lock = threading.Lock()

    def report(self, error: Any, _: Any) -> None:
        """Take librdkafka's report about one record."""
        self.settle(1, error)

    def settle(self, records: int, error: Any) -> None:
        """Count ``records`` as decided."""
        with self._lock:
            self._left -= records
            self._error = self._error or error
            is_last = not self._left
        if is_last:
            self._settled(self._error)
