"""The versions that compute a batch here; nodes of a group compare them before they work together.

Of Python and Java only the part that may change a result counts: a patch that reaches one host
before the other must not separate a pair. The engine's version does not count. Releases that cut
and compute the same batches may work together, so a group is upgraded node by node (ADR 12).
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
    """Versions by component. Blocks for some 0.1 s while Java prints its version."""
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
    """Why this engine cannot continue a checkpoint of those versions; None when it can."""
    ours, theirs = checkpoint_versions(), {SEMANTICS: "1", **written_with}
    for name in ("spark", SEMANTICS):
        if theirs.get(name) != ours[name]:
            return (
                f"{name} {theirs.get(name)} wrote its state, but this node has {name} {ours[name]}"
            )
    return None


def _java() -> str:
    try:
        return str(check_java())
    except JavaMissing:
        return "none"
