"""The outbox keeps its promises in every history, and the histories reach every kind of fault."""

from __future__ import annotations

from functools import partial

import pytest

from tests.dst.history import play, tell
from tests.dst.outbox_history import OutboxHistory
from tests.sim.many import Result, play_all

SEEDS = range(1, 101)
REACHED_AT_LEAST = {
    "power losses": 200,
    "flips": 40,
    "repeated: done": 200,
    "repeated: mismatch": 80,
    "trims": 300,
    "failures of fsync": 40,
    "crashes before rename": 20,
    "crashes before unlink": 25,
    "writes to a full disk": 40,
    "drops": 35,
    "unreadable: .arrow": 40,
    "misread: .arrow": 40,
    "misread: .digest": 2,
}
"""About half of what these seeds reach at present."""


@pytest.fixture(scope="module")
def result() -> Result:
    return play_all(SEEDS, play=partial(play, OutboxHistory))


def test_no_history_of_an_outbox_breaks_a_promise(result: Result) -> None:
    assert result.failed == [], result.stories[0]


@pytest.mark.parametrize("what", REACHED_AT_LEAST)
def test_histories_of_an_outbox_reach_each_fault(what: str, result: Result) -> None:
    assert result.counters[what] >= REACHED_AT_LEAST[what], result.summary


def test_loss_of_power_in_a_drop_leaves_no_digest_for_another_batch() -> None:
    """Some one in fifteen thousand histories comes to it."""
    assert play(OutboxHistory, 18831)["drops"] == 2


def test_a_seed_always_makes_the_same_history() -> None:
    assert tell(OutboxHistory, 3) == tell(OutboxHistory, 3)
