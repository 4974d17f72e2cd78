"""The versions that two nodes compare."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from ha_engine.query.runtime import runtime_versions


def test_every_component_that_computes_a_batch_has_a_version() -> None:
    versions = runtime_versions()
    components = {"batch semantics", "python", "java", "spark", "pyarrow", "pandas"}
    assert set(versions) == components
    assert versions["spark"] == importlib.metadata.version("pyspark")
    assert int(versions["java"]) >= 17


def test_a_host_without_java_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert runtime_versions()["java"] == "none"
