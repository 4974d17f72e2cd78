"""The line about snapshots in the status of a node."""

from __future__ import annotations

from typing import Any

import pytest

from ha_engine.cli.status_table import snapshot_line

NOTHING: dict[str, Any] = {
    "newest": None,
    "age_seconds": None,
    "taking": None,
    "restoring": None,
    "why_not": None,
}
NEWEST = {"epoch": 3, "sequence": 120, "bytes_total": 2_000_000}
MOVING = {"bytes_total": 10_000_000, "bytes_done": 2_500_000}


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({}, "none yet"),
        ({"newest": NEWEST, "age_seconds": 12.3}, "at 3.120, 12 s old, 2.0 MB"),
        ({"taking": MOVING}, "none yet; storing 2.5 MB of 10.0 MB"),
        ({"restoring": MOVING}, "none yet; restoring 2.5 MB of 10.0 MB"),
        ({"why_not": "query q is failed"}, "none yet; no newer one: query q is failed"),
    ],
)
def test_snapshot_line_shows_the_newest_revision_and_the_current_work(
    seen: dict[str, Any], said: str
) -> None:
    assert snapshot_line(NOTHING | seen) == said
