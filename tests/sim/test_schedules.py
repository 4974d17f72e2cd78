"""The histories that the protocol's rules mention, one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.schedules import SCHEDULES, Stage, stage_for
from tests.sim.transcript import told


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_schedule_breaks_no_rule_and_heals(schedule: Callable[[Stage], None]) -> None:
    stage = stage_for(schedule)
    try:
        schedule(stage)
    except Exception as error:
        raise AssertionError(f"{error}\n{told(stage.group)}\n{error}") from error
