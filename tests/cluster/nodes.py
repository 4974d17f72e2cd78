"""Nodes whose queries run on the executors of a standalone cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cluster.standalone import SECRET, Cluster
from tests.e2e.node_under_test import NodeUnderTest, free_port


def node_on(cluster: Cluster, shared: Path, *given: Any, **sections: Any) -> NodeUnderTest:
    """Make a node with its checkpoints below ``shared``, and by default with two executors."""
    execution = {
        "master": cluster.url,
        "executors": {"count": 2, "cores": 1, "memory": "512MiB"},
        "checkpoint": str(shared),
        "listen": f"127.0.0.1:{free_port()}",
        "secret": SECRET,
    }
    execution |= sections.pop("execution", {})
    return NodeUnderTest(*given, execution=execution, **sections)
