"""Seconds of an outage of the sink; ``python -m tests.faults.sink_outage`` takes minutes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.sink_outage import run_outage

OUTAGE_SECONDS = 5.0


@pytest.mark.nightly("test_publisher takes sinks away")
@pytest.mark.spark
@pytest.mark.parametrize("shared", [False, True], ids=["sink_alone", "sink_and_lease"])
def test_an_outage_of_the_sink_costs_nothing_but_time(directory: Path, shared: bool) -> None:
    report = run_outage(directory, OUTAGE_SECONDS, shared=shared)
    assert report.wrong == []
    assert report.refusals > 0
    assert report.outcomes[0].expected > 0
