"""The batches after which a new active may continue the checkpoint of an earlier one
(RULES.md#r33)."""

from __future__ import annotations

import pytest

from ha_engine.core.marks import QueryMarks
from ha_engine.types import Mark, Position, Published
from tests.core.world import LIMITS

EPOCHS = (Position(1, 1), Position(2, 20))
"""Epoch 1 has the marks 1 to 3 in the records 5, 10 and 15, and epoch 2 has mark 4 in record 25."""
COMMITTED = 40


@pytest.fixture
def marks() -> QueryMarks:
    marks = QueryMarks("q", frozenset({"s"}), ("board",), LIMITS)
    for number, record in enumerate((5, 10, 15, 25), 1):
        marks.apply_mark(record, Mark("q", number, record - 1))
    return marks


def publish(marks: QueryMarks, number: int) -> None:
    marks.apply_published(30, Published("q", "board", number))


def test_no_batch_is_shared_that_a_sink_lacks_or_a_later_epoch_planned(marks: QueryMarks) -> None:
    assert [*marks.shared(EPOCHS, COMMITTED, 0)] == []
    publish(marks, 2)
    assert [*marks.shared(EPOCHS, COMMITTED, 0)] == [(1, 2), (2, 2)]
    publish(marks, 4)
    assert [*marks.shared(EPOCHS, COMMITTED, 0)] == [(1, 3), (2, 4)]


def test_state_is_shared_while_the_journal_has_all_later_records(marks: QueryMarks) -> None:
    publish(marks, 4)
    marks.forget_through(24)
    assert [*marks.shared(EPOCHS, COMMITTED, 24)] == [(2, 4)]


def test_no_state_is_shared_whose_later_records_are_trimmed(marks: QueryMarks) -> None:
    """A failover took back the published record of a later batch, for which they were trimmed."""
    publish(marks, 4)
    marks.forget_through(25)
    assert [*marks.shared(EPOCHS, COMMITTED, 25)] == []
    marks.apply_mark(31, Mark("q", 5, 28))
    marks.apply_mark(32, Mark("q", 6, 30))
    publish(marks, 5)
    assert [*marks.shared(EPOCHS, COMMITTED, 29)] == []
    assert [*marks.shared(EPOCHS, COMMITTED, 28)] == [(2, 5)]
