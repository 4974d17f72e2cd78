"""Where the log of a stream ended at each record of the journal."""

from __future__ import annotations

import bisect

from hypothesis import given
from hypothesis import strategies as st

from ha_engine.receive.log_history import LogHistory
from ha_engine.types import LOG, Events, Pulled


def grown(offset: str, stream: str = "s", source: str = LOG) -> Events:
    return Events(stream, 5, 0, (), (Pulled(source, offset, 5),))


def test_log_that_has_not_begun_ends_nowhere() -> None:
    history = LogHistory()
    history.apply(3, grown("other", stream="t"))
    history.apply(4, grown("no log", source="table"))
    assert history.at("s", 9) is None


def test_log_begins_at_its_first_record_for_every_earlier_one() -> None:
    history = LogHistory()
    history.apply(7, grown("begin"))
    history.apply(9, grown("later"))
    assert [history.at("s", sequence) for sequence in (0, 6, 7, 8, 9, 99)] == [
        *["begin"] * 4,
        *["later"] * 2,
    ]


def test_trimmed_records_leave_the_offset_in_the_base() -> None:
    history = LogHistory()
    history.load_base([("s", LOG, "base", 10, 0, 2), ("s", "table", "x", 1, 0, 1)])
    history.apply(20, grown("later"))
    assert [history.at("s", sequence) for sequence in (10, 19, 20)] == ["base", "base", "later"]


@given(
    st.sets(st.integers(1, 60), min_size=1).map(sorted),
    st.lists(st.integers(1, 60)).map(sorted),
)
def test_what_is_forgotten_changes_no_later_answer(records: list[int], trims: list[int]) -> None:
    history = LogHistory()
    for sequence in records:
        history.apply(sequence, grown(str(sequence)))
    first = 1
    for first in trims:
        history.forget_before(first)
    for sequence in range(first, 62):
        found = records[max(0, bisect.bisect_right(records, sequence) - 1)]
        if found <= sequence:
            assert history.at("s", sequence) == str(found)
