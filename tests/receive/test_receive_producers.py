"""The producer table against a model that remembers everything (RULES.md#i11, RULES.md#r27)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ha_engine.errors import SequenceConflict, SequenceForgotten, TooManyProducers
from ha_engine.receive.producers import KEPT_SECONDS, ROWS_AT_ONCE, ProducerTable, Stored, digest_of
from ha_engine.types import Events, Position, Submission

KEPT, PRODUCERS = 3, 2


def submission(producer: str, sequence: int, digest: str = "d", rows: int = 1) -> Submission:
    return Submission(producer, sequence, digest, rows)


def events(*submissions: Submission) -> Events:
    return Events("flights", sum(one.rows for one in submissions), 0, submissions)


def table_of(*records: Events) -> ProducerTable:
    table = ProducerTable(PRODUCERS, KEPT)
    for number, record in enumerate(records, 1):
        table.apply(Position(1, number), record)
    return table


def test_a_repeated_request_finds_its_original() -> None:
    table = table_of(events(submission("p", 0, "d", 7)))
    assert table.find(submission("p", 0, "d", 7)) == Stored(Position(1, 1), "d", 7)


def test_a_sequence_that_was_never_used_is_fresh() -> None:
    table = table_of(events(submission("p", 5)))
    assert table.find(submission("p", 6)) is None
    assert table.find(submission("q", 5)) is None


def test_late_lower_sequence_is_fresh_within_the_dedup_window() -> None:
    assert table_of(events(submission("p", 5))).find(submission("p", 3)) is None


def test_the_same_sequence_with_another_payload_is_a_conflict() -> None:
    with pytest.raises(SequenceConflict, match="sequence 5 of producer p was used for another"):
        table_of(events(submission("p", 5))).find(submission("p", 5, "other"))


def test_sequence_older_than_the_dedup_window_is_never_fresh() -> None:
    table = table_of(*(events(submission("p", number)) for number in range(KEPT + 1)))
    with pytest.raises(SequenceForgotten, match="sequence 0 of producer p is older"):
        table.find(submission("p", 0))


def test_sequence_below_a_full_dedup_window_is_refused() -> None:
    table = table_of(*(events(submission("p", number)) for number in (10, 11, 12)))
    with pytest.raises(SequenceForgotten):
        table.find(submission("p", 9))


def test_producer_that_was_silent_longest_is_evicted() -> None:
    records = [events(submission(name, 0)) for name in ("p", "q", "p", "r")]
    table = table_of(*records)
    assert len(table) == PRODUCERS
    assert table.find(submission("q", 0)) is None
    assert table.find(submission("p", 0)) is not None


@pytest.mark.parametrize(
    ("silent_seconds", "newcomers", "refused"),
    [
        (KEPT_SECONDS + 1, 1, False),
        (KEPT_SECONDS - 1, 1, True),
        (-KEPT_SECONDS - 1, 1, False),  # a wrong clock must not keep new producers out
        (KEPT_SECONDS + 1, 2, True),
        (KEPT_SECONDS + 1, PRODUCERS + 1, True),
    ],
)
def test_a_new_producer_is_refused_if_one_that_sent_lately_would_be_evicted(
    silent_seconds: int, newcomers: int, refused: bool
) -> None:
    now = 10**15
    table = ProducerTable(PRODUCERS, KEPT)
    table.require_room(PRODUCERS, now)
    for number, sent in enumerate((now - silent_seconds * 1_000_000, now)):
        request = Events("flights", 1, sent, (submission(f"p{number}", 0),))
        table.apply(Position(1, number), request)
    with pytest.raises(TooManyProducers) if refused else contextlib.nullcontext():
        table.require_room(newcomers, now)


def test_producers_of_a_base_count_as_recent() -> None:
    loaded_us, kept_us = 1_000 * KEPT_SECONDS * 1_000_000, KEPT_SECONDS * 1_000_000
    of_base = table_of(events(submission("p", 0)), events(submission("q", 0))).to_table()
    table = ProducerTable(PRODUCERS, KEPT)
    table.load_base(of_base, loaded_us)
    with pytest.raises(TooManyProducers):
        table.require_room(1, loaded_us + kept_us - 1)
    table.require_room(1, loaded_us + kept_us)


def test_the_digest_covers_the_stream_and_the_body() -> None:
    assert digest_of("a", b"x") == digest_of("a", b"x")
    assert len({digest_of("a", b"x"), digest_of("b", b"x"), digest_of("a", b"y")}) == 3


RECORDS = st.lists(
    st.lists(
        st.builds(submission, st.sampled_from("pqr"), st.integers(0, 9), st.sampled_from("de")),
        max_size=3,
    ).map(lambda several: events(*several)),
    max_size=20,
)


@given(RECORDS, st.integers(0, 20))
def test_producer_table_is_a_function_of_the_journal_prefix(
    records: list[Events], cut: int
) -> None:
    whole = table_of(*records)
    truncated = table_of(*records[:cut])
    for number, record in enumerate(records[cut:], len(records[:cut]) + 1):
        truncated.apply(Position(1, number), record)
    assert _answers(whole) == _answers(truncated)


@given(RECORDS, st.integers(0, 20))
def test_producer_table_loaded_from_a_file_behaves_like_the_original(
    records: list[Events], cut: int
) -> None:
    """Evictions are included: the oldest producer stays the oldest."""
    standing = ProducerTable(PRODUCERS, KEPT)
    standing.load_base(table_of(*records[:cut]).to_table())
    for number, record in enumerate(records[cut:], len(records[:cut]) + 1):
        standing.apply(Position(1, number), record)
    assert _answers(standing) == _answers(table_of(*records))


def test_a_table_of_many_rows_is_loaded_whole() -> None:
    whole = ProducerTable(2, ROWS_AT_ONCE)
    for number in range(2 * ROWS_AT_ONCE + 3):
        whole.apply(Position(1, number), events(submission("pq"[number % 2], number)))
    loaded = ProducerTable(2, ROWS_AT_ONCE)
    loaded.load_base(whole.to_table())
    assert loaded.to_table() == whole.to_table()
    assert len(whole.to_table()) == 2 * ROWS_AT_ONCE


def _answers(table: ProducerTable) -> list[object]:
    probes = [submission(name, number) for name in "pqr" for number in range(11)]
    return [_answer(table, probe) for probe in probes]


def _answer(table: ProducerTable, probe: Submission) -> object:
    try:
        return table.find(probe)
    except SequenceConflict as conflict:
        return type(conflict)


class ProducersAgainstAModel(RuleBasedStateMachine):
    """One producer sends as the gate allows; the model keeps every stored request."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ProducerTable(max_producers=10, dedup_window=KEPT)
        self.model: dict[int, Stored] = {}
        self.number = 0

    @rule(sequence=st.integers(0, 12), digest=st.sampled_from("de"))
    def request(self, sequence: int, digest: str) -> None:
        original = self.model.get(sequence)
        try:
            found = self.table.find(submission("p", sequence, digest))
        except SequenceForgotten:
            assert sequence not in self.highest()
            return
        except SequenceConflict:
            assert original is not None
            assert original.digest != digest
            return
        assert found == original, "stored twice, or answered without being stored"
        if found is None:
            self.store(sequence, digest)

    def store(self, sequence: int, digest: str) -> None:
        self.number += 1
        position = Position(1, self.number)
        self.table.apply(position, events(submission("p", sequence, digest)))
        self.model[sequence] = Stored(position, digest, 1)

    def highest(self) -> list[int]:
        return sorted(self.model)[-KEPT:]

    @invariant()
    def the_highest_are_kept(self) -> None:
        for sequence in self.highest():
            stored = self.model[sequence]
            assert self.table.find(submission("p", sequence, stored.digest)) == stored


TestProducersAgainstAModel = ProducersAgainstAModel.TestCase
