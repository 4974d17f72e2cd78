"""Kills of a writer of snapshots and of its database; ``python -m tests.faults.snapshot_kills``
runs more."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.nightly("the simulator kills nodes while they store snapshots")
@pytest.mark.slow
def test_no_damaged_revision_is_ever_visible() -> None:
    """RULES.md#i9. The run is in a separate process: this one has threads, and a fork would copy
    their locks."""
    command = [sys.executable, "-m", "tests.faults.snapshot_kills", "--kills", "12", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every visible revision is whole, and nothing is left over" in done.stdout
