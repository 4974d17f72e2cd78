"""Two nodes and a Kafka sink: each batch is in the topic once and in order, in every history."""

from __future__ import annotations

from functools import partial

import pytest

from tests.dst.history import play, tell
from tests.dst.kafka_sink_history import KafkaSinkHistory
from tests.sim.many import Result, play_all

SEEDS, THOROUGH_SEEDS = 100, 10_000
"""Seeds 1, 4 and 14 have a node that claims the sink while a commit of the former active is under
way. In seeds 1 and 6 the former active claims after the present one."""
REACHED_AT_LEAST = {
    "takeovers": 350,
    "transactions": 2500,
    "batches": 2200,
    "fenced": 120,
    "calls during another one": 1200,
    "calls that failed": 450,
    "requests without an answer": 300,
    "late requests": 110,
    "late requests refused": 50,
}
"""About half of what SEEDS seeds reach at present."""


@pytest.fixture(scope="module")
def result(request: pytest.FixtureRequest) -> Result:
    seeds = THOROUGH_SEEDS if request.config.getoption("thorough") else SEEDS
    return play_all(range(1, seeds + 1), play=partial(play, KafkaSinkHistory))


def test_no_history_of_a_kafka_sink_breaks_a_promise(result: Result) -> None:
    assert result.failed == [], result.stories[0]


@pytest.mark.parametrize("what", REACHED_AT_LEAST)
def test_histories_of_a_kafka_sink_reach_each_fault(what: str, result: Result) -> None:
    assert result.counters[what] >= REACHED_AT_LEAST[what], result.summary


def test_a_seed_always_makes_the_same_history() -> None:
    assert tell(KafkaSinkHistory, 3) == tell(KafkaSinkHistory, 3)
