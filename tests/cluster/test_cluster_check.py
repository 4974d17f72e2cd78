"""``ha-engine cluster check`` against a real standalone cluster, YARN and API of Kubernetes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from tests.cluster import s3a
from tests.cluster.kubernetes import DRIVER, Kubernetes, running_kubernetes
from tests.cluster.nodes import AnyCluster
from tests.cluster.standalone import SECRET, Cluster, running_cluster
from tests.cluster.yarn import Yarn, running_yarn, write_config
from tests.connectors.s3_broker import S3Broker, running_broker
from tests.e2e.node_under_test import free_port
from tests.kubernetes.api_programs import needs_api
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [
    needs("javac"),
    pytest.mark.nightly("several starts of Spark, one of which waits a minute for a master"),
    pytest.mark.spark,
]
SECONDS = 300.0
APPLICATION = """
name: doubled
streams:
  events: {schema: {id: int not null}}
queries:
  doubled: {function: "doubling:doubled"}
"""
MODULE = "def doubled(streams):\n    return streams['events'].selectExpr('2 * id AS twice')\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers with a core each."""
    build(JAR)
    with running_cluster(workers=2, cores=1, memory="1g") as cluster:
        yield cluster


def command(
    home: Path, cluster: AnyCluster, spark: Mapping[str, str] | None = None, **execution: Any
) -> list[str]:
    (home / "application.yaml").write_text(APPLICATION)
    (home / "doubling.py").write_text(MODULE)
    (home / "shared").mkdir(exist_ok=True)
    given = {
        "master": cluster.url,
        "executors": {"count": 2, "cores": 1, "memory": "512MiB"},
        "checkpoint": str(home / "shared"),
        "listen": f"127.0.0.1:{free_port()}",
        "secret": SECRET,
        **execution,
    }
    tree = {"application": "application.yaml", "node": {"data_dir": "data"}, "execution": given}
    tree["query"] = {"spark": dict(spark or {})}
    (home / "engine.yaml").write_text(yaml.safe_dump(tree))
    words = ["cluster", "check", "--json", "-c", str(home / "engine.yaml")]
    return [sys.executable, "-m", "ha_engine", *words]


def findings(home: Path, cluster: AnyCluster, **execution: Any) -> dict[str, dict[str, str]]:
    done = subprocess.run(
        command(home, cluster, **execution),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not any((home / "shared").iterdir())
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert done.returncode == any(one["state"] == "failed" for one in found.values())
    return found


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Broker]:
    for name, value in s3a.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with running_broker() as broker:
        yield broker


def test_executors_and_this_host_share_an_object_storage(
    cluster: Cluster, tmp_path: Path, broker: S3Broker
) -> None:
    spark = s3a.settings(broker)
    found = findings(tmp_path, cluster, spark=spark, checkpoint="s3a://events/ha")
    assert found["checkpoint"]["text"] == "this host writes to s3a://events/ha/default"
    shared = "the executors and this host share s3a://events/ha/default"
    assert found["executors/checkpoint"] == {
        **found["executors/checkpoint"],
        "state": "ok",
        "text": shared,
    }
    require_left(cluster)


def test_missing_bucket_is_a_failure(cluster: Cluster, tmp_path: Path, broker: S3Broker) -> None:
    spark = s3a.settings(broker)
    found = findings(tmp_path, cluster, spark=spark, checkpoint="s3a://absent/ha")
    assert found["checkpoint"]["state"] == "failed"
    assert "has no such bucket" in found["checkpoint"]["text"]
    assert found["executors/checkpoint"]["state"] == "skipped"
    require_left(cluster)


def executors(cluster: Cluster | Yarn) -> int:
    return sum(len(worker.executors()) for worker in cluster.workers)


def require_left(cluster: Cluster | Yarn) -> None:
    """Require that the cluster runs no executor of the check any more."""
    wait_until(lambda: executors(cluster) == 0, within=SECONDS)


def test_a_cluster_that_lacks_room_for_the_other_node_warns(
    cluster: Cluster, tmp_path: Path
) -> None:
    found = findings(tmp_path, cluster)
    states = {name: one["state"] for name, one in found.items()}
    assert states.pop("workers") == "warning", found["workers"]
    assert found["workers"]["text"].startswith("room for 2 executors, but two nodes need 4")
    assert set(states.values()) == {"ok"}, found
    assert found["executors"]["text"] == "2 of 2 executors started"
    assert found["executors/modules"]["text"] == "each executor imports doubling"
    require_left(cluster)


def test_one_executor_too_few_is_a_warning(cluster: Cluster, tmp_path: Path) -> None:
    three = {"count": 3, "cores": 1, "memory": "512MiB"}
    found = findings(tmp_path, cluster, executors=three)
    assert found["executors"]["text"].startswith("2 of 3 executors started within")
    assert found["workers"]["state"] == "failed"
    assert found["executors/software"]["state"] == "ok"
    require_left(cluster)


def test_another_secret_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    found = findings(tmp_path, cluster, secret="a-secret-of-nobody")
    assert found["accepted"]["state"] == "failed"
    assert "execution.secret" in found["accepted"]["remedy"], found["accepted"]
    assert found["executors"]["state"] == "skipped"


