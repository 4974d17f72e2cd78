"""An outage of the lease's database for seconds; the script stops it for a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.without_spark import NodeWithoutSpark
from tests.faults.database_outage import TTL_SECONDS, run_outage

OUTAGE_SECONDS = 10.0


@pytest.mark.slow
def test_pair_works_without_the_database_and_no_node_takes_over_meanwhile(
    directory: Path,
) -> None:
    report = run_outage(directory, OUTAGE_SECONDS, NodeWithoutSpark)
    assert report.wrong == []
    assert report.pause < TTL_SECONDS
    assert report.acked > 0
