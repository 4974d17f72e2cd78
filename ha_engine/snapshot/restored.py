"""Store a note about the revision from which a node's data began.

The note is a file beside the journal, so that the process that starts after the restore can read
the note.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ha_engine.stats.counters import Restored
from ha_engine.system.files import OS_FILES, Files, replace_file

FILE_NAME = "restored.json"


def store(directory: Path, restored: Restored, files: Files = OS_FILES) -> None:
    """Write the note about a restore. Raises OSError."""
    replace_file(directory / FILE_NAME, [json.dumps(asdict(restored)).encode()], files)


def load(directory: Path) -> Restored | None:
    """Read the note about a restore, which is only for people.

    Returns None if the note does not exist or cannot be read.
    """
    try:
        found = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
        return Restored(**found | {"skipped": tuple(found["skipped"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
