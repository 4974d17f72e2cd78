"""Turn the events of a request into the records of a topic.

The value of a record is the event as a JSON object, which the queries read with Spark's
``from_json`` (``query/kafka_stream.py``). Spark reads exactly the value that the event had, for
each type that a stream may declare. The decoders of the receive stage have already refused what has
no exact form in JSON, such as NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ha_engine.errors import InvalidEvents
from ha_engine.formats.json_lines import json_rows
from ha_engine.types import Submission

PRODUCER, SEQUENCE, ROW = "ha-producer", "ha-sequence", "ha-row"
"""The headers of a record whose request has a producer and a sequence. They identify the event:
a record with the same headers repeats it."""
ENVELOPE_BYTES = 512
"""Bytes of a record's headers and frame, at most."""

Header = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one request, in the order of its events.

    ``keys`` is None if the events may be in any partition. ``headers`` are those that all records
    have; each record also has ``ROW``, unless there are none.
    """

    values: Sequence[bytes]
    keys: Sequence[bytes] | None
    headers: Sequence[Header]

    @property
    def size(self) -> int:
        """Bytes of all keys and values."""
        return sum(map(len, self.values)) + sum(map(len, self.keys or ()))

    def headers_of(self, row: int) -> list[Header]:
        """All headers of the record of event ``row``."""
        return [*self.headers, (ROW, str(row).encode())] if self.headers else []


def records_of(
    batch: pa.RecordBatch, partition_by: Sequence[str] | None, submission: Submission | None
) -> Records:
    """Write each event of ``batch``. The key of a record is a JSON object of the columns
    ``partition_by``."""
    table = pa.Table.from_batches([batch])
    keys = None if partition_by is None else _encoded(table.select(list(partition_by)))
    return Records(_encoded(table), keys, _headers(submission))


def require_fit(records: Records, bytes_max: int) -> None:
    """Raise InvalidEvents, with the number of the row, if the topic takes no record as large as one
    of ``records``."""
    room = bytes_max - ENVELOPE_BYTES
    for row, value in enumerate(records.values):
        size = len(value) + (len(records.keys[row]) if records.keys else 0)
        if size > room:
            raise InvalidEvents(
                f"the event has {size} bytes as a record, and the topic of the stream takes at "
                f"most {room}; raise max.message.bytes of the topic, or send less",
                row,
            )


def _encoded(table: pa.Table) -> list[bytes]:
    return [text.encode() for text in json_rows(table)]


def _headers(submission: Submission | None) -> list[Header]:
    if submission is None:
        return []
    return [
        (PRODUCER, submission.producer.encode()),
        (SEQUENCE, str(submission.sequence).encode()),
    ]
