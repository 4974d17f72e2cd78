"""Snapshots and restores keep their promises in every history, which reach every kind of fault."""

from __future__ import annotations

from functools import partial

import pytest

from tests.dst.history import play, tell
from tests.dst.snapshot_history import SnapshotHistory
from tests.sim.many import Result, play_all

SEEDS = range(1, 81)
REACHED_AT_LEAST = {
    "snapshots": 50,
    "snapshots that failed": 50,
    "restores finished": 15,
    "restores refused": 70,
    "restores refused for the application": 1,
    "records set aside": 1,
    "states brought": 20,
    "trims": 20,
    "damage: corrupt": 4,
    "damage: missing": 4,
    "damage: swapped": 2,
    "damage: torn": 4,
    "damage: manifest": 2,
    "commits in doubt": 8,
    "crashes in a call of the store": 4,
    "failures of sync": 1,
    "power losses": 80,
    "writes to a full disk": 15,
}
"""About half of what these seeds reach at present."""


@pytest.fixture(scope="module")
def result() -> Result:
    return play_all(SEEDS, play=partial(play, SnapshotHistory))


def test_no_history_of_snapshots_breaks_a_promise(result: Result) -> None:
    assert result.failed == [], result.stories[0]


@pytest.mark.parametrize("what", REACHED_AT_LEAST)
def test_histories_of_snapshots_reach_each_fault(what: str, result: Result) -> None:
    assert result.counters[what] >= REACHED_AT_LEAST[what], result.summary


def test_a_seed_always_makes_the_same_history() -> None:
    assert tell(SnapshotHistory, 3) == tell(SnapshotHistory, 3)
