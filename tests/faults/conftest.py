"""The common fixture of runs with faults."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory outside pytest's own, which the server's user can reach in tests as
    root."""
    made = Path(tempfile.mkdtemp(prefix="ha-engine-outage-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)
