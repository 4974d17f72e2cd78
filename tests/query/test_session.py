"""The query process checks Java first, in one sentence; the imports of Spark's workers stay
light."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from ha_engine.config.sections import QueryConfig
from ha_engine.errors import JavaMissing
from ha_engine.jvm.build import build
from ha_engine.query.session import ClusterSettings, SparkSettings, check_java, spark_conf
from tests.programs import needs

pytestmark = pytest.mark.rotates("files")


def fake_java(directory: Path, says: str) -> None:
    """Write a java that prints that version and starts nothing."""
    (directory / "bin").mkdir()
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n[ \"$1\" = -version ]\n")
    java.chmod(0o755)


def test_java_that_is_new_enough_is_accepted() -> None:
    assert check_java() >= 17


def test_missing_java_is_reported_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="no java on the PATH: Spark needs Java 17"):
        check_java()


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is version 11"),
        ('java version "1.8.0_202"', "is version 8"),
        ("something else", "reports no version"),
    ],
)
def test_java_that_is_too_old_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, told: str
) -> None:
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=told):
        check_java()


def test_checking_java_imports_no_spark() -> None:
    code = (
        "import sys; from ha_engine.query.session import check_java; check_java();"
        "sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_may_tune_spark_but_not_change_its_batches() -> None:
    conf = spark_conf(
        SparkSettings(
            spark={
                "spark.sql.shuffle.partitions": "7",
                "spark.sql.streaming.noDataMicroBatches.enabled": "true",
                "spark.sql.session.timeZone": "Asia/Tokyo",
            }
        )
    )
    assert conf["spark.sql.shuffle.partitions"] == "7"
    assert conf["spark.sql.streaming.noDataMicroBatches.enabled"] == "false"
    assert conf["spark.sql.session.timeZone"] == "UTC"


HEAVY = ["sqlalchemy", "starlette", "alembic", "typer", "pydantic", "uvicorn", "psycopg2", "pandas"]


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("main", [*HEAVY, "grpc", "pyarrow", "numpy", "pyspark"]),
        ("source", [*HEAVY, "grpc", "pyarrow", "numpy"]),
        ("source_reader", [*HEAVY, "grpc"]),
    ],
)
def test_modules_on_the_path_of_a_start_import_no_heavy_module(
    module: str, heavy: list[str]
) -> None:
    """Java waits for main; Spark's workers import the source module."""
    code = (
        f"import sys, ha_engine.query.{module}\n"
        f"found = [name for name in {heavy} if name in sys.modules]\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.spark
def test_spark_serves_its_own_processes_on_loopback_only(spark: Any) -> None:
    """Spark's RPC port deserialises Java objects of everybody whom it does not refuse."""
    java = psutil.Process(spark.sparkContext._gateway.proc.pid)
    family = [java, *java.children(recursive=True)]
    listening = [c.laddr.ip for p in family for c in p.net_connections() if c.status == "LISTEN"]
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}

    body = b"any object"
    request = struct.pack(">BQI", 3, 1, len(body)) + body  # the kind RpcRequest, its id, its size
    port = int(spark.sparkContext.getConf().get("spark.driver.port"))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
        stranger.sendall(struct.pack(">Q", 8 + len(request)) + request)
        assert b"does not have SASL enabled" in stranger.recv(1 << 16)


def test_settings_cannot_open_sparks_ports() -> None:
    for key in ("spark.driver.bindAddress", "spark.authenticate", "spark.authenticate.secret"):
        with pytest.raises(ValidationError, match=f"{key} under 'spark' cannot be changed"):
            QueryConfig.model_validate({"spark": {key: "0.0.0.0"}})


@pytest.mark.spark
@pytest.mark.nightly("the settings are tested by test_spark_serves_its_own_processes")
def test_enabled_web_interface_of_spark_listens_on_loopback(tmp_path: Path) -> None:
    done = started(
        tmp_path,
        "print(spark.sparkContext.uiWebUrl)",
        settings="spark={'spark.ui.enabled': 'true'}",
    )
    assert done.stdout.strip().startswith("http://127.0.0.1:"), done.stderr


