"""What a node's data began from, kept beside the journal: the process starts anew with it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ha_engine.stats.counters import Restored

FILE_NAME = "restored.json"


def store(directory: Path, restored: Restored) -> None:
    """Raises OSError."""
    (directory / FILE_NAME).write_text(json.dumps(asdict(restored)), encoding="utf-8")


def load(directory: Path) -> Restored | None:
    """None where the data began from no snapshot, or nobody can tell; it is for people only."""
    try:
        found = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
        return Restored(**found | {"skipped": tuple(found["skipped"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
