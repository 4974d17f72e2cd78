"""Each way to lose the active once; ``python -m tests.faults.failovers`` does a hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.failovers import FAULTS, in_random_order, run_failovers


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_each_fault_of_the_active_loses_and_doubles_nothing(
    tmp_path: Path, database_url: str
) -> None:
    report = run_failovers(tmp_path, database_url, in_random_order(len(FAULTS), seed=14))
    assert report.wrong == []
    assert {outcome.fault for outcome in report.outcomes} == set(FAULTS)
