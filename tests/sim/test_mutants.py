"""Mutants test the simulator: a history detects each breakage of the cooperation of two nodes."""

from __future__ import annotations

import pytest

from tests.core.mutants import load
from tests.sim.mutants import HUNTED, SCHEDULED, Hunted, Scheduled, found_out
from tests.sim.schedules import stage_for


@pytest.mark.rotates
@pytest.mark.parametrize("hunted", HUNTED, ids=lambda hunted: hunted.mutant.name)
def test_seed_detects_the_mutant(hunted: Hunted) -> None:
    assert found_out(hunted) is not None


@pytest.mark.parametrize("scheduled", SCHEDULED, ids=lambda one: one.schedule.__name__)
def test_schedule_detects_the_mutant(scheduled: Scheduled) -> None:
    engine = load(scheduled.mutant)
    with pytest.raises(Exception, match=r"^[A-Z]+\d+|schedule|liveness"):
        scheduled.schedule(stage_for(scheduled.schedule, engine))
