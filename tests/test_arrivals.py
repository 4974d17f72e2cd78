"""Lags in seconds and in events, from the arrival times of the records of the journal."""

from __future__ import annotations

from ha_engine.stats.lag import SLOT_SECONDS, SLOTS_MAX, Arrivals
from ha_engine.types import Events, Mark, Position, Record


def record(sequence: int, body: Events | Mark) -> Record:
    return Record(Position(1, sequence), 0, body)


def events(sequence: int, rows: int = 10, stream: str = "s") -> Record:
    return record(sequence, Events(stream, rows, 0))


def test_lag_behind_a_sequence_is_given_in_seconds_and_events() -> None:
    arrivals = Arrivals()
    arrivals.saw(100.0, [events(1)])
    arrivals.saw(103.0, [events(3, 20), events(4, 5)])
    assert (arrivals.seconds_behind(110.0, 0), arrivals.events_behind(0)) == (10.0, 35)
    assert (arrivals.seconds_behind(110.0, 1), arrivals.events_behind(1)) == (7.0, 25)
    assert (arrivals.seconds_behind(110.0, 4), arrivals.events_behind(4)) == (0.0, 0)


def test_mark_does_not_count_as_an_event_and_has_its_own_age() -> None:
    arrivals = Arrivals()
    assert arrivals.seconds_since_mark(5.0, "q") is None
    arrivals.saw(1.0, [events(1), record(2, Mark("q", 1, 1))])
    assert arrivals.seconds_behind(9.0, 1) == 0.0
    assert arrivals.seconds_since_mark(5.0, "q") == 4.0


def test_a_query_does_not_lag_behind_a_stream_that_it_does_not_read() -> None:
    arrivals = Arrivals()
    arrivals.saw(1.0, [events(1, stream="a")])
    arrivals.saw(2.0, [events(2, stream="b")])
    assert arrivals.seconds_behind(10.0, 0, {"b"}) == 8.0
    assert arrivals.seconds_behind(10.0, 1, {"a"}) == 0.0
    assert arrivals.seconds_behind(10.0, 0) == 9.0


def test_records_present_at_the_start_age_from_the_start() -> None:
    arrivals = Arrivals()
    arrivals.start_at(100.0, 7, ["s"])
    arrivals.saw(100.0, [events(8, 3)])
    assert arrivals.seconds_behind(101.0, 2) == 1.0 + SLOT_SECONDS
    assert (arrivals.seconds_behind(101.0, 7), arrivals.events_behind(7)) == (1.0, 3)


def test_events_of_one_slot_have_one_age() -> None:
    """A lag must never be reported as less than it is."""
    arrivals = Arrivals()
    arrivals.saw(1.0, [events(1)])
    arrivals.saw(1.0 + SLOT_SECONDS / 2, [events(2)])
    assert (arrivals.seconds_behind(2.0, 1), arrivals.events_behind(1)) == (1.0, 20)


def test_memory_and_reported_lag_are_bounded() -> None:
    arrivals, sequences = Arrivals(), 2 * SLOTS_MAX
    for sequence in range(1, sequences + 1):
        arrivals.saw(float(sequence), [events(sequence, 1)])
    assert arrivals.events_behind(0) == SLOTS_MAX
    assert arrivals.seconds_behind(float(sequences), 0) == SLOTS_MAX - 1
