"""The versions that two nodes compare."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from ha_engine.config import Config
from ha_engine.config.group import group_digest
from ha_engine.query.application import load_application
from ha_engine.query.runtime import SEMANTICS, runtime_versions, why_not_continued


def test_every_component_that_computes_a_batch_has_a_version() -> None:
    versions = runtime_versions()
    components = {"batch semantics", "python", "java", "spark", "pyarrow", "pandas"}
    assert set(versions) == components
    assert versions["spark"] == importlib.metadata.version("pyspark")
    assert int(versions["java"]) >= 17


def test_host_without_java_reports_no_java_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert runtime_versions()["java"] == "none"


def test_only_the_same_spark_and_semantics_continue_a_checkpoint() -> None:
    spark = importlib.metadata.version("pyspark")
    assert why_not_continued({"spark": spark, "pyarrow": "1.0"}) is None
    assert why_not_continued({"spark": spark, SEMANTICS: "1"}) is None
    assert "spark 3.5.0 wrote the checkpoints" in (why_not_continued({"spark": "3.5.0"}) or "")
    other = why_not_continued({"spark": spark, SEMANTICS: "2"})
    assert other == "batch semantics 2 wrote the checkpoints, but this node has batch semantics 1"


APPLICATION = """
name: fixed
streams:
  events:
    schema: {id: bigint not null, at: timestamp, text: string}
    watermark: {column: at, delay: 10 minutes}
    sources:
      - {name: drop, type: file, directory: /srv/events, format: csv}
queries:
  counts:
    sql: SELECT count(*) AS n FROM events GROUP BY window(at, '1 minute')
    output_mode: append
    sinks:
      - {name: table, type: postgres, table: counts, mode: upsert, key: [n], auto_create: true}
      - {name: lines, type: files, directory: /srv/counts}
"""


def test_known_files_keep_their_digests_between_releases(tmp_path: Path) -> None:
    """Releases with different digests refuse each other, and no query continues its state. After an
    intended change, describe it in the changelog and correct the values."""
    (tmp_path / "application.yaml").write_text(APPLICATION)
    application = load_application(tmp_path / "application.yaml")
    assert application.queries["counts"].digest == "15f376ab1ccc74196e8c45418f428f66"
    assert application.digest == "d51861d0e8a927e043810cea349fad73"
    assert group_digest(Config()) == "d7c951ab6741cfe36ee2626682f48846"
