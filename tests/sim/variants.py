"""Histories with further faults. Each variant has its own seeds, so that a new variant does not
change the histories of the recorded seeds."""

from __future__ import annotations

from enum import Enum


class Variant(Enum):
    PLAIN = "plain"
    FORCED = "forced"
    """An operator also forces failovers."""
    ROLLED_BACK = "rolled back"
    """Disks also go back to an earlier image."""
    WARM = "warm"
    """Only the active runs one of the queries, and an operator also forces failovers."""
    RESCALED = "rescaled"
    """An operator also changes the number of partitions of the queries' states."""
    DEPLOYED = "deployed"
    """An operator also deploys applications, and forces failovers."""
    SHADOWED = "shadowed"
    """An operator also runs changed queries in shadow, promotes or discards them, and forces
    failovers."""
    BACKUP = "backup"
    """The group has a third member, which is its backup."""
