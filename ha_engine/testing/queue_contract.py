"""The tests that a kind of source must pass that reads from a queue. Inherit the tests in a pytest
module as those of ``source_contract``:

class TestMySource(QueueSourceContract):
    kind = MySource

A queue cannot be read again from an offset: it keeps what is not acknowledged, and forgets what is.
The source acknowledges the rows of a batch at the next ``read``, since that call means that the
batch is committed. So the rows of a batch that no ``read`` followed come again, to the same
instance after ``open`` and to the next active. Rows may be repeated, and none is lost.

An offset of such a source must change with each batch, because the engine compares offsets to check
that batch follows batch. ``open`` accepts every offset, and continues where the queue is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ha_engine.errors import SourceUnavailable
from ha_engine.plugins import SourcePlace, SourcePlugin
from ha_engine.testing.sink_contract import SCHEMA
from ha_engine.testing.source_contract import (
    LATE_SECONDS,
    READ_SECONDS,
    ROWS_MAX,
    SourceTests,
    rows_from,
    rows_of,
)

_EMPTY_MAX = 5


class QueueSourceContract(SourceTests):
    """The tests of a kind of source that acknowledges what is committed. A batch without rows that
    only changes the offset is allowed."""

    def setup_method(self, method: Callable[..., None]) -> None:
        super().setup_method(method)
        self.make_queue()

    def make_queue(self) -> None:
        """Let the rows of later calls of ``put`` be kept for the source. An instance does that for
        a queue that begins with its first reader."""
        source = self.opened()
        self._rest(source)
        source.close()

    # -- the contract ------------------------------------------------------------------------------

    def test_without_rows_it_comes_back_in_time(self) -> None:
        source = self.opened()
        began = time.monotonic()
        for _ in range(_EMPTY_MAX):
            if (batch := source.read(ROWS_MAX, READ_SECONDS)) is None:
                break
            assert not batch.rows
        else:
            raise AssertionError("it returns batch after batch without rows")
        assert time.monotonic() - began < _EMPTY_MAX * READ_SECONDS + LATE_SECONDS
        source.close()

    def test_uncommitted_rows_come_again_to_the_next_instance(self) -> None:
        source = self.opened()
        self.put(rows_from(0, 3))
        assert self._rest(source, 3) == rows_from(0, 3)
        self.put(rows_from(3, 7))
        offset = self._batch(source, 4).offset
        source.close()
        for known in (None, "of another kind", offset):
            other = self._opened_within(known)
            assert self._peek(other, 7) == rows_from(3, 7)
            other.close()

    def test_uncommitted_rows_come_again_after_open(self) -> None:
        """After a failure the engine opens a source again, without ``close`` if time was short."""
        source = self.opened()
        self.put(rows_from(0, 3))
        assert self._rest(source, 3) == rows_from(0, 3)
        self.put(rows_from(3, 7))
        self._open_within(source, self._batch(source, 3).offset)
        assert self._rest(source, 7) == rows_from(3, 7)
        source.close()

    def test_nothing_is_acknowledged_by_close_or_open(self) -> None:
        self.put(rows_from(0, 5))
        source, offset = self.opened(), None
        for _ in range(3):
            offset = self._batch(source, 5).offset
            source.close()
            source.close()
            self._open_within(source, offset)
        assert self._rest(source, 5) == rows_from(0, 5)
        source.close()

    def test_committed_rows_do_not_come_again(self) -> None:
        self.put(rows_from(0, 10))
        source = self.opened()
        assert self._rest(source, 10) == rows_from(0, 10)  # the last read commits the last batch
        source.close()
        other = self._opened_within()
        assert self._rest(other) == []
        self.put(rows_from(10, 3))
        assert self._rest(other, 3) == rows_from(10, 3)
        other.close()

    def test_every_batch_changes_the_offset(self) -> None:
        self.put(rows_from(0, 6))
        source, seen = self.opened(), list[str | None]([None])
        while len(seen) < 3:
            batch = self._batch(source, 2)
            self._require_fit(batch)
            assert batch.offset != seen[-1], "the offset is the same as before the batch"
            seen.append(batch.offset)
        source.close()
        other = self._opened_within(seen[-1])
        assert self._batch(other, 2).offset != seen[-1], "another instance repeats the offset"
        other.close()

    def test_a_former_active_acknowledges_nothing_that_the_next_one_has(self) -> None:
        """The former active is paused after a batch, and does not know that it is no longer active.
        Its broker either gives the rows to the next active, or lets it wait for the end of the
        former one."""
        self.put(rows_from(0, 6))
        former = self.opened()
        offset = self._batch(former, 6).offset
        try:
            other = self.opened(offset)
            assert self._peek(other, 6) == rows_from(0, 6)
            try:
                former.read(6, READ_SECONDS)
            except SourceUnavailable:
                pass
            other.close()
        except SourceUnavailable:
            pass
        former.close()
        third = self._opened_within(offset)
        assert self._rest(third, 6) == rows_from(0, 6)
        third.close()

    # -- reads -------------------------------------------------------------------------------------

    def _opened_within(self, offset: str | None = None) -> SourcePlugin:
        """Create another instance, and open it as ``_open_within`` does."""
        place = SourcePlace("group", "stream", "source", SCHEMA)
        source = self.kind(self.kind.Options.model_validate(self.options()), place)
        self._open_within(source, offset)
        return source

    def _open_within(self, source: SourcePlugin, offset: str | None) -> None:
        """Open ``source`` as the engine does: again while the broker ends another connection."""
        until = time.monotonic() + LATE_SECONDS
        while True:
            try:
                return source.open(offset)
            except SourceUnavailable:
                if time.monotonic() > until:
                    raise
                time.sleep(READ_SECONDS / 10)

    def _peek(self, source: SourcePlugin, rows: int) -> list[dict[str, Any]]:
        """Return the next ``rows`` rows, and commit none: a batch that has fewer is read again."""
        until = time.monotonic() + LATE_SECONDS
        while True:
            batch = self._batch(source, rows)
            if len(batch.rows) == rows:
                return rows_of(batch)
            assert time.monotonic() < until, f"{len(batch.rows)} rows came instead of {rows}"
            self._open_within(source, batch.offset)
