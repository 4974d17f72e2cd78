"""What runs with faults have in common."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not below pytest's own: the server's user must reach it when the tests run as root."""
    made = Path(tempfile.mkdtemp(prefix="ha-engine-outage-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)
