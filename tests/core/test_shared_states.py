"""The batches after which a new active may continue the checkpoint of an earlier one
(RULES.md#r33)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ha_engine.core.marks import QueryMarks
from ha_engine.types import Mark, Position, Published, QueryBase, QueryVersion
from tests.core.world import LIMITS

EPOCHS = (Position(1, 1), Position(2, 20))
"""Epoch 1 has the marks 1 to 3 in the records 5, 10 and 15, and epoch 2 has mark 4 in record 25."""
COMMITTED = 40
BASE = QueryBase(
    QueryVersion("q", "d", Mark("q", 0, 0)), 2, None, Mark("q", 0, 0), Mark("q", 4, 24)
)


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


def test_state_after_the_newest_trimmed_mark_is_shared(marks: QueryMarks) -> None:
    """While no events arrive, both nodes trim all records."""
    publish(marks, 4)
    marks.forget_through(30)
    assert [*marks.shared(EPOCHS, COMMITTED, 30)] == [(2, 4)]


def test_epoch_that_ended_before_the_trimmed_records_shares_nothing(marks: QueryMarks) -> None:
    publish(marks, 4)
    marks.forget_through(25)
    assert [*marks.shared(EPOCHS, 25, 25)] == []
    assert [*marks.shared(EPOCHS, COMMITTED, 25)] == [(2, 4)]


@pytest.mark.parametrize(("ahead", "expected"), [((), [(2, 4)]), ((Mark("q", 4, 24),), [])])
def test_mark_of_a_restored_snapshot_is_shared_only_if_the_base_has_its_record(
    ahead: tuple[Mark, ...], expected: list[tuple[int, int]]
) -> None:
    marks = QueryMarks("q", frozenset({"s"}), ("board",), LIMITS)
    marks.load_base(replace(BASE, ahead=ahead, published=(("board", 4),)))
    assert [*marks.shared(EPOCHS, COMMITTED, 30)] == expected
