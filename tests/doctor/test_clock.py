"""The doctor's judgement of two clocks."""

from __future__ import annotations

import pytest

from ha_engine.doctor.clock import judged, synchronised
from ha_engine.doctor.finding import State


@pytest.mark.parametrize(
    ("difference", "uncertainty", "state"),
    [
        (0.0, 0.0, State.OK),
        (-0.9, 0.0, State.OK),
        (1.4, 0.5, State.OK),
        (1.5, 0.4, State.WARNING),
        (-59.0, 0.0, State.WARNING),
        (-61.0, 0.5, State.FAILED),
    ],
)
def test_a_difference_counts_only_beyond_its_uncertainty(
    difference: float, uncertainty: float, state: State
) -> None:
    finding = judged(difference, uncertainty)
    assert finding.state is state
    assert f"{difference:+.3f} s" in finding.text


def test_the_kernel_says_whether_its_clock_is_synchronised() -> None:
    assert "synchronise" in synchronised().text
