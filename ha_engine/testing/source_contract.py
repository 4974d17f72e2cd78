"""The tests that every kind of source must pass. Inherit the tests in a pytest module:

class TestMySource(SourceContract):
    kind = MySource

    def options(self) -> dict[str, Any]:
        return {"directory": str(self.home)}

    def put(self, rows: list[dict[str, Any]]) -> None:
        make these rows readable, after those of earlier calls

The rows of the tests have the columns ``id`` (a number) and ``text``. A source of messages gets
each row as a message in JSON. The source must return every row in order. When opened at an offset
that it returned, the source must return the following rows again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from ha_engine.plugins import (
    OFFSET_BYTES_MAX,
    SOURCES,
    Messages,
    SourceBatch,
    SourcePlace,
    SourcePlugin,
    require_fit,
)
from ha_engine.testing.sink_contract import SCHEMA, refusal_of

READ_SECONDS = 0.3
LATE_SECONDS = 10.0
ROWS_MAX = 1_000


def rows_from(first: int, count: int) -> list[dict[str, Any]]:
    """Return ``count`` rows, whose ids begin at ``first``."""
    return [{"id": row, "text": f'row {row}, "quoted", é'} for row in range(first, first + count)]


def rows_of(batch: SourceBatch) -> list[dict[str, Any]]:
    """Return the rows of ``batch``, whatever form they have."""
    if isinstance(batch.rows, pa.RecordBatch):
        found: list[dict[str, Any]] = batch.rows.to_pylist()
        return found
    rows = batch.rows.values if isinstance(batch.rows, Messages) else batch.rows
    return [json.loads(row or b"null") for row in rows]


class SourceTests:
    """The tests of any kind of source, and what the tests of a kind need. ``home`` is an empty
    directory for one test."""

    kind: ClassVar[type[SourcePlugin]]
    home: Path

    def options(self) -> dict[str, Any]:
        """The source's options as in an application file, without name and type."""
        raise NotImplementedError

    def put(self, rows: list[dict[str, Any]]) -> None:
        """Make ``rows`` readable for the source, after the rows of earlier calls."""
        raise NotImplementedError

    def opened(self, offset: str | None = None) -> SourcePlugin:
        """Create an instance of the source, as another node or a new process would."""
        place = SourcePlace("group", "stream", "source", SCHEMA)
        source = self.kind(self.kind.Options.model_validate(self.options()), place)
        source.open(offset)
        return source

    def setup_method(self, method: Callable[..., None]) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="source-contract-"))

    def teardown_method(self, method: Callable[..., None]) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    # -- the contract ------------------------------------------------------------------------------

    def test_it_has_what_the_engine_calls(self) -> None:
        require_fit(self.kind, SOURCES)

    def test_it_refuses_a_key_that_it_does_not_know(self) -> None:
        refusal = refusal_of(self.kind.Options, self.options() | {"no_such_key": 1})
        assert "no_such_key" in refusal, "Options accepts an unknown key; set extra='forbid'"

    def test_all_rows_come_in_their_order(self) -> None:
        self.put(rows_from(0, 2_500))
        self.put(rows_from(2_500, 3))
        source = self.opened()
        assert self._rest(source) == rows_from(0, 2_503)
        source.close()

    def test_it_reads_no_more_rows_than_it_may(self) -> None:
        self.put(rows_from(0, 20))
        source = self.opened()
        found = list[dict[str, Any]]()
        while len(found) < 20:
            rows = self._read(source, 3)
            assert len(rows) <= 3
            found += rows
        assert found == rows_from(0, 20)
        source.close()

    def test_rows_that_come_later_are_read(self) -> None:
        self.put(rows_from(0, 3))
        source = self.opened()
        assert self._rest(source) == rows_from(0, 3)
        self.put(rows_from(3, 3))
        assert self._rest(source, 3) == rows_from(3, 3)
        source.close()

    def _rest(self, source: SourcePlugin, least: int = 0) -> list[dict[str, Any]]:
        """Return all available rows. Wait for at least ``least`` rows, but at most LATE_SECONDS."""
        found, until = list[dict[str, Any]](), time.monotonic() + LATE_SECONDS
        while True:
            batch = source.read(ROWS_MAX, READ_SECONDS)
            if batch is not None:
                self._require_fit(batch)
                found += rows_of(batch)
            elif len(found) >= least or time.monotonic() > until:
                return found

    def _read(self, source: SourcePlugin, rows_max: int) -> list[dict[str, Any]]:
        batch = self._batch(source, rows_max)
        return rows_of(batch)

    @staticmethod
    def _batch(source: SourcePlugin, rows_max: int) -> SourceBatch:
        """Return the next batch that has rows."""
        while True:
            batch = source.read(rows_max, LATE_SECONDS)
            assert batch is not None, "rows are missing"
            if batch.rows:
                return batch

    @staticmethod
    def _require_fit(batch: SourceBatch) -> None:
        assert isinstance(batch.offset, str), "an offset is text"
        assert len(batch.offset.encode()) <= OFFSET_BYTES_MAX, "the offset is too long"
        assert not batch.dead_letters
        for row in range(len(batch.rows)):
            assert batch.place(row), "a row has no place"


class SourceContract(SourceTests):
    """The tests of a kind of source that can be read again from an offset."""

    def test_without_rows_it_comes_back_in_time(self) -> None:
        source = self.opened()
        began = time.monotonic()
        assert source.read(ROWS_MAX, READ_SECONDS) is None
        assert time.monotonic() - began < READ_SECONDS + LATE_SECONDS
        source.close()

    def test_another_instance_goes_on_behind_any_offset(self) -> None:
        self.put(rows_from(0, 5))
        self.put(rows_from(5, 5))
        source, offsets = self.opened(), list[tuple[str | None, int]]([(None, 0)])
        while offsets[-1][1] < 10:
            batch = source.read(3, LATE_SECONDS)
            assert batch is not None, "rows are missing"
            self._require_fit(batch)
            offsets.append((batch.offset, offsets[-1][1] + len(batch.rows)))
        source.close()
        for offset, rows in offsets:
            other = self.opened(offset)
            assert self._rest(other, 10 - rows) == rows_from(rows, 10 - rows)
            other.close()

    def test_it_may_be_opened_again_where_it_was_before(self) -> None:
        """After a failure the engine opens a source again, without ``close`` if time was short."""
        self.put(rows_from(0, 10))
        source = self.opened()
        first = source.read(3, LATE_SECONDS)
        assert first is not None
        self._read(source, 3)
        source.open(first.offset)
        rest = 10 - len(first.rows)
        assert self._rest(source, rest) == rows_from(10 - rest, rest)
        source.close()
        source.close()
        source.open(None)
        assert self._rest(source, 10) == rows_from(0, 10)
        source.close()
