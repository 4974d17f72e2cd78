"""The rows of the matrix: what happens to the pair, and what is promised then.

Each module has the rows of one subject. ``ROWS`` has all of them by name.
"""

from __future__ import annotations

from tests.faults.matrix.rows import (  # noqa: F401 - each module registers its rows
    clients,
    clocks,
    crash_points,
    databases,
    disks,
    journals,
    network,
    operators,
    processes,
    security,
    snapshots,
    versions,
)
from tests.faults.matrix.scene import ROWS

__all__ = ["ROWS"]
