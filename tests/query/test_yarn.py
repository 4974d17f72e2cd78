"""The settings of Spark on YARN, and the directory with YARN's addresses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest

from ha_engine.errors import HadoopConfigMissing
from ha_engine.query.jvm import ClusterState
from ha_engine.query.session import ClusterSettings, SparkSettings, spark_conf
from ha_engine.query.yarn import VARIABLES, hadoop_config, use_installed_pyspark

JARS = (Path(pyspark.__file__).parent / "jars").resolve()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", "")


def conf(spark: Mapping[str, str] | None = None, cores: int = 1) -> dict[str, str]:
    cluster = ClusterSettings("a-secret-of-the-cluster", "10.0.0.1", "node-a", cores=cores)
    return spark_conf(SparkSettings(master="yarn", spark=spark or {}, cluster=cluster))


@pytest.mark.parametrize("name", VARIABLES)
def test_either_variable_names_the_addresses_of_yarn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    monkeypatch.setenv(name, str(tmp_path))
    assert hadoop_config() == tmp_path


def test_missing_variable_is_reported_with_its_name() -> None:
    with pytest.raises(HadoopConfigMissing, match="set HADOOP_CONF_DIR in the environment"):
        hadoop_config()


def test_directory_without_the_addresses_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    with pytest.raises(HadoopConfigMissing, match=f"YARN_CONF_DIR={tmp_path} names no directory"):
        hadoop_config()


def test_spark_uploads_neither_its_jars_nor_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    assert conf()["spark.yarn.jars"] == f"local:{JARS}/*"
    monkeypatch.setenv("PYSPARK_ARCHIVES_PATH", "")
    use_installed_pyspark()
    assert os.environ["PYSPARK_ARCHIVES_PATH"] == f"local:{JARS.parents[1]}"


def test_container_has_memory_for_the_python_workers_of_its_cores() -> None:
    overheads = [conf(cores=cores)["spark.executor.memoryOverhead"] for cores in (1, 4)]
    assert overheads == ["896m", "1664m"]


def test_secret_of_the_config_is_not_among_the_settings() -> None:
    """Spark copies the settings into files of the application, and makes a secret of its own."""
    assert "a-secret-of-the-cluster" not in str(conf())
    assert conf()["spark.authenticate"] == "true"


def test_a_user_may_change_the_settings_for_yarn() -> None:
    own = {"spark.yarn.jars": "hdfs:///jars/*", "spark.executor.memoryOverhead": "2g"}
    assert own.items() <= conf(own).items()


def test_a_standalone_cluster_gets_no_setting_for_yarn() -> None:
    cluster = ClusterSettings("a-secret-of-the-cluster", "10.0.0.1", "node-a")
    given = spark_conf(SparkSettings(master="spark://m:7077", cluster=cluster))
    assert not [name for name in given if "yarn" in name or "Overhead" in name]


@pytest.mark.parametrize(("live", "connected"), [(0, True), (1, False), (0, False)])
def test_a_driver_without_executors_and_master_is_lost_except_on_yarn(
    live: int, connected: bool
) -> None:
    """YARN starts another ApplicationMaster, or ends the application and so the driver."""
    standalone = ClusterState("app-1", live, 2, connected, master_returns=False)
    assert standalone.is_lost == (not live and not connected)
    assert not ClusterState("application_1", live, 2, connected, master_returns=True).is_lost
