"""Each way to lose the active once; ``python -m tests.faults.failovers`` does a hundred."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ha_engine
from tests.faults.active import FAULTS, in_random_order
from tests.faults.failovers import run_failovers

LATER = "9.9.9"


@pytest.fixture
def later_release(tmp_path: Path) -> Path:
    """Return a directory with a copy of this engine under a later version."""
    code = tmp_path / "later"
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(ha_engine.__file__).parent, code / "ha_engine", ignore=unwanted)
    init = code / "ha_engine" / "__init__.py"
    init.write_text(init.read_text().replace(ha_engine.__version__, LATER))
    return code


@pytest.mark.spark
def test_dead_spark_loses_and_doubles_no_event(tmp_path: Path, database_url: str) -> None:
    report = run_failovers(tmp_path, database_url, ["query"])
    assert report.wrong == []


@pytest.mark.nightly("another test of this module has one of the faults, and the demo another")
@pytest.mark.spark
def test_no_fault_of_the_active_loses_or_doubles_an_event(
    later_release: Path, tmp_path: Path, database_url: str
) -> None:
    """Restarted nodes run a later release, which must work with the one before (RULES.md#r32): two
    of the kinds of faults need a restart of a node."""
    faults = in_random_order(8, seed=14)
    report = run_failovers(tmp_path, database_url, faults, later=later_release)
    assert report.wrong == []
    assert {outcome.fault for outcome in report.outcomes} == set(FAULTS)
    assert {ha_engine.__version__, LATER} in report.versions
