"""The data directory of a node, with a lock for one process (RULES.md#r2). The directory also has
the highest epoch and version of the lease that the node has read (RULES.md#r5)."""

from __future__ import annotations

import os
from pathlib import Path

from ha_engine.core import HighWater
from ha_engine.node.high_water import keep_high_water, kept_high_water
from ha_engine.snapshot import base_file
from ha_engine.system.file_lock import lock_for_process
from ha_engine.system.files import OS_FILES, Files


class DataDirectory:
    """The data directory of a node, locked from construction to ``close``. Raises
    DataDirectoryLocked if another process has the lock."""

    def __init__(self, path: Path, process_id: str, files: Files = OS_FILES) -> None:
        self.path, self._files = path, files
        self._lock = lock_for_process(path, process_id)

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def outbox(self) -> Path:
        return self.path / "outbox"

    @property
    def base(self) -> Path:
        """The path of the file with the base, which replaces the trimmed records."""
        return self.journal / base_file.NAME

    def close(self) -> None:
        os.close(self._lock)

    # -- high water --------------------------------------------------------------------------------

    def high_water(self) -> HighWater:
        return kept_high_water(self.path)

    def keep(self, high_water: HighWater) -> None:
        """Write ``high_water`` durably. Blocks for two calls of fsync. Raises DiskFailed."""
        keep_high_water(self.path, high_water, self._files)
