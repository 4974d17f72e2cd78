"""The versions of the software that computes batches, which nodes compare before they work
together.

Of the versions of Python and Java, only the part that may change a result counts. A patch release
that reaches one host first must not keep two nodes from working together. The engine's own version
does not count, so that a group can be upgraded node by node (ADR 12). Releases of the engine that
make the same batches may work together.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version

from ha_engine.errors import JavaMissing
from ha_engine.query.session import check_java

SEMANTICS = "batch semantics"
BATCH_SEMANTICS = 1
"""A release raises it if it makes other batches, rows or digests of the same records, or writes a
checkpoint that the release before it cannot continue."""


def runtime_versions() -> dict[str, str]:
    """Versions by component. The call blocks for some 0.1 s while Java prints its version."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "java": _java(),
        **checkpoint_versions(),
    }


def checkpoint_versions() -> dict[str, str]:
    """Versions of the components that compute a batch and write a checkpoint."""
    packages = {"spark": "pyspark", "pyarrow": "pyarrow", "pandas": "pandas"}
    versions = {name: version(package) for name, package in packages.items()}
    return {SEMANTICS: str(BATCH_SEMANTICS), **versions}


def why_not_continued(written_with: Mapping[str, str]) -> str | None:
    """Why this engine cannot continue a checkpoint of the versions ``written_with``.

    The result is None if this engine can continue such a checkpoint.
    """
    ours, theirs = checkpoint_versions(), {SEMANTICS: "1", **written_with}
    for name in ("spark", SEMANTICS):
        if theirs.get(name) != ours[name]:
            return (
                f"{name} {theirs.get(name)} wrote the checkpoints, "
                f"but this node has {name} {ours[name]}"
            )
    return None


def _java() -> str:
    try:
        return str(check_java())
    except JavaMissing:
        return "none"
