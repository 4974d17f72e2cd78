"""The postgres sink obeys the contract of every other kind, though it moves its own ledger."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from ha_engine.plugins import OutputBatch, SinkPlace
from ha_engine.postgres.sink_table import Target
from ha_engine.query.sink_sections import PostgresSinkSection
from ha_engine.testing import SinkContract
from tests.publish.batches import GROUP, batch_of, open_sink, rows_of, soon

TABLE = "kept"


class CalledAsAPlugin:
    """Each instance is the sink of another active: it claims the ledger with its first batch."""

    Options = PostgresSinkSection
    guarantee = "exactly once, by a ledger in the transaction of the rows"
    epochs: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, options: PostgresSinkSection, place: SinkPlace) -> None:
        assert options.url is not None
        target = Target(options.table, options.mode, tuple(options.key), options.auto_create)
        self._sink = open_sink(options.url, target)
        self._epoch = 0

    def prepare(self, schema: pa.Schema) -> None:
        self._sink.prepare(schema)

    def deliver(self, batch: OutputBatch) -> None:
        if not self._epoch:
            self._epoch = next(self.epochs)
            self._sink.claim(self._epoch, 0, GROUP, soon())
        with tempfile.TemporaryDirectory() as directory:
            made = batch_of(Path(directory), batch.read(), batch.number)
            self._sink.publish(batch.number, made, self._epoch, soon())

    def close(self) -> None:
        self._sink.close()


class TestPostgres(SinkContract):
    kind = CalledAsAPlugin

    @pytest.fixture(autouse=True)
    def _database(self, database_url: str) -> None:
        self.url = database_url

    def options(self) -> dict[str, Any]:
        return {"url": self.url, "table": TABLE, "auto_create": True}

    def delivered(self) -> list[dict[str, Any]]:
        found = rows_of(self.url, f"SELECT id, text FROM {TABLE}")
        return [{"id": number, "text": words} for number, words in found]
