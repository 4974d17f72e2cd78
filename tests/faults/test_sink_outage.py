"""An outage of the sink for seconds; ``python -m tests.faults.sink_outage`` runs minutes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.sink_outage import run_outage

OUTAGE_SECONDS = 5.0


@pytest.mark.nightly("test_publisher takes sinks away")
@pytest.mark.spark
@pytest.mark.parametrize("shared", [False, True], ids=["sink_alone", "sink_and_lease"])
def test_sink_outage_delays_rows_and_loses_none(directory: Path, shared: bool) -> None:
    report = run_outage(directory, OUTAGE_SECONDS, shared=shared)
    assert report.wrong == []
    assert report.refusals > 0
    assert report.outcomes[0].expected > 0
