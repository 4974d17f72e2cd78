"""Notes beside the journal which revision a node's data began from, for the restarted process."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ha_engine.stats.counters import Restored

FILE_NAME = "restored.json"


def store(directory: Path, restored: Restored) -> None:
    """Write the note. Raises OSError."""
    (directory / FILE_NAME).write_text(json.dumps(asdict(restored)), encoding="utf-8")


def load(directory: Path) -> Restored | None:
    """The note, for people only. Returns None if there is no such file, or if the file cannot be
    read."""
    try:
        found = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
        return Restored(**found | {"skipped": tuple(found["skipped"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
