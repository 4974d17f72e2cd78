"""Check the object that a plug-in has returned before the engine uses it: a plug-in may return
anything."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ha_engine.plugins import OFFSET_BYTES_MAX, DeadLetter, SourceBatch


def coerced(read: Any, rows_max: int) -> SourceBatch | None:
    """Copy ``read``, which a plug-in returned, into values of the declared types. Raises TypeError,
    ValueError, or any error that the plug-in's objects raise."""
    if read is None:
        return None
    if not isinstance(read, SourceBatch) or not isinstance(read.offset, str):
        raise TypeError("the plug-in returned no batch with an offset")
    if len(read.offset.encode()) > OFFSET_BYTES_MAX:
        raise ValueError(f"the offset has more than {OFFSET_BYTES_MAX} bytes")
    rows = read.rows if isinstance(read.rows, pa.RecordBatch) else tuple(map(_row, read.rows))
    if len(rows) > rows_max:
        raise ValueError(f"the plug-in returned {len(rows)} rows, the limit is {rows_max}")
    letters = tuple(map(_letter, read.dead_letters))
    backlog = None if read.backlog is None else int(read.backlog)
    return SourceBatch(read.offset, rows, letters, read.place, backlog)


def _row(row: Any) -> bytes:
    if not isinstance(row, bytes):
        raise TypeError(f"a row is {type(row).__name__}, but must be bytes")
    return row


def _letter(letter: DeadLetter) -> DeadLetter:
    return DeadLetter(str(letter.place), str(letter.reason), bytes(letter.raw))
