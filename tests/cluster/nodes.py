"""Nodes whose queries run on the executors of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.cluster.kubernetes import Kubernetes
from tests.cluster.standalone import SECRET, Cluster
from tests.cluster.yarn import Yarn
from tests.e2e.databases import fresh_database
from tests.e2e.flights import Flights, flying
from tests.e2e.node_under_test import NodeUnderTest, free_port

AnyCluster = Cluster | Kubernetes | Yarn


def node_on(cluster: AnyCluster, shared: Path, *given: Any, **sections: Any) -> NodeUnderTest:
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


@contextmanager
def pair_on(
    cluster: AnyCluster, directory: Path, postgres: EmbeddedPostgres, **options: Any
) -> Iterator[Flights]:
    """Run a pair on the cluster, with these ``options`` of ``flying``."""
    node = partial(node_on, cluster, directory / "shared")
    with (
        fresh_database(postgres, "cluster") as url,
        flying(directory, url, node, **options) as flights,
    ):
        flights.pair.wait_protected()
        yield flights
