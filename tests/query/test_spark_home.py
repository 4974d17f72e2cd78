"""The home from which Spark starts: PySpark's own, without the modules that workers do not need."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest

from ha_engine.query.spark_home import lean_spark_home

OWN = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def no_home_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)


def test_spark_home_has_everything_of_pyspark_but_its_python_code(tmp_path: Path) -> None:
    lean = tmp_path / "lean"
    with lean_spark_home(lean):
        assert os.environ["SPARK_HOME"] == str(lean)
        left_out = {path.name for path in OWN.iterdir()} - {path.name for path in lean.iterdir()}
        assert left_out == {"python"}
        assert (lean / "jars").resolve() == (OWN / "jars").resolve()
    assert "SPARK_HOME" not in os.environ


def test_spark_home_of_the_user_is_left_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with lean_spark_home(tmp_path / "lean"):
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_spark_starts_from_its_own_home_where_no_other_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "lean").write_text("in the way")
    with lean_spark_home(tmp_path / "lean"):
        assert "SPARK_HOME" not in os.environ
