"""A sink's URL may be a reference, like every secret."""

from __future__ import annotations

from pathlib import Path

from ha_engine.config.load import dereferenced


def test_sink_url_may_be_a_reference_or_a_url(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("postgresql://from-file/db\n")
    environ = {"SINK": "postgresql://from-env/db\n"}
    assert dereferenced("env:SINK", tmp_path, environ) == "postgresql://from-env/db"
    assert dereferenced("file:secret", tmp_path, environ) == "postgresql://from-file/db"
    assert dereferenced("postgresql://host/db", tmp_path, environ) == "postgresql://host/db"


def test_missing_reference_of_a_sink_is_reported(tmp_path: Path) -> None:
    assert dereferenced("env:NOT_SET", tmp_path, {}) is None
    assert dereferenced("file:absent", tmp_path, {}) is None
