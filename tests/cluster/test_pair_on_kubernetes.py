"""A pair whose executors are pods of a real API of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.cluster.kubernetes import DRIVER, Kubernetes, running_kubernetes
from tests.cluster.nodes import pair_on
from tests.cluster.takeovers import kill_the_driver, require_recovery, require_return
from tests.e2e.flights import Flights
from tests.e2e.node_under_test import SPARK_SECONDS
from tests.kubernetes.api_programs import needs_api
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [
    needs("javac"),
    needs_api(),
    pytest.mark.nightly("test_pair_on_cluster.py has the same faults on a standalone cluster"),
    pytest.mark.spark,
]


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[Kubernetes]:
    """Room for two executors of each node."""
    build(JAR)
    with running_kubernetes(room=4) as kubernetes:
        yield kubernetes


@pytest.fixture
def flights(
    kubernetes: Kubernetes, tmp_path: Path, postgres: EmbeddedPostgres
) -> Iterator[Flights]:
    with pair_on(
        kubernetes,
        tmp_path,
        postgres,
        query={"spark": kubernetes.spark},
        execution={"kubernetes": {"image": "ha-engine:test", "pod": DRIVER}},
    ) as flights:
        yield flights


def has_all_parts(kubernetes: Kubernetes) -> bool:
    """Return whether the drivers of two nodes have two executors each, and Kubernetes no pods and
    ConfigMaps of former drivers."""
    applications = {one["metadata"]["labels"]["spark-app-selector"] for one in kubernetes.pods()}
    return (
        len(kubernetes.executors()) == len(kubernetes.pods()) == 4
        and len(applications) == len(kubernetes.config_maps()) == 2
    )


def require_merged(pod: dict[str, Any]) -> None:
    """Require what Spark made of the chart's template: Kubernetes deletes the pod with that of its
    driver, and the executor has its directories."""
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Pod", DRIVER)
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "executor"
    [container] = pod["spec"]["containers"]
    [directory] = [one["value"] for one in container["env"] if one["name"] == "SPARK_LOCAL_DIRS"]
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert "emptyDir" in volumes[mounts[directory]]
    assert "persistentVolumeClaim" in volumes[mounts["/var/lib/ha-engine-checkpoint"]]


def test_rows_are_those_of_the_reference_after_each_part_was_killed(
    flights: Flights, kubernetes: Kubernetes
) -> None:
    pair = flights.pair
    flights.send(20_000)
    flights.require_equal()
    is_whole = partial(has_all_parts, kubernetes)

    for pod in kubernetes.pods():
        require_merged(pod)
    require_recovery(flights, kubernetes.kill_an_executor, is_whole)
    require_recovery(flights, kubernetes.delete_a_pod, is_whole)
    require_recovery(flights, kubernetes.restart_the_api, is_whole)

    # While a quota is used up, the pair works with the executors that it has.
    kubernetes.refuse_further_pods()
    kubernetes.kill_an_executor()
    flights.send(3_000)
    flights.require_equal()
    wait_until(lambda: any("exceeded quota" in node.log_text() for node in pair.nodes.values()))
    kubernetes.admit_pods()
    wait_until(is_whole, within=SPARK_SECONDS, every=0.5)
    for node in pair.nodes.values():
        assert node.require_status()["query_process"]["last_death"] is None
    require_recovery(flights, partial(kill_the_driver, flights), is_whole)
    require_return(flights, lambda: len(kubernetes.executors()), is_whole)
