"""Batches for the tests of publishing: real files in a real outbox, a sink on a real database."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
from sqlalchemy import text

from ha_engine.outbox import Outbox, OutboxBatch
from ha_engine.outbox.batch_file import write_batch_file
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.sink_store import PostgresSinkStore
from ha_engine.postgres.sink_table import Target
from ha_engine.publish import Deadline
from ha_engine.publish.sinks.postgres import PostgresSink

QUERY, SINK = "delays", "table"
GROUP = "a4d2a4c8-0d7d-4c9b-9d57-5b8c6f0f6f11"
"""The UUID of the group whose name is default."""


class Granted:
    """An authority that the test grants and revokes."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.until = time.monotonic() + seconds
        self.marked = 0

    def remaining_seconds(self) -> float:
        return self.until - time.monotonic()

    def highest_planned(self, query: str) -> int:
        return self.marked


def soon(seconds: float = 10.0) -> Deadline:
    return Deadline(Granted(), seconds)


def admit(outbox: Outbox, directory: Path, number: int, table: pa.Table) -> None:
    file = f"{QUERY}/pending/{number}.i.arrow"
    (directory / file).parent.mkdir(parents=True, exist_ok=True)
    written = write_batch_file(directory / file, table, query=QUERY, number=number)
    outbox.admit(QUERY, number, file, written.rows, written.bytes)


def batch_of(directory: Path, table: pa.Table, number: int = 1) -> OutboxBatch:
    path = directory / f"{number}.arrow"
    written = write_batch_file(path, table, query=QUERY, number=number)
    return OutboxBatch(path, written.rows, written.bytes)


def open_sink(url: str, target: Target, *, timeout: float = 10.0) -> PostgresSink:
    engine = open_engine(url, statement_timeout=timeout)
    store = PostgresSinkStore(engine, LedgerKey("default", QUERY, SINK), target)
    return PostgresSink(SINK, store, target.key)


def rows_of(url: str, query: str) -> list[tuple[object, ...]]:
    with open_engine(url).connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def execute(url: str, statement: str) -> None:
    with open_engine(url).begin() as connection:
        connection.execute(text(statement))


def ledger_of(url: str) -> tuple[int, int]:
    [(epoch, batch)] = rows_of(url, "SELECT epoch, batch FROM ha_engine_ledger")
    return int(str(epoch)), int(str(batch))
