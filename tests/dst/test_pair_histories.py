"""Two whole nodes keep their promises in every history, and the histories reach every fault."""

from __future__ import annotations

from functools import partial

import pytest

from tests.dst.history import play, tell
from tests.dst.pair.history import PairHistory
from tests.sim.many import Result, play_all

SEEDS = range(1, 21)
REACHED_AT_LEAST = {
    "acks": 200,
    "batches published": 300,
    "failovers": 5,
    "in-sync joins": 30,
}
"""About half of what these seeds reach at present."""


@pytest.fixture(scope="module")
def result() -> Result:
    return play_all(SEEDS, play=partial(play, PairHistory))


def test_no_history_of_two_nodes_breaks_a_promise(result: Result) -> None:
    assert result.failed == [], result.stories[0]


@pytest.mark.parametrize("what", REACHED_AT_LEAST)
def test_histories_of_two_nodes_reach_each_fault(what: str, result: Result) -> None:
    assert result.counters[what] >= REACHED_AT_LEAST[what], result.summary


def test_a_seed_always_makes_the_same_history() -> None:
    assert tell(PairHistory, 3) == tell(PairHistory, 3)
