"""Java is checked first and in one sentence; what Spark's workers import stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ha_engine.errors import JavaMissing
from ha_engine.query.session import SparkSettings, check_java, spark_conf


def fake_java(directory: Path, says: str) -> None:
    (directory / "bin").mkdir()
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)


def test_a_java_that_is_new_enough_passes() -> None:
    assert check_java() >= 17


def test_no_java_is_told_with_what_to_install(
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
        ("something else", "does not tell"),
    ],
)
def test_a_java_that_is_too_old_is_told(
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


def test_a_user_may_tune_spark_but_not_make_its_batches_differ() -> None:
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


def test_the_source_pulls_nothing_heavy_into_sparks_workers() -> None:
    heavy = ["sqlalchemy", "starlette", "alembic", "typer", "pydantic", "uvicorn", "psycopg2"]
    code = (
        "import sys, ha_engine.query.source\n"
        f"found = [name for name in {heavy} if name in sys.modules]\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.spark
def test_a_jvm_without_memory_ends(tmp_path: Path) -> None:
    """It would go on in an unknown state, and blame a batch."""
    code = (
        "import pathlib, sys\n"
        "from ha_engine.query.session import SparkSettings, start_spark\n"
        "spark = start_spark(SparkSettings(heap=512 << 20, scratch=pathlib.Path(sys.argv[1])))\n"
        "gateway = spark.sparkContext._gateway\n"
        "try:\n"
        "    gateway.new_array(gateway.jvm.long, 1 << 28)\n"
        "finally:\n"
        "    print('ended with', gateway.proc.wait(30))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "scratch")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "ended with 3" in done.stdout, done.stderr


@pytest.mark.spark
def test_workers_run_with_the_python_of_this_process(spark: Any) -> None:
    from pyspark.sql.functions import udf

    told = spark.range(1).select(udf(lambda _: sys.executable)("id")).first()
    assert told[0] == sys.executable


@pytest.mark.spark
def test_workers_import_the_pyspark_of_this_process(spark: Any) -> None:
    """From an archive of sources, each of them would compile it anew."""
    import pyspark
    from pyspark.sql.functions import udf

    told = spark.range(1).select(udf(lambda _: __import__("pyspark").__file__)("id")).first()
    assert told[0] == pyspark.__file__


@pytest.mark.spark
def test_queries_that_start_at_the_same_time_do_not_break_the_map_that_they_share(
    spark: Any,
) -> None:
    """A plain HashMap that two threads write may fail every task from then on."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    variables = sources.lookupDataSource("ha_journal").dataSourceCls().envVars()
    assert variables.getClass().getName() == "java.util.concurrent.ConcurrentHashMap"
