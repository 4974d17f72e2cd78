"""The source kind ``rabbitmq``, which reads a queue or a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pyarrow as pa

from ha_engine.connectors.rabbitmq.consumer import ATTRIBUTES, RabbitSourceOptions
from ha_engine.connectors.rabbitmq.queue_source import QueueSource
from ha_engine.connectors.rabbitmq.stream_source import StreamSource
from ha_engine.errors import SourceRefused
from ha_engine.plugins import SourceBatch, SourcePlace


class RabbitSource:
    """Implements ``plugins.SourcePlugin``."""

    Options: ClassVar[type[RabbitSourceOptions]] = RabbitSourceOptions
    guarantee: ClassVar[str] = (
        "a stream exactly once: it is read by its offsets; a queue at least once: a failover or a "
        "lost connection may repeat messages, and the queue must be durable and its messages "
        "persistent"
    )
    attributes: ClassVar[Mapping[str, pa.DataType]] = ATTRIBUTES

    def __init__(self, options: RabbitSourceOptions, place: SourcePlace) -> None:
        self._source: QueueSource | StreamSource
        if options.queue is not None:
            self._source = QueueSource(options, options.queue, place)
        else:
            self._source = StreamSource(options, options.stream or "", place)

    def check(self) -> None:
        """Connect, and require that the queue or stream exists."""
        self._source.check()

    def peek(self, offset: str | None, rows_max: int, seconds: float) -> SourceBatch | None:
        """Return the next rows of a stream after ``offset``."""
        if isinstance(self._source, QueueSource):
            raise SourceRefused("a queue cannot show rows without taking them")
        return self._source.peek(offset, rows_max, seconds)

    def open(self, offset: str | None) -> None:
        self._source.open(offset)

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        return self._source.read(rows_max, seconds)

    def close(self) -> None:
        self._source.close()
