"""The operator's hour once; ``python -m tests.faults.operators_hour`` prints how long it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.operators_hour import Hour


@pytest.mark.nightly("test_deploy, test_shadow and test_rolling_upgrade have the steps, each alone")
@pytest.mark.spark
def test_no_step_of_an_operators_hour_loses_or_doubles_an_event(
    tmp_path: Path, database_url: str
) -> None:
    assert Hour(tmp_path, database_url).run() == []
