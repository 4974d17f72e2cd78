"""Merged runs of events against the plain list of all records (RULES.md#i6)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ha_engine.core.pending_events import RUNS_IN_A_BATCH, RUNS_MAX, PendingEvents

LIMIT = 80
RUN_EVENTS_MAX = LIMIT // RUNS_IN_A_BATCH

APPENDS = st.integers(1, 30).map(lambda rows: ("append", rows))
CUTS = st.floats(0, 1).map(lambda share: ("cut", share))
SKIPPED = st.just(("another stream", 0))
STEPS = st.lists(st.one_of(APPENDS, APPENDS, APPENDS, CUTS, SKIPPED), max_size=200)


class Everything:
    """The plain model of PendingEvents: every record by itself."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []

    @property
    def events(self) -> int:
        return sum(rows for _, rows in self.records)

    def rows_through(self, sequence: int) -> list[int]:
        return [rows for last, rows in self.records if last <= sequence]

    def drop_through(self, sequence: int) -> None:
        self.records = [record for record in self.records if record[0] > sequence]


def check_cut(
    pending: PendingEvents, plain: Everything, committed: int, through: int | None
) -> None:
    taken = plain.rows_through(through or 0)
    assert through is None or through <= committed
    assert len(taken) <= 1 or sum(taken) <= LIMIT
    rest = [rows for last, rows in plain.records if (through or 0) < last <= committed]
    newest = max((last for last, _ in plain.records), default=0)
    if through is not None and committed >= newest:
        # The batch is nearly full, unless the next record alone does not fit.
        assert not rest or sum(taken) + max(rest[0], RUN_EVENTS_MAX) > LIMIT
    if committed >= newest:
        assert (through is None) == (not plain.records)


@settings(max_examples=300)
@given(STEPS, st.integers(2, 12))
def test_merged_runs_count_and_cut_like_the_whole_list(
    steps: list[tuple[str, float]], runs_max: int
) -> None:
    pending, plain = PendingEvents(LIMIT, runs_max), Everything()
    for sequence, (step, size) in enumerate(steps, 1):
        match step:
            case "append":
                pending.append(sequence, int(size))
                plain.records.append((sequence, int(size)))
            case "cut":
                committed = round(sequence * size)
                through = pending.next_batch_end(committed)
                check_cut(pending, plain, committed, through)
                if through is not None:
                    pending.drop_through(through)
                    plain.drop_through(through)
        assert pending.events == plain.events
        # Two neighbours that could not be merged are together above the limit of a run.
        assert len(pending) <= 2 * (2 * plain.events // RUN_EVENTS_MAX + runs_max) + 1


@given(STEPS, st.integers(2, 12))
def test_replay_of_the_journal_counts_the_same_pending_events(
    steps: list[tuple[str, float]], runs_max: int
) -> None:
    """Cut each mark as soon as possible; the replay reads it at its place among the records."""
    live, journal = PendingEvents(LIMIT, runs_max), []
    for sequence, (step, size) in enumerate(steps, 1):
        if step == "append":
            live.append(sequence, int(size))
            journal.append((step, sequence, int(size)))
        elif (through := live.next_batch_end(round(sequence * size))) is not None:
            live.drop_through(through)
            journal.append((step, through, 0))
    again = PendingEvents(LIMIT, runs_max)
    for step, sequence, rows in journal:
        if step == "append":
            again.append(sequence, rows)
        else:
            again.drop_through(sequence)
    assert (again.events, len(again)) == (live.events, len(live))
    assert [again.next_batch_end(n) for n in range(len(steps) + 1)] == [
        live.next_batch_end(n) for n in range(len(steps) + 1)
    ]


def test_million_small_uncut_records_stay_few_runs() -> None:
    pending = PendingEvents(200_000)
    for sequence in range(1, 1_000_001):
        pending.append(sequence, 2)
    assert pending.events == 2_000_000
    assert len(pending) <= RUNS_MAX


def test_run_is_kept_until_a_mark_ends_it_though_an_older_mark_cut_within_it() -> None:
    pending = PendingEvents(LIMIT, runs_max=2)
    for sequence in range(1, 5):
        pending.append(sequence, 3)
    assert (pending.next_batch_end(1), pending.next_batch_end(2)) == (None, 2), (
        "the first two are one run"
    )
    pending.drop_through(1)
    assert pending.events == 12
    pending.drop_through(2)
    assert pending.events == 6
