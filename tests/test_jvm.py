"""The jar of the Java classes for Spark."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from ha_engine.jvm.build import build
from tests.programs import needs


@needs("javac")
def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jar", tmp_path / "other.jar"
    build(one)
    build(other)
    assert one.read_bytes() == other.read_bytes()
    assert "haengine/kafka/MarkedKafka.class" in zipfile.ZipFile(one).namelist()


def test_without_javac_the_build_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="install a JDK"):
        build(tmp_path / "none.jar")
