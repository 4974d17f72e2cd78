"""The windowed aggregation computed again with numpy, and the sink compared with it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.database import Database
from benchmarks.paced import Schedule
from benchmarks.workload import (
    KEYS,
    START_US,
    WINDOW_EVENTS,
    Numbers,
    drawn,
)


class SinkDiffers(Exception):
    """An event was lost, or counted twice."""


WINDOW_SECONDS = 10


def closing_events(sent: Schedule) -> list[int]:
    """Ids of two events after which all windows of ``sent`` are in the sink: the first moves the
    watermark behind them, the second, in a later batch, makes Spark act on it."""
    last = (sent.first + sent.events) // WINDOW_EVENTS
    return [(last + 4) * WINDOW_EVENTS, (last + 5) * WINDOW_EVENTS]


def require_equal(database: Database, table: str, sent: Schedule) -> int:
    """The number of windows, all of which must be closed. Raises SinkDiffers.

    ``sent`` must begin with a window, behind all that was sent before.
    """
    began = START_US // 1_000_000 + sent.first // WINDOW_EVENTS * WINDOW_SECONDS
    second = "extract(epoch FROM start)::bigint"
    rows = database.read(
        f"SELECT key, ({second} - {began}) / {WINDOW_SECONDS} AS number, events, "
        f"round(total::numeric, 6) AS total FROM {table} WHERE {second} >= {began}"
    )
    return compare(rows, sent)


def compare(rows: pa.Table, sent: Schedule) -> int:
    """The same for rows of key, number of the window, events, total."""
    counts, millionths = _expected(sent)
    places, found_counts, found_millionths = _found(rows)
    wanted, order = np.flatnonzero(counts), np.argsort(places)
    if not np.array_equal(places[order], wanted):
        raise SinkDiffers(f"there are {len(places)} windows of a key, not the {len(wanted)} sent")
    if not np.array_equal(found_counts[order], counts[wanted]):
        raise SinkDiffers("other events were counted than were sent")
    if not np.array_equal(found_millionths[order], millionths[wanted]):
        raise SinkDiffers("other amounts were summed than were sent")
    return -(-sent.events // WINDOW_EVENTS)


def _expected(sent: Schedule) -> tuple[Numbers, Numbers]:
    """Events and millionths by place: the number of the window, then that of the key."""
    cells = (sent.events // WINDOW_EVENTS + 1) * KEYS
    counts, millionths = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    for first, rows in sent.requests():
        keys, amounts = drawn(first, rows)
        windows = (np.arange(first, first + rows) - sent.first) // WINDOW_EVENTS
        np.add.at(counts, windows * KEYS + keys, 1)
        np.add.at(millionths, windows * KEYS + keys, amounts)
    return counts, millionths


def _found(rows: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
    """Place, events and millionths of each row."""
    keys = pc.cast(pc.utf8_slice_codeunits(rows["key"].cast(pa.string()), 4), pa.int64())
    places = rows["number"].to_numpy() * KEYS + keys.to_numpy()
    total = rows["total"].cast(pa.float64()).to_numpy()
    return places, rows["events"].to_numpy(), np.rint(total * 1e6).astype(np.int64)
