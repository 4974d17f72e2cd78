"""Every pair of losses once; ``python -m tests.faults.backup_losses`` does them again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.e2e.databases import fresh_database
from tests.faults.backup_losses import LOSSES, run_losses


@pytest.mark.nightly("each loss starts nodes again; schedules of the simulator have the losses")
def test_no_pair_of_losses_loses_or_doubles_an_acked_event(
    tmp_path: Path, postgres: EmbeddedPostgres
) -> None:
    with fresh_database(postgres, "losses") as url:
        report = run_losses(tmp_path, url)
    assert report.wrong == []
    assert set(report.stalls) == {loss.__name__ for loss in LOSSES}
