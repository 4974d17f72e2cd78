"""A node's directory: one process at a time (R2), and the highest lease it ever read (R5)."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from ha_engine import base_file
from ha_engine.core import HighWater
from ha_engine.directory_lock import lock_for_process
from ha_engine.durable import fsync_directory
from ha_engine.errors import DiskFailed
from ha_engine.types import DatabaseIdentity

_HIGH_WATER = "high_water.json"


def kept_high_water(path: Path) -> HighWater:
    """What was kept last below ``path``; the lowest possible in a new directory."""
    try:
        kept = json.loads((path / _HIGH_WATER).read_text())
    except FileNotFoundError:
        return HighWater()
    identity = DatabaseIdentity(**kept["identity"]) if kept["identity"] else None
    forced, tried = kept.get("forced", 0), kept.get("tried", (0, 0))
    return HighWater(kept["epoch"], kept["version"], identity, forced, tuple(tried))


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
        """What stands for the records that were trimmed."""
        return self.journal / base_file.NAME

    def close(self) -> None:
        os.close(self._lock)

    # -- high water --------------------------------------------------------------------------------

    def high_water(self) -> HighWater:
        return kept_high_water(self.path)

    def keep(self, high_water: HighWater) -> None:
        """Durable when it returns. Blocks for two fsyncs. Raises DiskFailed."""
        target, draft = self.path / _HIGH_WATER, self.path / "high_water.tmp"
        try:
            with draft.open("w") as file:
                json.dump(asdict(high_water), file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
            # Else a loss of power may bring back the file before: R5 would forget an epoch.
            fsync_directory(self.path)
        except OSError as error:
            raise DiskFailed(f"{target} cannot be written: {error.strerror}") from error
