"""A topic as the log of a stream, brokers that fail, and two nodes: each batch has the records that
its mark had, in every history."""

from __future__ import annotations

from functools import partial

import pytest

from tests.dst.history import play, tell
from tests.dst.kafka_history import KafkaHistory
from tests.sim.many import Result, play_all

SEEDS, THOROUGH_SEEDS = 150, 10_000
"""Seeds 7 and 8 ask a leader that does not know of its successor. Seed 78 fills a topic that was
created again, seed 82 a partition that lost records, before the next question about its end. Seed
176, which a breakage and ``--thorough`` play, does so while executors read a batch."""
REACHED_AT_LEAST = {
    "batches": 1500,
    "batches delayed": 1400,
    "takeovers": 240,
    "records of the journal": 1200,
    "answers of deposed leaders": 800,
    "calls without an answer": 1000,
    "transactions committed": 50,
    "transactions aborted": 240,
    "events stored twice": 400,
    "partitions added": 90,
    "topics created again": 8,
    "deletions": 20,
    "refusals": 35,
    "batches without their records": 200,
    "headrooms below zero": 20,
    "whole histories": 55,
}
"""About half of what SEEDS seeds reach at present."""


@pytest.fixture(scope="module")
def result(request: pytest.FixtureRequest) -> Result:
    seeds = THOROUGH_SEEDS if request.config.getoption("thorough") else SEEDS
    return play_all(range(1, seeds + 1), play=partial(play, KafkaHistory))


def test_no_history_of_a_log_in_kafka_breaks_a_promise(result: Result) -> None:
    assert result.failed == [], result.stories[0]


@pytest.mark.parametrize("what", REACHED_AT_LEAST)
def test_histories_of_a_log_reach_each_fault(what: str, result: Result) -> None:
    assert result.counters[what] >= REACHED_AT_LEAST[what], result.summary


def test_a_seed_always_makes_the_same_history() -> None:
    assert tell(KafkaHistory, 3) == tell(KafkaHistory, 3)
