"""Two whole nodes keep their promises in every history, and the histories reach every fault."""

from __future__ import annotations

from functools import partial

import pytest

from tests.dst.history import play, tell
from tests.dst.pair.history import PairHistory, SharedHistory, WarmHistory
from tests.dst.pair.schedules import RejoinWithoutDatabase, ResetWhileASinkIsAway
from tests.sim.many import Result, play_all

SEEDS = range(1, 11)
RARE = {
    "a holder trims while a member is away": 13,
    "a sink loses commits": 20,
    "the new code makes a batch that the outbox has from the old code": 245,
    "the query process of the old code waits for a mark at a change": 3297,
    "the old code polls for a mark while Spark stops it": 294,
    "a change and its withdrawal reach a running node at once": 152,
}
"""Seeds with rare events."""
RARE_OF_SHARED = {
    "a crash of the storage leaves a torn file in the checkpoint of the former active": 1009,
    "only the former active has the state that a change keeps": 260,
}
WARM_SEEDS = range(1, 6)
MANY_SEEDS = range(1, 301)
REACHED_AT_LEAST = {
    "histories": 9,
    "acks": 100,
    "acks lost": 2,
    "batches published": 180,
    "connections": 35,
    "snapshots": 15,
    "trims": 10,
    "failovers": 4,
    "in-sync joins": 12,
    "refusals: NotActive": 100,
    "deaths of a query process": 12,
}
"""About half of what these seeds reach at present."""
MANY_REACH_AT_LEAST = {
    "batches made again": 10,
    "batches restored": 8,
    "batches sent again": 60,
    "calls of a sink without an answer": 200,
    "changes of entries lost": 500,
    "connections given up": 60,
    "copied disks": 40,
    "crashes before rename": 5,
    "disks back in time": 20,
    "disks found to be back in time": 3,
    "ends of a stuck process": 8,
    "failures of fsync": 10,
    "files with lost writes": 500,
    "damage: missing": 8,
    "flips": 20,
    "gaps in a ledger": 4,
    "hangs of fdatasync": 5,
    "in-sync removals": 40,
    "journals replaced": 60,
    "late calls of a sink": 80,
    "late writes of the lease": 50,
    "ledgers that lost commits": 40,
    "lost replies of the database": 150,
    "lost states": 40,
    "operator repairs": 5,
    "power losses": 150,
    "refusals of damaged data": 40,
    "refusals: Backpressure": 10,
    "reinits": 15,
    "releases by a supervisor": 150,
    "restores": 60,
    "sinks restored": 25,
    "states restored": 60,
    "switchovers": 20,
    "useless checkpoints": 6,
    "writes to a full disk": 50,
}
"""The faults and defences that only many seeds reach; less than half of what they reach."""


def test_no_journal_is_replaced_before_a_current_row_is_read() -> None:
    assert play(RejoinWithoutDatabase, 1)["restores"] == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_passive_makes_the_batches_that_a_sink_lacks_at_a_reset(seed: int) -> None:
    assert play(ResetWhileASinkIsAway, seed)["histories"] == 1


@pytest.mark.parametrize("what", RARE)
def test_history_with_a_rare_event_breaks_no_promise(what: str) -> None:
    assert play(PairHistory, RARE[what])["histories"] == 1


@pytest.mark.parametrize("what", RARE_OF_SHARED)
def test_takeover_with_a_rare_event_breaks_no_promise(what: str) -> None:
    assert play(SharedHistory, RARE_OF_SHARED[what])["histories"] == 1


@pytest.mark.parametrize(
    ("kind", "reached"),
    [(WarmHistory, "states restored"), (SharedHistory, "checkpoints of others continued")],
)
def test_no_history_with_a_warm_query_breaks_a_promise(
    kind: type[PairHistory], reached: str
) -> None:
    result = play_all(WARM_SEEDS, play=partial(play, kind))
    assert result.failed == [], result.stories[0]
    assert result.counters[reached] > 0, result.summary


@pytest.fixture(scope="module")
def result() -> Result:
    return play_all(SEEDS, play=partial(play, PairHistory))


def test_no_history_of_two_nodes_breaks_a_promise(result: Result) -> None:
    assert result.failed == [], result.stories[0]


@pytest.mark.parametrize("what", REACHED_AT_LEAST)
def test_histories_of_two_nodes_reach_each_fault(what: str, result: Result) -> None:
    assert result.counters[what] >= REACHED_AT_LEAST[what], result.summary


@pytest.mark.nightly("the same of a few seeds")
@pytest.mark.parametrize("kind", [WarmHistory, SharedHistory])
def test_many_histories_with_a_warm_query_break_no_promise(kind: type[PairHistory]) -> None:
    result = play_all(MANY_SEEDS, workers=2, play=partial(play, kind))
    assert result.failed == [], result.stories[0]


@pytest.mark.nightly("the same of a few seeds")
def test_many_histories_of_two_nodes_are_sound_and_reach_each_fault() -> None:
    result = play_all(MANY_SEEDS, workers=2, play=partial(play, PairHistory))
    assert result.failed == [], result.stories[0]
    missed = {
        what: result.counters[what]
        for what, least in MANY_REACH_AT_LEAST.items()
        if result.counters[what] < least
    }
    assert missed == {}, result.summary


def test_a_seed_always_makes_the_same_history() -> None:
    assert tell(PairHistory, 3) == tell(PairHistory, 3)
