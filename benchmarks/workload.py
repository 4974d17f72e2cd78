"""What both sides compute: made events, and three queries over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

KEYS = 10_000
EVENTS_PER_SECOND = 20_000
"""Of event time: a window of ten seconds holds twenty events of each key."""
WINDOW_EVENTS = 10 * EVENTS_PER_SECOND
WATERMARK = ("at", "10 seconds")
BATCH_EVENTS = 200_000
REQUEST_ROWS = 20_000
START_US = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("amount", pa.float64(), nullable=False),
    ]
)
DDL = "id BIGINT NOT NULL, at TIMESTAMP NOT NULL, key STRING NOT NULL, amount DOUBLE NOT NULL"

Numbers = np.ndarray[Any, np.dtype[np.int64]]
_NAMES = pa.array([f"key-{key:05}" for key in range(KEYS)])


@dataclass(frozen=True, slots=True)
class Workload:
    """One query over a stream of its own, which has its name."""

    name: str
    title: str
    sql: str


WORKLOADS = (
    Workload("filter_1", "filter, 1 % pass", "SELECT * FROM filter_1 WHERE amount < 0.01"),
    Workload("filter_100", "filter, 100 % pass", "SELECT * FROM filter_100 WHERE amount >= 0"),
    Workload(
        "windowed",
        "windowed aggregation",
        "SELECT key, window.start AS start, count(*) AS events, sum(amount) AS total "
        "FROM windowed GROUP BY key, window(at, '10 seconds')",
    ),
)


WINDOWED = WORKLOADS[2]


def application(workloads: Sequence[Workload] = WORKLOADS) -> str:
    """The stream application of the engine's side."""
    schema = {
        "id": "bigint not null",
        "at": "timestamp not null",
        "key": "string not null",
        "amount": "double not null",
    }
    column, delay = WATERMARK
    stream = {"schema": schema, "watermark": {"column": column, "delay": delay}}
    return yaml.safe_dump(
        {
            "name": "bench",
            "streams": {workload.name: stream for workload in workloads},
            "queries": {workload.name: _query(workload) for workload in workloads},
        },
        sort_keys=False,
    )


def _query(workload: Workload) -> dict[str, object]:
    sink = {
        "name": "table",
        "type": "postgres",
        "table": f"engine_{workload.name}",
        "auto_create": True,
    }
    return {"sql": workload.sql, "output_mode": "append", "sinks": [sink]}


def drawn(first: int, count: int) -> tuple[Numbers, Numbers]:
    """Number of the key, and millionths of the amount, of each event of one request."""
    random = np.random.default_rng(first)
    return random.integers(0, KEYS, count), np.rint(random.random(count) * 1e6).astype(np.int64)


def events(first: int, count: int) -> pa.RecordBatch:
    """``count`` events with ids from ``first``; the same call gives the same events."""
    ids = np.arange(first, first + count, dtype=np.int64)
    keys, millionths = drawn(first, count)
    names = pa.DictionaryArray.from_arrays(keys, _NAMES)
    columns = [
        pa.array(ids),
        pa.array(START_US + ids * (1_000_000 // EVENTS_PER_SECOND)).cast(SCHEMA.field("at").type),
        names.cast(pa.string()),
        pa.array(millionths / 1e6),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


FIRST_EVENT = events(0, 1)
"""Sent to each query at its start, so that nothing is measured before it works."""


def requests(first: int, count: int, rows: int = REQUEST_ROWS) -> list[pa.RecordBatch]:
    """The same events cut into requests."""
    return [
        events(start, min(rows, first + count - start))
        for start in range(first, first + count, rows)
    ]


def as_ndjson(batch: pa.RecordBatch) -> bytes:
    """A request's body. Arrow joins the text, or making it would cost more than taking it."""
    number, at, key, amount = batch.columns
    parts = [
        '{"id":',
        number.cast(pa.string()),
        ',"at":"',
        pc.strftime(at, format="%Y-%m-%dT%H:%M:%SZ"),
        '","key":"',
        key,
        '","amount":',
        amount.cast(pa.string()),
        "}\n",
        "",
    ]
    lines = pc.binary_join_element_wise(*parts)
    body: bytes = lines.buffers()[2].to_pybytes()
    return body
