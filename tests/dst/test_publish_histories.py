"""Two publishers and a sink that fails: each batch is in the sink once, in every history."""

from __future__ import annotations

from functools import partial

import pytest

from tests.dst.history import play, tell
from tests.dst.publish_history import PublishHistory
from tests.sim.many import Result, play_all

SEEDS = (126, *range(1, 80))
"""Seed 126 starts the publisher three times while the first call is at work."""
REACHED_AT_LEAST = {
    "takeovers": 300,
    "batches published": 800,
    "stops": 250,
    "fenced": 5,
    "takeovers too early": 60,
    "calls without an answer": 150,
    "late calls": 80,
    "late calls fenced": 15,
}
"""About half of what these seeds reach at present."""


@pytest.fixture(scope="module")
def result() -> Result:
    return play_all(SEEDS, play=partial(play, PublishHistory))


def test_no_history_of_publishers_breaks_a_promise(result: Result) -> None:
    assert result.failed == [], result.stories[0]


@pytest.mark.parametrize("what", REACHED_AT_LEAST)
def test_histories_of_publishers_reach_each_fault(what: str, result: Result) -> None:
    assert result.counters[what] >= REACHED_AT_LEAST[what], result.summary


def test_a_seed_always_makes_the_same_history() -> None:
    assert tell(PublishHistory, 3) == tell(PublishHistory, 3)
