"""The settings of Spark on Kubernetes, and the command of an executor in its pod."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ha_engine.errors import NotInExecutorPod
from ha_engine.query.executor_pod import java_command
from ha_engine.query.kubernetes import Applications, kubernetes_settings
from ha_engine.query.session import ClusterSettings, SparkSettings, find_java, spark_conf

POD = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@node-a:4040",
    "SPARK_EXECUTOR_ID": "7",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "ha-engine-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.3",
    "SPARK_EXECUTOR_POD_NAME": "ha-engine-1-exec-7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_LOCAL_DIRS": "/var/data/a,/var/data/b",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_JAVA_OPT_10": "-Dten=10",
    "SPARK_JAVA_OPT_9": "-Dnine=a b",
}
"""The environment of a pod, as Spark makes it."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYTHONPATH", "")


def conf(master: str, spark: Mapping[str, str] | None = None) -> dict[str, str]:
    cluster = ClusterSettings(
        "a-secret-of-the-cluster", "10.0.0.1", "node-a", cores=4, image="engine:1", pod="pair-0"
    )
    return spark_conf(SparkSettings(master=master, spark=spark or {}, cluster=cluster))


def test_driver_names_the_image_of_executors_and_its_own_pod() -> None:
    given = conf("k8s://https://api:6443")
    assert given["spark.kubernetes.container.image"] == "engine:1"
    assert given["spark.kubernetes.driver.pod.name"] == "pair-0"
    assert given["spark.executor.memoryOverhead"] == "1664m"
    assert "a-secret-of-the-cluster" not in str(given)
    own = {"spark.kubernetes.container.image": "other:2"}
    assert own.items() <= conf("k8s://https://api:6443", own).items()


def test_driver_outside_kubernetes_names_no_pod(tmp_path: Path) -> None:
    given = kubernetes_settings("engine:1", "", tmp_path / "absent")
    assert not [name for name in given if "driver.pod" in name or "namespace" in name]


def test_executors_are_in_the_namespace_of_the_drivers_pod(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("streams")
    given = kubernetes_settings("engine:1", "pair-0", tmp_path / "namespace")
    assert given["spark.kubernetes.namespace"] == "streams"


@pytest.mark.parametrize("master", ["spark://m:7077", "yarn"])
def test_other_clusters_get_no_setting_for_kubernetes(master: str) -> None:
    assert not [name for name in conf(master) if "kubernetes" in name]


def test_each_application_has_another_id_that_the_file_keeps(tmp_path: Path) -> None:
    applications = [Applications(tmp_path / "file").add() for _ in range(2)]
    assert len(set(applications)) == 2
    assert (tmp_path / "file").read_text().split() == applications


def test_command_of_an_executor_has_what_the_driver_gave_to_its_pod() -> None:
    words = java_command({**POD, "SPARK_CLASSPATH": "/opt/jars/*"})
    options, main, arguments = words[1:7], words[7], words[8:]
    assert words[0] == find_java()
    assert options[:5] == ["-Dnine=a b", "-Dten=10", "-Xms1024m", "-Xmx1024m", "-cp"]
    assert options[5].startswith("/opt/spark/conf:/opt/jars/*:")
    assert options[5].endswith("/jars/*")
    assert main == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(arguments[::2], arguments[1::2], strict=True)) == {
        "--driver-url": POD["SPARK_DRIVER_URL"],
        "--executor-id": "7",
        "--cores": "2",
        "--app-id": "ha-engine-1",
        "--hostname": "10.1.2.3",
        "--resourceProfileId": "0",
        "--podName": "ha-engine-1-exec-7",
    }


def test_command_outside_a_pod_names_what_is_missing() -> None:
    given = {name: value for name, value in POD.items() if name != "SPARK_EXECUTOR_ID"}
    with pytest.raises(NotInExecutorPod, match=r"^SPARK_EXECUTOR_ID is missing in the"):
        java_command(given)