def started(
    directory: Path, then: str, settings: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a process that starts Spark as ``spark`` and executes ``then``."""
    code = (
        "import pathlib, sys\n"
        "from ha_engine.query.session import ClusterSettings, SparkSettings, start_spark\n"
        "scratch = pathlib.Path(sys.argv[1])\n"
        f"spark = start_spark(SparkSettings(heap=512 << 20, scratch=scratch, {settings}))\n"
        f"{then}"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(directory / "scratch")],
        env={**os.environ, **environ},
        check=False,
        capture_output=True,
        text=True,
    )


def test_java_that_cannot_start_spark_is_reported_in_one_sentence(tmp_path: Path) -> None:
    fake_java(tmp_path, 'openjdk version "11.0.1" 2018-10-16')
    done = started(tmp_path, "", JAVA_HOME=str(tmp_path))
    assert "JavaMissing: " in done.stderr.splitlines()[-1]
    assert "is version 11: Spark needs Java 17 or newer" in done.stderr.splitlines()[-1]


CLUSTER = ClusterSettings("a-secret-of-the-cluster", "127.0.0.1", "127.0.0.1")


def test_no_limit_ends_a_batch_that_waits_for_an_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    conf = spark_conf(SparkSettings(cluster=CLUSTER))
    assert conf["spark.sql.broadcastTimeout"] == "86400s"
    assert "spark.network.timeout" not in conf  # Spark must detect lost executors


def test_jars_of_a_user_reach_executors_beside_the_jar_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    conf = spark_conf(
        SparkSettings(
            spark={"spark.jars": "/mine.jar"}, jars=(Path("/ha-engine.jar"),), cluster=CLUSTER
        )
    )
    assert conf["spark.jars"] == "/mine.jar,/ha-engine.jar"


@pytest.mark.nightly("a start of Spark that resolves a package")
@needs("javac")
@pytest.mark.spark
def test_packages_of_a_user_reach_executors_beside_the_jar_of_the_engine(tmp_path: Path) -> None:
    repository = tmp_path / "ivy" / "local" / "org.mine" / "mine" / "1"
    for directory, name in (("jars", "mine.jar"), ("ivys", "ivy.xml")):
        (repository / directory).mkdir(parents=True)
        (repository / directory / name).write_bytes(b"")
    build(tmp_path / "ha-engine.jar")
    shutil.copy(tmp_path / "ha-engine.jar", repository / "jars" / "mine.jar")
    (repository / "ivys" / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="org.mine" module="mine" revision="1"/>'
        '<publications><artifact name="mine" type="jar" ext="jar"/></publications></ivy-module>'
    )
    mine = {"spark.jars.packages": "org.mine:mine:1", "spark.jars.ivy": str(tmp_path / "ivy")}
    settings = (
        f"spark={mine}, jars=(pathlib.Path({str(tmp_path / 'ha-engine.jar')!r}),), "
        "cluster=ClusterSettings('a-secret-of-the-cluster', '127.0.0.1', '127.0.0.1')"
    )
    done = started(tmp_path, "print(spark.sparkContext._jsc.sc().listJars())", settings)
    assert "/ha-engine.jar" in done.stdout, done.stderr
    assert "/org.mine_mine-1.jar" in done.stdout


@pytest.mark.spark
def test_spark_starts_no_worker_to_find_data_sources_without_a_candidate(spark: Any) -> None:
    """The worker would stay, and every start would wait for it."""
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
    workers = [
        " ".join(process.cmdline())
        for process in jvm.children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE
    ]
    assert not [worker for worker in workers if "lookup_data_sources" in worker], workers


@pytest.mark.spark
def test_a_data_source_of_an_installed_module_is_found(tmp_path: Path) -> None:
    (tmp_path / "pyspark_mine.py").write_text(
        "from pyspark.sql.datasource import DataSource, DataSourceReader\n"
        "class Reader(DataSourceReader):\n"
        "    def read(self, partition):\n"
        "        yield (41,)\n"
        "class DefaultSource(DataSource):\n"
        "    @classmethod\n"
        "    def name(cls):\n"
        "        return 'mine'\n"
        "    def schema(self):\n"
        "        return 'id long'\n"
        "    def reader(self, schema):\n"
        "        return Reader()\n"
    )
    read = "print('read', spark.read.format('mine').load().first().id)"
    done = started(tmp_path, read, PYTHONPATH=str(tmp_path))
    assert "read 41" in done.stdout, done.stderr


@pytest.mark.spark
def test_jvm_out_of_memory_ends(tmp_path: Path) -> None:
    """The JVM would otherwise continue in an unknown state, and blame a batch."""
    fill = (
        "gateway = spark.sparkContext._gateway\n"
        "try:\n"
        "    gateway.new_array(gateway.jvm.long, 1 << 28)\n"
        "finally:\n"
        "    print('ended with', gateway.proc.wait(30))"
    )
    done = started(tmp_path, fill)
    assert "ended with 3" in done.stdout, done.stderr


@pytest.mark.spark
def test_workers_run_with_the_python_of_this_process(spark: Any) -> None:
    from pyspark.sql.functions import udf

    told = spark.range(1).select(udf(lambda _: sys.executable)("id")).first()
    assert told[0] == sys.executable


@pytest.mark.spark
def test_workers_import_the_pyspark_of_this_process(spark: Any) -> None:
    """From an archive of sources, each worker would compile it again."""
    import pyspark
    from pyspark.sql.functions import udf

    told = spark.range(1).select(udf(lambda _: __import__("pyspark").__file__)("id")).first()
    assert told[0] == pyspark.__file__


@pytest.mark.spark
def test_concurrent_query_starts_do_not_corrupt_a_shared_map(
    spark: Any,
) -> None:
    """A plain HashMap that two threads write may fail every task from then on."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    variables = sources.lookupDataSource("ha_journal").dataSourceCls().envVars()
    assert variables.getClass().getName() == "java.util.concurrent.ConcurrentHashMap"
