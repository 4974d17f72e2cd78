"""The file with the highest epoch and version of the lease that a node has read (RULES.md#r5)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ha_engine.core.high_water import HighWater
from ha_engine.errors import DiskFailed
from ha_engine.system import json_file
from ha_engine.system.disk import disk
from ha_engine.system.files import OS_FILES, Files
from ha_engine.types import DatabaseIdentity

FILE_NAME = "high_water.json"


def kept_high_water(path: Path, files: Files = OS_FILES) -> HighWater:
    """Read the high water from the data directory ``path``. A new directory gives the lowest high
    water. Raises DiskFailed."""
    try:
        return _from_tree(json_file.load(path / FILE_NAME, files))
    except FileNotFoundError:
        return HighWater()
    except OSError as error:
        raise DiskFailed(
            f"{path / FILE_NAME} cannot be read: {error.strerror}; check the disk"
        ) from error
    except (ValueError, KeyError, TypeError):
        raise DiskFailed(
            f"{path / FILE_NAME} is damaged; run ha-engine reinit for this node and delete the file"
        ) from None


def _from_tree(kept: dict[str, Any]) -> HighWater:
    identity = DatabaseIdentity(**kept["identity"]) if kept["identity"] else None
    forced, tried = kept.get("forced", 0), kept.get("tried", (0, 0))
    return HighWater(kept["epoch"], kept["version"], identity, forced, tuple(tried))


def keep_high_water(path: Path, high_water: HighWater, files: Files = OS_FILES) -> None:
    """Write ``high_water`` durably into the data directory ``path``. Blocks for two calls of fsync.
    Raises DiskFailed."""
    with disk(path):
        json_file.store(path / FILE_NAME, asdict(high_water), files)
