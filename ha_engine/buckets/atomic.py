"""Begin and commit a batch of which readers see all rows at once, as the driver of Spark's tasks.

The tasks write into a staging table that ``begin`` creates (``task.stage_bucket``), and ``commit``
moves their rows into the sink's table.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ha_engine.buckets.place import BucketPlace, Table
from ha_engine.buckets.table import table_of
from ha_engine.postgres.staged_store import StagedSinkStore


def is_atomic(place: BucketPlace) -> bool:
    """Whether readers see all rows of a batch at once."""
    return isinstance(place.target, Table) and place.target.atomic


def begin(place: BucketPlace, number: int, columns: Sequence[str]) -> str | None:
    """Create the staging table of an attempt to write batch ``number``, and return its name.

    Returns None if the sink has the batch. Raises SinkUnavailable, SinkRefused or Fenced.
    """
    store, until = staged_store(place), time.monotonic() + place.timeout
    try:
        return store.begin(number, place.epoch, columns, lambda: until - time.monotonic())
    finally:
        store.close()


def commit(
    place: BucketPlace,
    number: int,
    columns: Sequence[str],
    stage: str | None,
    staged: Mapping[int, int],
) -> None:
    """Move the rows of batch ``number`` from the staging table into the sink's table.

    ``staged`` has the number of rows of each task. ``stage`` is None for a batch without rows. The
    commit may take the time of a call for each bucket, since one call wrote a bucket of it. Raises
    SinkUnavailable, SinkRefused or Fenced.
    """
    store, until = staged_store(place), time.monotonic() + place.timeout * place.buckets
    try:
        store.commit(number, place.epoch, columns, stage, staged, lambda: until - time.monotonic())
    finally:
        store.close()


def staged_store(place: BucketPlace) -> StagedSinkStore:
    """The staging tables and the ledger row of the sink, not connected yet."""
    assert isinstance(place.target, Table)
    return StagedSinkStore(*table_of(place, place.target), group_id=place.group_id)
