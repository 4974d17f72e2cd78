"""Compare the output of a query with that of its shadow, batch by batch (RULES.md#r38)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ha_engine.errors import OutboxDamaged
from ha_engine.outbox.batch_file import read_batch_file
from ha_engine.outbox.canonical import row_keys
from ha_engine.outbox.outbox import Outbox
from ha_engine.outbox.published import PublishedBatches


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows of batch ``number``, as multisets. ``only_live`` and ``only_shadow`` count the rows
    that the other output lacks, and the two tuples have the first of them."""

    number: int
    live: int
    shadow: int
    only_live: int
    only_shadow: int
    live_rows: tuple[dict[str, Any], ...] = ()
    shadow_rows: tuple[dict[str, Any], ...] = ()


def compare(number: int, live: pa.Table, shadow: pa.Table, rows_max: int) -> Difference:
    """Compare the rows of two batches. At most ``rows_max`` of each side are examples."""
    ours, theirs = row_keys(live), row_keys(shadow)
    lacking = Counter(ours), Counter(theirs)
    only_live, only_shadow = lacking[0] - lacking[1], lacking[1] - lacking[0]
    return Difference(
        number,
        live.num_rows,
        shadow.num_rows,
        only_live.total(),
        only_shadow.total(),
        _examples(live, ours, only_live, rows_max),
        _examples(shadow, theirs, only_shadow, rows_max),
    )


def _examples(
    table: pa.Table, keys: list[bytes], only: Counter[bytes], rows_max: int
) -> tuple[dict[str, Any], ...]:
    left, found = Counter(only), list[int]()
    for index, key in enumerate(keys):
        if len(found) == rows_max:
            break
        if left[key] > 0:
            left[key] -= 1
            found.append(index)
    return tuple(table.take(found).to_pylist()) if found else ()


def compare_newest(
    outbox: Outbox,
    published: PublishedBatches,
    query: str,
    shadow: str,
    batches_max: int,
    rows_max: int,
) -> list[Difference]:
    """Compare the newest batches that this node has of both, newest first. Raises OSError."""
    found = list[Difference]()
    for number, live, made in _pairs(outbox, published, query, shadow):
        if len(found) == batches_max:
            break
        found.append(compare(number, live, made, rows_max))
    return found


def _pairs(
    outbox: Outbox, published: PublishedBatches, query: str, shadow: str
) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    number = outbox.last_admitted(shadow)
    while (made := outbox.batch(shadow, number)) is not None:
        kept = published.after(query, number - 1)
        batch = outbox.batch(query, number)
        path = batch.path if batch is not None else None
        if path is None and kept is not None and kept.number == number:
            path = kept.path
        if path is None:
            return
        try:
            yield number, read_batch_file(path), read_batch_file(made.path)
        except OutboxDamaged:
            # The node trims while it compares; a damaged file shows itself where it matters.
            return
        number -= 1
