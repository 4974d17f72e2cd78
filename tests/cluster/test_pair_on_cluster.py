"""A pair whose queries run on the executors of a real standalone cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.cluster.nodes import node_on, pair_on
from tests.cluster.standalone import Cluster, running_cluster
from tests.cluster.takeovers import bring_back, fail_back, fail_over, lose_the_active
from tests.e2e.databases import fresh_database
from tests.e2e.flights import Flights, flying
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [
    needs("javac"),
    pytest.mark.nightly("six JVMs take a minute to start"),
    pytest.mark.spark,
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers with a core for an executor of each node."""
    build(JAR)
    with running_cluster(workers=2, cores=2, memory="1200m") as cluster:
        yield cluster


@pytest.fixture
def half_moved(cluster: Cluster, tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Flights]:
    """A pair of which only the second node runs its queries on the cluster."""

    def node(home: Path, application: str, url: str, name: str, **sections: Any) -> NodeUnderTest:
        given = home, application, url, name
        if name == "node-a":
            return NodeUnderTest(*given, **sections)
        return node_on(cluster, tmp_path / "shared", *given, **sections)

    with fresh_database(postgres, "half_moved") as url, flying(tmp_path, url, node) as flights:
        flights.pair.wait_protected()
        yield flights


@pytest.fixture
def flights(cluster: Cluster, tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Flights]:
    with pair_on(cluster, tmp_path, postgres) as flights:
        yield flights


@pytest.fixture
def warm(cluster: Cluster, tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Flights]:
    """A pair in which only the active runs the queries."""
    with pair_on(cluster, tmp_path, postgres, standby="warm") as flights:
        yield flights


@pytest.fixture
def bucketed(cluster: Cluster, tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Flights]:
    """A pair in which the executors of the active write the sinks."""
    with pair_on(cluster, tmp_path, postgres, standby="warm", buckets=4) as flights:
        yield flights


def test_rows_are_those_of_the_reference_after_the_active_was_killed(flights: Flights) -> None:
    flights.send(20_000)
    flights.require_equal()
    killed = lose_the_active(flights, 10_000)
    bring_back(flights, killed, 5_000)
    for node in flights.pair.nodes.values():
        status = node.status()
        assert status is not None
        assert status["counts"]["executor_bytes"] > 0


def test_warm_queries_continue_the_checkpoint_of_the_killed_active(warm: Flights) -> None:
    warm.send(20_000)
    warm.require_equal()
    first, second = fail_over(warm, 5_000)
    fail_back(warm, first, second, 5_000)


def test_buckets_have_the_rows_of_the_reference_after_an_executor_and_the_active_were_killed(
    bucketed: Flights, cluster: Cluster
) -> None:
    bucketed.send(5_000)
    cluster.kill_an_executor()
    bucketed.send(15_000)
    bucketed.require_equal()
    bucketed.send(5_000)
    lose_the_active(bucketed, 5_000)


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(Cluster.kill_an_executor, id="executor"),
        pytest.param(Cluster.restart_a_worker, id="worker"),
    ],
)
def test_rows_are_those_of_the_reference_after_a_part_of_the_cluster_was_killed(
    flights: Flights, cluster: Cluster, kill: Callable[[Cluster], None]
) -> None:
    flights.send(5_000)
    kill(cluster)
    flights.send(20_000)
    flights.require_equal()


def test_node_process_may_restart_while_executors_read(flights: Flights) -> None:
    flights.send(5_000)
    for node in flights.pair.nodes.values():
        node.kill("node")
    flights.send(20_000)
    flights.require_equal()


def test_batches_are_equal_on_the_cluster_and_on_the_host(half_moved: Flights) -> None:
    half_moved.send(20_000)
    half_moved.require_equal()
    active = half_moved.pair.active()
    assert active is not None
    passive = half_moved.pair.other(active)

    def admitted(node: NodeUnderTest) -> dict[str, int]:
        status = node.status()
        assert status is not None
        assert status["counts"]["digest_mismatches"] == 0
        return {name: query["batch"] for name, query in status["queries"].items()}

    wait_until(lambda: admitted(active) == admitted(passive), within=SPARK_SECONDS)
