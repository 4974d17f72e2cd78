"""Kafka at marks in Python: the node decides the offsets, and Spark's Python workers read.

The rival of the wrapper of Spark's own source, see benchmarks.kafka_reader. A worker keeps one
consumer for each partition, with what it has fetched ahead, for the case that it also reads the
partition's next range. It takes records in bulk, and only their values.
"""

from __future__ import annotations

import json
import socket
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

FORMAT = "python_kafka"
BULK = 20_000
LOOK_SECONDS = 0.1
SILENT_SECONDS = 120.0
CONSUMERS_MAX = 32
Offset = dict[str, Any]


class PythonKafka(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "value BINARY"

    def streamReader(self, schema: Any) -> PythonKafkaReader:  # noqa: N802
        return PythonKafkaReader(dict(self.options))


@dataclass
class Range(InputPartition):  # type: ignore[misc]
    topic: str
    partition: int
    start: int
    end: int


class PythonKafkaReader(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, options: dict[str, str]) -> None:
        self._brokers, self._socket = options["brokers"], options["socket"]
        self._topic = options["topic"]

    def initialOffset(self) -> Offset:  # noqa: N802
        return self._answer({})

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        return self._answer({"after": start["mark"]})

    def _answer(self, question: dict[str, Any]) -> Offset:
        with socket.socket(socket.AF_UNIX) as node:
            node.connect(self._socket)
            node.sendall(json.dumps(question | {"topics": self._topic}).encode() + b"\n")
            with node.makefile() as answers:
                answer: Offset = json.loads(answers.read())
        return answer

    def partitions(self, start: Offset, end: Offset) -> list[Range]:
        before, ends = start["at"][self._topic], end["at"][self._topic]
        return [
            Range(self._topic, int(number), before.get(number, 0), offset)
            for number, offset in ends.items()
            if before.get(number, 0) < offset
        ]

    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:
        return _reader(self._brokers, partition.topic, partition.partition).values(
            partition.start, partition.end
        )

    def commit(self, end: Offset) -> None:
        """Do nothing: the node keeps the offsets."""


class PartitionReader:
    """A consumer of one partition, in one worker."""

    def __init__(self, brokers: str, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._next: int | None = None
        self._consumer = Consumer(
            {
                "bootstrap.servers": brokers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 16_384,
                # The default stops a fetch for a second once enough was fetched ahead.
                "fetch.queue.backoff.ms": 5,
                "log_level": 0,
            }
        )

    def values(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the values of the committed records from ``start`` to before ``end``."""
        if self._next != start:
            self._consumer.assign([TopicPartition(self._topic, self._partition, start)])
        self._next = None  # what was fetched ahead is of no use after an error
        position, heard = start, time.monotonic()
        while position < end:
            messages = self._consumer.consume(min(end - position, BULK), LOOK_SECONDS)
            if not messages and time.monotonic() - heard > SILENT_SECONDS:
                raise TimeoutError(f"no record of {self._name} from offset {position} on")
            if not messages:
                continue
            heard = time.monotonic()
            position = self._position(messages)
            while messages and messages[-1].offset() >= end:
                messages.pop()
            if messages:
                found = [message.value() for message in messages]
                yield pa.RecordBatch.from_arrays([pa.array(found, pa.binary())], ["value"])
        if position == end:
            self._next = end

    def _position(self, messages: list[Message]) -> int:
        """Take the reports of the partition's end out of ``messages``; return where they end."""
        position: int = messages[-1].offset() + 1
        if any(message.error() is not None for message in messages):
            for message in messages:
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise RuntimeError(f"{self._name}: {error.str()}")
            if messages[-1].error() is not None:
                position = messages[-1].offset()
            messages[:] = [message for message in messages if message.error() is None]
        return position

    @property
    def _name(self) -> str:
        return f"{self._topic}-{self._partition}"

    def close(self) -> None:
        self._consumer.close()


_readers: OrderedDict[tuple[str, str, int], PartitionReader] = OrderedDict()


def _reader(brokers: str, topic: str, partition: int) -> PartitionReader:
    key = brokers, topic, partition
    found = _readers.pop(key, None)
    _readers[key] = found = found or PartitionReader(*key)
    if len(_readers) > CONSUMERS_MAX:
        _readers.popitem(last=False)[1].close()
    return found
