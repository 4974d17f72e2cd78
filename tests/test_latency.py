"""Quantiles of the latencies of the last seconds."""

from __future__ import annotations

import pytest

from ha_engine.stats.latency import WINDOW_SECONDS, RecentLatency


class Clock:
    """A clock that moves only when the test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_quantiles_are_at_most_a_fifth_too_high() -> None:
    recent = RecentLatency(Clock())
    for number in range(1, 101):
        recent.observe(number / 1000)
    quantiles = recent.quantiles(0.5, 0.99)
    assert quantiles is not None
    for found, exact in zip(quantiles, (0.050, 0.099), strict=True):
        assert exact <= found <= 1.2 * exact


def test_observation_is_dropped_after_two_windows() -> None:
    recent = RecentLatency(clock := Clock())
    assert recent.quantiles(0.5) is None
    recent.observe(1.0)
    clock.now += 1.5 * WINDOW_SECONDS
    recent.observe(0.001)
    assert recent.quantiles(1.0) == pytest.approx((1.1,), rel=0.2)
    clock.now += 1.5 * WINDOW_SECONDS
    assert recent.quantiles(1.0) == pytest.approx((0.0011,), rel=0.2)
    clock.now += 2 * WINDOW_SECONDS
    assert recent.quantiles(1.0) is None


def test_latency_above_the_last_bound_counts_as_that_bound() -> None:
    recent = RecentLatency(Clock())
    recent.observe(3600)
    quantiles = recent.quantiles(0.5)
    assert quantiles is not None
    assert quantiles[0] > 25
