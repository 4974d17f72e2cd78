"""A pair whose queries run on the executors of a real YARN."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.cluster.nodes import pair_on
from tests.cluster.takeovers import kill_the_driver, require_recovery, require_return
from tests.cluster.yarn import Yarn, running_yarn
from tests.e2e.flights import Flights
from tests.programs import needs

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


def test_rows_are_those_of_the_reference_after_each_part_was_killed(
    flights: Flights, yarn: Yarn
) -> None:
    pair = flights.pair
    flights.send(20_000)
    flights.require_equal()
    is_whole = partial(has_all_parts, yarn)

    require_recovery(flights, yarn.kill_an_executor, is_whole)
    require_recovery(flights, yarn.kill_a_master, is_whole)
    for node in pair.nodes.values():
        assert node.require_status()["query_process"]["last_death"] is None
    require_recovery(flights, yarn.restart_a_worker, is_whole)
    require_recovery(flights, partial(kill_the_driver, flights), is_whole)
    require_return(flights, lambda: len(yarn.executors()), is_whole)
