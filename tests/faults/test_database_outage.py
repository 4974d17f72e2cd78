"""Seconds of an outage of the lease's database; the script takes it away for a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.without_spark import NodeWithoutSpark
from tests.faults.database_outage import TTL_SECONDS, run_outage

OUTAGE_SECONDS = 10.0


@pytest.mark.slow
def test_a_pair_goes_on_without_the_database_and_nobody_takes_over_before_it_is_back(
    directory: Path,
) -> None:
    report = run_outage(directory, OUTAGE_SECONDS, NodeWithoutSpark)
    assert report.wrong == []
    assert report.pause < TTL_SECONDS
    assert report.acked > 0
