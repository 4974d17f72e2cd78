"""The data directory of a node, with a lock for one process (RULES.md#r2). The directory also has
the highest epoch and version of the lease that the node has read (RULES.md#r5)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ha_engine.core import HighWater
from ha_engine.node.high_water import keep_high_water, kept_high_water
from ha_engine.snapshot import base_file
from ha_engine.system.disk import disk
from ha_engine.system.file_lock import lock_for_process
from ha_engine.system.files import OS_FILES, Files, make_directory


class DataDirectory:
    """The data directory of a node, locked from construction to ``close``.

    Raises DataDirectoryLocked if another process has the lock. Raises DiskFailed.
    """

    def __init__(self, path: Path, process_id: str, files: Files = OS_FILES) -> None:
        self.path, self._files = path, files
        with disk(path.parent):
            _make_durable(path, files)
        self._lock = lock_for_process(path, process_id)

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def outbox(self) -> Path:
        return self.path / "outbox"

    @property
    def published(self) -> Path:
        """The directory of the published batches that the node keeps for observers."""
        return self.path / "published"

    @property
    def base(self) -> Path:
        """The path of the file with the base, which replaces the trimmed records."""
        return self.journal / base_file.NAME

    def close(self) -> None:
        os.close(self._lock)

    # -- high water --------------------------------------------------------------------------------

    def high_water(self) -> HighWater:
        return kept_high_water(self.path, self._files)

    def keep(self, high_water: HighWater) -> None:
        """Write ``high_water`` durably. Blocks for two calls of fsync. Raises DiskFailed."""
        keep_high_water(self.path, high_water, self._files)


def _make_durable(path: Path, files: Files) -> None:
    """Make the data directory with its entries durable, and its own entry in its parent.

    A process that was killed may have made these entries without making them durable. This process
    reads the files, so a loss of power must not bring back older ones.
    """
    make_directory(path, files=files)
    files.fsync_directory(path)
    # A parent that this user may not read was made by an administrator, with the directory in it.
    with suppress(PermissionError):
        files.fsync_directory(path.parent)
