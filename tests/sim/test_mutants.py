"""Mutants test the simulator: a history detects each breakage of the cooperation of two nodes."""

from __future__ import annotations

import pytest

from tests.core.mutants import load
from tests.sim.mutants import HUNTED, TOLD, Hunted, Told, found_out
from tests.sim.schedules import Stage


@pytest.mark.rotates
@pytest.mark.parametrize("hunted", HUNTED, ids=lambda hunted: hunted.mutant.name)
def test_seed_detects_the_mutant(hunted: Hunted) -> None:
    assert found_out(hunted) is not None


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.schedule.__name__)
def test_schedule_detects_the_mutant(told: Told) -> None:
    engine = load(told.mutant)
    with pytest.raises(Exception, match=r"^[A-Z]+\d+|schedule|liveness"):
        told.schedule(Stage(engine))
