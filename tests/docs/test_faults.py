"""The tables of the faults agree with the runs that are checked in."""

from __future__ import annotations

from tests.docs.faults import PAGE, RUNS, written
from tests.faults.matrix.report import runs_in
from tests.faults.matrix.rows import ROWS


def test_tables_of_faults_agree_with_the_runs() -> None:
    page = PAGE.read_text()
    assert page == written(page, runs_in(RUNS)), "run 'make reference' and commit"


def test_no_run_of_the_tables_broke_a_promise() -> None:
    assert [run for run in runs_in(RUNS) if run.wrong] == []


def test_each_row_of_the_matrix_has_a_run() -> None:
    assert ROWS.keys() - {run.row for run in runs_in(RUNS)} == set()
