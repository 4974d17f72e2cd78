"""The doctor's checks of Python, Java, Spark and memory on this host."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from ha_engine.doctor import tools
from ha_engine.doctor.finding import State
from ha_engine.errors import JavaMissing


def test_the_installed_versions_are_named() -> None:
    finding = tools.python()
    assert finding.state is State.OK
    for name in ("ha-engine ", "Python 3.", "pyspark ", "pyarrow "):
        assert name in finding.text


def test_the_spark_of_the_package_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert tools.spark().state is State.OK


def test_a_spark_home_without_spark_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    finding = tools.spark()
    assert (finding.state, finding.remedy.startswith("unset SPARK_HOME")) == (State.FAILED, True)


def test_a_missing_java_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="there is no java at"):
        tools.java()


@pytest.mark.parametrize(
    ("share", "state"), [(0.0, State.OK), (1.0, State.WARNING), (1.5, State.FAILED)]
)
def test_the_heap_must_fit_into_the_memory_of_the_host(share: float, state: State) -> None:
    total = psutil.virtual_memory().total
    assert tools.memory(int(share * total)).state is state
