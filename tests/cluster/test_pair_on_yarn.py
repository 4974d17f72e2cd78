"""A pair whose queries run on the executors of a real YARN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.cluster.nodes import pair_on
from tests.cluster.takeovers import bring_back, lose_the_active
from tests.cluster.yarn import Yarn, running_yarn
from tests.e2e.flights import Flights
from tests.e2e.node_under_test import SPARK_SECONDS
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [
    needs("javac"),
    pytest.mark.nightly(
        "eleven JVMs take minutes to start; test_pair_on_cluster.py has a standalone cluster"
    ),
    pytest.mark.spark,
]


@pytest.fixture(scope="module")
def yarn() -> Iterator[Yarn]:
    """Two workers with room for two executors and, on either, both ApplicationMasters."""
    build(JAR)
    with running_yarn(workers=2, memory_mb=5120) as yarn:
        yield yarn


@pytest.fixture
def flights(yarn: Yarn, tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Flights]:
    staging = {"spark.yarn.stagingDir": (tmp_path / "staging").as_uri()}
    with pair_on(yarn, tmp_path, postgres, query={"spark": staging}) as flights:
        yield flights


def has_all_parts(yarn: Yarn) -> bool:
    """Return whether the drivers of two nodes have two executors each, and no other runs."""
    return len(yarn.applications() or ()) == 2 and len(yarn.executors()) == 4


def require_recovery(flights: Flights, yarn: Yarn, kill: Callable[[], None]) -> None:
    """Kill a part under load, and wait until the rows are equal and all parts run again."""
    flights.send(3_000)
    kill()
    flights.send(3_000)
    flights.require_equal()
    flights.pair.wait_protected()
    wait_until(lambda: has_all_parts(yarn), within=SPARK_SECONDS, every=0.5)


def test_rows_are_those_of_the_reference_after_each_part_was_killed(
    flights: Flights, yarn: Yarn
) -> None:
    pair = flights.pair
    flights.send(20_000)
    flights.require_equal()

    def kill_the_driver() -> None:
        active = pair.active()
        assert active is not None
        active.kill("jvm")

    require_recovery(flights, yarn, yarn.kill_an_executor)
    require_recovery(flights, yarn, yarn.kill_a_master)
    for node in pair.nodes.values():
        assert node.require_status()["query_process"]["last_death"] is None
    require_recovery(flights, yarn, yarn.restart_a_worker)
    require_recovery(flights, yarn, kill_the_driver)

    flights.send(3_000)
    killed = lose_the_active(flights, 3_000)
    wait_until(lambda: len(yarn.executors()) == 2, within=SPARK_SECONDS, every=0.5)
    bring_back(flights, killed, 3_000)
    wait_until(lambda: has_all_parts(yarn), within=SPARK_SECONDS, every=0.5)
