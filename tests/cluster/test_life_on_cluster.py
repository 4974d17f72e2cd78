"""A node's queries go on by themselves after Spark's driver lost its place on the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ha_engine.demo.nodes import sample_application
from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.cluster.nodes import node_on
from tests.cluster.standalone import Cluster, running_cluster
from tests.e2e.databases import fresh_database
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [
    needs("javac"),
    pytest.mark.nightly("several starts of Spark, one of which waits a minute for a master"),
    pytest.mark.spark,
]
DEPARTURE = {
    "event_time": "2013-01-01T05:00:00Z",
    "carrier": "UA",
    "flight": 1545,
    "origin": "EWR",
    "dest": "IAH",
    "distance": 1400,
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """One worker with a core."""
    build(JAR)
    with running_cluster(workers=1, cores=1, memory="1g") as cluster:
        yield cluster


@pytest.fixture
def two_masters() -> Iterator[Cluster]:
    """One worker with a core, and a master beside the one that leads."""
    build(JAR)
    with running_cluster(workers=1, cores=1, memory="1g", masters=2) as cluster:
        yield cluster


@pytest.fixture
def node(cluster: Cluster, tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[NodeUnderTest]:
    with node_of(cluster, tmp_path, postgres) as node:
        yield node


@contextmanager
def node_of(
    cluster: Cluster, tmp_path: Path, postgres: EmbeddedPostgres, state_store: str = "hdfs"
) -> Iterator[NodeUnderTest]:
    executors = {"count": 1, "cores": 1, "memory": "512MiB"}
    with fresh_database(postgres, "life") as url:
        application = sample_application("flights.yaml")
        node = node_on(cluster, tmp_path / "shared", tmp_path, application, url)
        node.reconfigure(execution={"executors": executors}, query={"state_store": state_store})
        with running(node):
            node.wait_running()
            work(node)
            yield node


def work(node: NodeUnderTest) -> None:
    """Let every query make a batch."""
    node.send("departures", [DEPARTURE])
    node.wait_settled()


def executors(node: NodeUnderTest) -> tuple[int, int, bool] | None:
    """Return the executors that live and those that are wanted, and whether a master answers."""
    status = node.status()
    found = status and status["query_process"]["executors"]
    return (found["live"], found["wanted"], found["master_connected"]) if found else None


def await_executors(node: NodeUnderTest, wanted: tuple[int, int, bool]) -> None:
    wait_until(lambda: executors(node) == wanted, within=2 * SPARK_SECONDS, every=0.5)


def died(node: NodeUnderTest, reason: str) -> bool:
    status = node.status()
    return status is not None and reason in (status["query_process"]["last_death"] or "")


def await_death(node: NodeUnderTest, reason: str) -> None:
    wait_until(partial(died, node, reason), within=2 * SPARK_SECONDS, every=0.5)


def test_executors_load_no_library_from_the_directory_for_temporary_files(
    tmp_path: Path, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers and many hosts forbid that. Here a file is where the worker has the directory."""
    build(JAR)
    (nowhere := tmp_path / "nowhere").touch()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={nowhere}")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    with running_cluster(workers=1, cores=1, memory="1g") as cluster:
        monkeypatch.undo()
        with node_of(cluster, tmp_path, postgres, state_store="rocksdb") as node:
            assert node.queries_run()


def test_query_goes_on_while_another_master_takes_over(
    two_masters: Cluster, tmp_path: Path, postgres: EmbeddedPostgres
) -> None:
    with node_of(two_masters, tmp_path, postgres) as node:
        two_masters.master.kill()
        work(node)
        two_masters.kill_an_executor()
        work(node)
        assert node.queries_run()


def test_query_goes_on_after_the_master_removed_the_application(
    node: NodeUnderTest, cluster: Cluster
) -> None:
    """The master removes it after ten executors in a row did not start, as on a full disk."""
    await_executors(node, (1, 1, True))
    directory = cluster.workers[0].directory / "work"
    kept = directory.rename(directory.with_name("kept"))
    directory.write_text("a file where a directory must be")
    cluster.kill_an_executor()
    await_death(node, "no place on the cluster")
    directory.unlink()
    kept.rename(directory)
    work(node)
    assert node.queries_run()
    said = [log.read_text() for log in directory.glob("*/*/stderr")]
    assert said
    assert not [text for text in said if " INFO " in text.partition("log4j")[2]]


def test_query_goes_on_with_a_master_that_lost_its_state(
    node: NodeUnderTest, cluster: Cluster
) -> None:
    cluster.master.kill()
    await_executors(node, (1, 1, False))
    cluster.kill_an_executor()
    await_death(node, "no place on the cluster")
    await_death(node, f"no master of {cluster.url} accepted Spark's driver")
    cluster.master.start()
    work(node)
    assert node.queries_run()
