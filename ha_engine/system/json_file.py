"""Small JSON files that a node replaces as a whole, each with a checksum.

Without the checksum, a digit that changes on the disk is another number, and still JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from google_crc32c import value as crc32c

from ha_engine.system.files import OS_FILES, Files, read_file, replace_file

_CHECKSUM = "crc32c"


def store(path: Path, tree: dict[str, Any], files: Files = OS_FILES) -> None:
    """Replace the file ``path`` durably; a crash leaves the old file or the new one. Raises
    OSError."""
    content = json.dumps({**tree, _CHECKSUM: _checksum(tree)}, indent=1)
    replace_file(path, [content.encode()], files)


def load(path: Path, files: Files = OS_FILES) -> dict[str, Any]:
    """Load the file ``path``, which may be of a version without checksums.

    Raises ValueError if the file is damaged. Raises OSError.
    """
    tree = json.loads(read_file(path, files))
    if not isinstance(tree, dict):
        raise ValueError("the file has no fields")
    stored = tree.pop(_CHECKSUM, None)
    if stored is not None and stored != _checksum(tree):
        raise ValueError("the checksum is wrong")
    return tree


def _checksum(tree: dict[str, Any]) -> int:
    checksum: int = crc32c(json.dumps(tree, sort_keys=True).encode())
    return checksum
