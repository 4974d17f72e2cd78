"""An outage of the lease's database for seconds; the script stops it for a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.without_spark import NodeWithoutSpark
from tests.faults.database_outage import run_outage

OUTAGE_SECONDS = 10.0


@pytest.mark.slow
def test_pair_works_without_the_database_and_no_node_takes_over_meanwhile(
    directory: Path,
) -> None:
    report = run_outage(directory, OUTAGE_SECONDS, NodeWithoutSpark)
    assert report.wrong == []
    # A pair that needed the database would acknowledge nothing from the end of its lease on.
    assert report.pause < OUTAGE_SECONDS / 2
    assert report.acked > 0
