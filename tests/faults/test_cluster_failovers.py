"""The checker of ``python -m tests.faults.cluster_failovers``, which must find what is wrong."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tests.connectors.kafka_jars import needs_kafka
from tests.faults.active import in_random_order
from tests.faults.cluster_failovers import (
    ENGINE,
    FAULTS,
    OF_PLAIN,
    PLAIN,
    Outcome,
    Report,
    run_cluster_failovers,
)
from tests.faults.numbers import LATE_ROWS, Table, Verdict, has_settled, longest_gap, verdict_of
from tests.programs import needs


def test_checker_finds_lost_doubled_and_strange_rows() -> None:
    found = Counter([0, 1, 2, 2, 2, 4, 6, 6])
    assert verdict_of("table", found, range(5)) == Verdict("table", lost=1, twice=2, strange=1)
    assert not verdict_of("table", Counter(range(5)), range(5)).is_wrong
    for wrong in ([0, 1, 3], [0, 1, 2, 2, 3], [0, 1, 2, 3, 4]):
        assert verdict_of("table", Counter(wrong), range(4)).is_wrong, wrong


def test_table_counts_rows_whose_number_another_row_has(database_url: str, engine: Engine) -> None:
    with closing(Table(database_url, "hot")) as table:
        assert table.doubled() == 0
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO hot (n) SELECT unnest(array[1, 2, 2, 2, 3])"))
        assert table.doubled() == 2
        assert table.numbers(first=2) == Counter({2: 3, 3: 1})


def test_wait_ends_when_all_rows_are_there_or_later_ones_overtook_a_lost_one() -> None:
    complete = Counter(range(10))
    assert has_settled(complete, range(10))
    assert not has_settled(Counter(), range(10))
    del complete[3]
    assert not has_settled(complete, range(10))
    assert has_settled(complete + Counter([3 + LATE_ROWS]), range(10))


def test_gap_counts_from_the_fault_to_the_first_row_and_between_rows() -> None:
    assert longest_gap([12.0, 13.0], since=10.0) == 2.0
    assert longest_gap([10.5, 13.5], since=10.0) == 3.0


def test_report_continues_with_the_outcomes_of_its_seed(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    outcome = Outcome(ENGINE, "worker", {"hot": 1.5}, lost=0, twice=0)
    Report(7, file).add(outcome)
    Report(8, file).add(Outcome(PLAIN, "jvm", {"plain": 9.0}))
    continued = Report(7, file)
    assert continued.outcomes == [outcome]
    assert (continued.count(ENGINE), continued.count(PLAIN)) == (1, 0)


@pytest.mark.nightly("test_checker_finds_lost_doubled_and_strange_rows tries the checker")
@pytest.mark.spark
@needs_kafka()
@needs("javac")
def test_no_fault_of_a_cluster_loses_or_doubles_a_row(directory: Path) -> None:
    report = Report(3, directory / "results.jsonl")
    faults = in_random_order(len(FAULTS), report.seed, FAULTS)
    run_cluster_failovers(directory, faults, OF_PLAIN, report)
    assert report.wrong == []
    assert (report.count(ENGINE), report.count(PLAIN)) == (len(FAULTS), len(OF_PLAIN))
