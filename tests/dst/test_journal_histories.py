"""The journal keeps its promises in every history, and the histories reach every kind of fault."""

from __future__ import annotations

from functools import partial

import pytest

from tests.dst.history import play, tell
from tests.dst.journal_history import JournalHistory
from tests.sim.many import Result, play_all

SEEDS = range(1, 181)
REACHED_AT_LEAST = {
    "power losses": 400,
    "torn tails": 150,
    "flips": 150,
    "failures of fsync": 60,
    "failures of fdatasync": 40,
    "failures survived": 200,
    "crashes before rename": 5,
    "crashes before unlink": 10,
    "crashes before truncate": 1,
    "ends of a stuck process": 10,
    "writes to a full disk": 80,
    "disks back in time": 20,
    "records set aside": 1500,
    "unreadable: .journal": 60,
    "misread: .journal": 60,
}
"""About half of what these seeds reach at present."""


@pytest.fixture(scope="module")
def result() -> Result:
    return play_all(SEEDS, play=partial(play, JournalHistory))


def test_no_history_of_a_journal_breaks_a_promise(result: Result) -> None:
    assert result.failed == [], result.stories[0]


@pytest.mark.parametrize("what", REACHED_AT_LEAST)
def test_histories_of_a_journal_reach_each_fault(what: str, result: Result) -> None:
    assert result.counters[what] >= REACHED_AT_LEAST[what], result.summary


def test_a_seed_always_makes_the_same_history() -> None:
    assert tell(JournalHistory, 3) == tell(JournalHistory, 3)
