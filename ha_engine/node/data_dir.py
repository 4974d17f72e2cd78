"""The data directory of a node: its lock for one process (RULES.md#r2), and the highest lease ever
read (RULES.md#r5)."""

from __future__ import annotations

import os
from pathlib import Path

from ha_engine.core import HighWater
from ha_engine.node.high_water import keep_high_water, kept_high_water
from ha_engine.snapshot import base_file
from ha_engine.system.file_lock import lock_for_process


class DataDirectory:
    """Locked from construction to ``close``. Raises DataDirectoryLocked when another has it."""

    def __init__(self, path: Path, process_id: str) -> None:
        self.path = path
        self._lock = lock_for_process(path, process_id)

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def outbox(self) -> Path:
        return self.path / "outbox"

    @property
    def base(self) -> Path:
        """The file of the base, which replaces the trimmed records."""
        return self.journal / base_file.NAME

    def close(self) -> None:
        os.close(self._lock)

    # -- high water --------------------------------------------------------------------------------

    def high_water(self) -> HighWater:
        return kept_high_water(self.path)

    def keep(self, high_water: HighWater) -> None:
        """Write ``high_water`` durably. Blocks for two fsyncs. Raises DiskFailed."""
        keep_high_water(self.path, high_water)
