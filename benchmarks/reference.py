"""The windowed aggregation computed again with numpy, and the sink compared with it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.database import Database
from benchmarks.paced import Schedule
from benchmarks.workload import (
    BATCH_EVENTS,
    KEYS,
    START_US,
    WINDOW_EVENTS,
    Numbers,
    drawn,
)


class SinkDiffers(Exception):
    """An event was lost, or counted twice."""


WINDOW_SECONDS = 10
OPEN_EVENTS_MAX = 2 * (BATCH_EVENTS + WINDOW_EVENTS) + WINDOW_EVENTS
"""So many of the newest may wait in windows that are still open: the watermark's delay, the batches
that have not moved it yet, and the window that began."""


def require_equal(database: Database, table: str, sent: Schedule) -> int:
    """How many windows are closed. Raises SinkDiffers when one is wrong, twice or not there.

    ``sent`` must begin with a window, behind all that was sent before.
    """
    began = START_US // 1_000_000 + sent.first // WINDOW_EVENTS * WINDOW_SECONDS
    second = "extract(epoch FROM start)::bigint"
    rows = database.read(
        f"SELECT key, ({second} - {began}) / {WINDOW_SECONDS} AS number, events, "
        f"round(total::numeric, 6) AS total FROM {table} WHERE {second} >= {began}"
    )
    return closed_windows(rows, sent)


def closed_windows(rows: pa.Table, sent: Schedule) -> int:
    """The same for rows of key, number of the window, events, total."""
    counts, millionths = _expected(sent)
    places, found_counts, found_millionths = _found(rows)
    closed = int(places.max()) // KEYS + 1 if len(places) else 0
    wanted = np.flatnonzero(counts[: closed * KEYS])
    order = np.argsort(places)
    if not np.array_equal(places[order], wanted):
        raise SinkDiffers(f"{len(places)} rows of {closed} windows, not {len(wanted)}")
    if not np.array_equal(found_counts[order], counts[wanted]):
        raise SinkDiffers("other events were counted than were sent")
    if not np.array_equal(found_millionths[order], millionths[wanted]):
        raise SinkDiffers("other amounts were summed than were sent")
    if closed * WINDOW_EVENTS < sent.events - OPEN_EVENTS_MAX:
        raise SinkDiffers(f"only {closed} windows of {sent.events} events are there")
    return closed


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
