"""Each row of a source is in the journal once and in its order, under all faults of the nodes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.history import Failed, play
from tests.sim.pulling import Way
from tests.sim.variants import Variant

SEEDS = range(1, 31)
FORCED_SEEDS = range(1, 13)
REACHED_AT_LEAST = {"rows pulled": 500, "rows refused by the gate": 50, "failovers": 10}


@pytest.mark.slow
def test_each_row_of_a_source_is_journalled_once_over_all_histories() -> None:
    reached = _play_all(Way())
    for what, least in REACHED_AT_LEAST.items():
        assert reached[what] >= least, dict(reached)


@pytest.mark.slow
def test_rows_given_up_by_a_forced_failover_are_read_again() -> None:
    reached = Counter[str]()
    for seed in FORCED_SEEDS:
        reached += play(seed, variant=Variant.FORCED, pulls=Way())
    assert reached["records given up"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("asks_the_journal", [True, False])
def test_rows_are_doubled_or_lost_without_the_comparison_of_the_gate(
    asks_the_journal: bool,
) -> None:
    way = Way(asks_the_journal=asks_the_journal, gate_compares=False)
    with pytest.raises(Failed, match="rows of the source"):
        _play_all(way)


def _play_all(way: Way) -> Counter[str]:
    return sum((play(seed, pulls=way) for seed in SEEDS), Counter[str]())
