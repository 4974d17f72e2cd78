"""The ``postgres`` sink writes rows and ledger in one transaction (RULES.md#i7, RULES.md#r24).

This module handles Arrow and files, and the ``SinkStore`` that the node provides handles the
database.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa

from ha_engine.formats.values import require_form
from ha_engine.outbox.batch_file import read_batch_file
from ha_engine.outbox.outbox import OutboxBatch
from ha_engine.publish.sink import Deadline, Remaining
from ha_engine.publish.sinks.copy_text import CopyText, copy_text

PREPARE_SECONDS = 10.0


class TableStore(Protocol):
    """The database of a sink.

    All methods of a store block, and raise SinkUnavailable, SinkRefused or Fenced.
    """

    def prepare(self, schema: pa.Schema, remaining: Remaining) -> None: ...
    def close(self) -> None: ...


class SinkStore(TableStore, Protocol):
    """The database of a sink with one ledger row."""

    def claim(self, epoch: int, start_after: int, group_id: str, remaining: Remaining) -> int: ...
    def publish(
        self,
        batch: int,
        epoch: int,
        parts: Iterable[CopyText],
        remaining: Remaining,
    ) -> bool: ...


class TableSink:
    """The common part of ``postgres`` sinks. ``key`` names the key columns of an upsert."""

    dead_letters = 0

    def __init__(self, name: str, store: TableStore, key: tuple[str, ...] = ()) -> None:
        self.name = name
        self._table, self._key = store, key
        self._prepared: pa.Schema | None = None

    def prepare(self, schema: pa.Schema) -> None:
        """Create or check the table. ``prepare`` writes no row, so it needs no authority."""
        require_form(pa.schema([field for field in schema if pa.types.is_nested(field.type)]))
        until = time.monotonic() + PREPARE_SECONDS
        self._table.prepare(schema, lambda: until - time.monotonic())
        self._prepared = schema

    def close(self) -> None:
        """Close the connection. A later call opens a new connection."""
        self._table.close()

    def _parts(self, table: pa.Table, remaining: Remaining) -> tuple[CopyText, ...]:
        if self._prepared is None or not table.schema.equals(self._prepared):
            self._table.prepare(table.schema, remaining)
            self._prepared = table.schema
        return (copy_text(table, self._key),)


class PostgresSink(TableSink):
    """Implements ``publish.Sink``."""

    def __init__(self, name: str, store: SinkStore, key: tuple[str, ...] = ()) -> None:
        super().__init__(name, store, key)
        self._store = store

    def claim(self, epoch: int, start_after: int, group_id: str, deadline: Deadline) -> int:
        """Raise the ledger's epoch and return the last published batch."""
        return self._store.claim(epoch, start_after, group_id, deadline.remaining_seconds)

    def publish(self, number: int, batch: OutboxBatch, epoch: int, deadline: Deadline) -> None:
        """Write the batch once. A batch without rows only moves the ledger."""
        remaining = deadline.remaining_seconds
        parts = () if batch.rows == 0 else self._parts(read_batch_file(batch.path), remaining)
        self._store.publish(number, epoch, parts, remaining)