def test_an_interrupt_leaves_no_application(cluster: Cluster, tmp_path: Path) -> None:
    """It comes while the check waits for a third executor."""
    three = {"count": 3, "cores": 1, "memory": "512MiB"}
    check = subprocess.Popen(
        # A program that runs in the background ignores the signal otherwise.
        ["env", "--default-signal=INT", *command(tmp_path, cluster, executors=three)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: executors(cluster) == 2, within=SECONDS)
    check.send_signal(signal.SIGINT)
    _, problem = check.communicate(timeout=SECONDS)
    assert check.returncode == 130
    assert "Traceback" not in problem
    assert not any((tmp_path / "shared").iterdir())
    require_left(cluster)


@pytest.fixture(scope="module")
def yarn() -> Iterator[Yarn]:
    """Two workers with room for three containers each."""
    build(JAR)
    with running_yarn(workers=2, memory_mb=5120) as yarn:
        yield yarn


def test_executors_of_yarn_pass_each_check(yarn: Yarn, tmp_path: Path) -> None:
    staging = {"spark.yarn.stagingDir": (tmp_path / "staging").as_uri()}
    found = findings(tmp_path, yarn, spark=staging)
    assert [one for one in found.values() if one["state"] != "ok"] == []
    assert found["accepted"]["text"].startswith("YARN accepted the application application_")
    assert found["workers"]["text"].startswith("room for 6 executors, and two nodes need 6, each")
    require_left(yarn)
    assert yarn.applications() == set()


def test_executor_that_no_worker_of_yarn_can_have_is_refused(yarn: Yarn, tmp_path: Path) -> None:
    large = {"count": 2, "cores": 1, "memory": "6GiB"}
    found = findings(tmp_path, yarn, executors=large)
    assert found["accepted"]["state"] == "failed"
    assert "above the max threshold (5120 MB) of this cluster" in found["accepted"]["text"]
    assert yarn.applications() == set()


def test_missing_addresses_of_yarn_are_a_failure(
    yarn: Yarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR")
    found = findings(tmp_path, yarn)
    assert found["masters"]["state"] == "failed"
    assert "set HADOOP_CONF_DIR" in found["masters"]["text"] + found["masters"]["remedy"]
    assert found["accepted"]["state"] == "skipped"


def test_silent_resource_manager_is_a_failure(
    yarn: Yarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = f"127.0.0.1:{free_port()}"
    write_config(tmp_path / "yarn-site.xml", {"yarn.resourcemanager.address": silent})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    found = findings(tmp_path, yarn)
    assert found["accepted"]["state"] == "failed"
    assert "YARN did not start Spark's application" in found["accepted"]["text"]
    assert "Connection refused" in found["accepted"]["text"]


# -- on Kubernetes ---------------------------------------------------------------------------------


def in_pods(pod: str = DRIVER) -> dict[str, Any]:
    """Return settings of executors in pods, whose driver listens on all addresses."""
    port = free_port()
    return {
        "kubernetes": {"image": "ha-engine:test", "pod": pod},
        "listen": f"0.0.0.0:{port}",
        "advertise": f"127.0.0.1:{port}",
        "insecure": True,
    }


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[Kubernetes]:
    build(JAR)
    with running_kubernetes(room=2) as kubernetes:
        yield kubernetes


@needs_api()
def test_executors_in_pods_pass_each_check(kubernetes: Kubernetes, tmp_path: Path) -> None:
    found = findings(tmp_path, kubernetes, spark=kubernetes.spark, **in_pods())
    others = {name: one for name, one in found.items() if one["state"] != "ok"}
    assert others.keys() == {"workers"}
    assert others["workers"]["state"] == "skipped"
    assert found["accepted"]["text"].startswith("Kubernetes lets this node make the application")
    require_no_pods(kubernetes)


@needs_api()
def test_pods_without_room_are_named_with_the_reason(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    executors = {"count": 3, "cores": 1, "memory": "512MiB"}
    found = findings(tmp_path, kubernetes, spark=kubernetes.spark, executors=executors, **in_pods())
    assert found["executors"]["state"] == "warning"
    assert found["executors"]["text"].startswith("2 of 3 executors started within 60 s: ha-engine-")
    assert "is Pending: 0/1 nodes are available" in found["executors"]["text"]
    require_no_pods(kubernetes)


@needs_api()
def test_namespace_without_rights_is_a_failure(kubernetes: Kubernetes, tmp_path: Path) -> None:
    elsewhere = {**kubernetes.spark, "spark.kubernetes.namespace": "default"}
    found = findings(tmp_path, kubernetes, spark=elsewhere, **in_pods(pod=""))
    assert found["accepted"]["state"] == "failed"
    text = found["accepted"]["text"] + found["accepted"]["remedy"]
    assert 'cannot create resource "configmaps"' in text
    assert "may create pods and ConfigMaps" in text


@needs_api()
def test_wrong_settings_of_pods_are_named(kubernetes: Kubernetes, tmp_path: Path) -> None:
    found = findings(tmp_path, kubernetes, spark=kubernetes.spark, **in_pods(pod="absent"))
    assert found["accepted"]["state"] == "failed"
    text = found["accepted"]["text"] + found["accepted"]["remedy"]
    assert "No pod was found named absent in the cluster in the namespace streams" in text
    assert "check execution.kubernetes" in text


@needs_api()
def test_silent_api_of_kubernetes_is_a_failure(tmp_path: Path) -> None:
    class Silent:
        url = f"k8s://https://127.0.0.1:{free_port()}"

    found = findings(tmp_path, Silent(), **in_pods())
    assert found["masters"]["state"] == "failed"
    assert "does not answer: [Errno 111] Connection refused" in found["masters"]["text"]
    assert found["accepted"]["state"] == "skipped"


def require_no_pods(kubernetes: Kubernetes) -> None:
    wait_until(lambda: not kubernetes.executors() and not kubernetes.pods(), within=SECONDS)
    assert kubernetes.config_maps() == []
