"""The home from which Spark starts: the real one, but for what its workers need not import."""

import os
from pathlib import Path

import pytest

from ha_engine.query.spark_home import lean_spark_home


def test_it_has_everything_of_the_users_own_home_but_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, lean = tmp_path / "own", tmp_path / "lean"
    for part in ("bin", "conf", "jars", "python"):
        (own / part).mkdir(parents=True)
    (own / "conf" / "spark-defaults.conf").write_text("spark.app.name theirs")
    monkeypatch.setenv("SPARK_HOME", str(own))
    with lean_spark_home(lean):
        assert os.environ["SPARK_HOME"] == str(lean)
        assert sorted(entry.name for entry in lean.iterdir()) == ["bin", "conf", "jars"]
        assert (lean / "conf" / "spark-defaults.conf").read_text() == "spark.app.name theirs"
    assert os.environ["SPARK_HOME"] == str(own)


def test_who_has_set_no_home_has_none_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with lean_spark_home(tmp_path / "lean"):
        assert (tmp_path / "lean" / "jars").is_dir()
    assert "SPARK_HOME" not in os.environ
