"""The destination of the buckets of a query's sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A table whose rows the tasks of the active of ``epoch`` write, and its database.

    ``url`` is that of the database, with the password. ``connect_timeout`` and ``timeout`` are
    those of a connection and of a statement, in seconds.
    """

    url: str = field(repr=False)
    connect_timeout: float
    timeout: float
    group: str
    group_id: str
    query: str
    sink: str
    epoch: int
    table: str
    mode: Literal["insert", "upsert"]
    key: tuple[str, ...]
    buckets: int
