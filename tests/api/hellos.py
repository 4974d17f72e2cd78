"""The Hello of a node, for tests of what its peers show of it."""

from __future__ import annotations

from ha_engine.sync import Hello


def hello(node: str, archive: str = "", engine: str = "1.2.3", newest: int = 1) -> Hello:
    """Make a Hello. ``newest`` is the newest version of the sync protocol that the node speaks."""
    names = engine, "g", "", node, f"process of {node}", f"journal of {node}"
    return Hello(*names, "digest", "config", {}, "", archive, protocol_min=1, protocol_max=newest)
