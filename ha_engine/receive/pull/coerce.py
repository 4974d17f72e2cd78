"""Check the object that a plug-in has returned before the engine uses it: a plug-in may return
anything."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from ha_engine.plugins import OFFSET_BYTES_MAX, Backlog, DeadLetter, Messages, SourceBatch
from ha_engine.plugins.interface import Rows


def coerced(read: Any, rows_max: int) -> SourceBatch | None:
    """Copy ``read``, which a plug-in returned, into values of the declared types. Raises TypeError,
    ValueError, or any error that the plug-in's objects raise."""
    if read is None:
        return None
    if not isinstance(read, SourceBatch) or not isinstance(read.offset, str):
        raise TypeError("the plug-in returned no batch with an offset")
    if len(read.offset.encode()) > OFFSET_BYTES_MAX:
        raise ValueError(f"the offset has more than {OFFSET_BYTES_MAX} bytes")
    rows = _rows(read.rows)
    if len(rows) > rows_max:
        raise ValueError(f"the plug-in returned {len(rows)} rows, the limit is {rows_max}")
    letters = tuple(map(_letter, read.dead_letters))
    backlog, kept = _backlog(read.backlog), int(read.kept)
    return SourceBatch(read.offset, rows, letters, read.place, backlog, kept)


def _rows(rows: Any) -> Rows:
    match rows:
        case pa.RecordBatch():
            return rows
        case Messages():
            values = tuple(None if value is None else _row(value) for value in rows.values)
            attributes = {str(name): tuple(each) for name, each in rows.attributes.items()}
            for name, each in attributes.items():
                if len(each) != len(values):
                    raise ValueError(
                        f"{len(values)} messages have {len(each)} values of attribute {name}"
                    )
            return Messages(values, attributes)
        case _:
            return tuple(map(_row, rows))


def _backlog(backlog: Any) -> Backlog | None:
    if backlog is None:
        return None
    figures = (backlog.events, backlog.bytes, backlog.seconds)
    if not all(one is None or (math.isfinite(one) and one >= 0) for one in figures):
        raise ValueError(f"the backlog is no figure: {figures}")
    events, size, seconds = figures
    return Backlog(
        None if events is None else int(events),
        None if size is None else int(size),
        None if seconds is None else float(seconds),
    )


def _row(row: Any) -> bytes:
    if not isinstance(row, bytes):
        raise TypeError(f"a row is {type(row).__name__}, but must be bytes")
    return row


def _letter(letter: DeadLetter) -> DeadLetter:
    return DeadLetter(str(letter.place), str(letter.reason), bytes(letter.raw))
