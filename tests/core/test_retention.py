"""The journal keeps the records that a snapshot or a joining member needs (RULES.md#r29)."""

from __future__ import annotations

import math

import pytest

from ha_engine.core import Deployment, JournalState, QueryPlan, RestartPolicy
from ha_engine.core import actions as do
from ha_engine.core.retention import Retention
from ha_engine.types import (
    Application,
    EpochStart,
    Events,
    Mark,
    Position,
    Published,
    QueryVersion,
    Record,
)
from tests.core.world import LIMITS


@pytest.mark.parametrize(("retain_after", "trimmed"), [(math.inf, 8), (5, 5)])
def test_records_that_a_joining_member_needs_are_not_trimmed(
    retain_after: float, trimmed: int
) -> None:
    plan = QueryPlan("delays", "v1", frozenset({"flights"}), ("board",))
    deployment = Deployment("app", (plan,), LIMITS, RestartPolicy())
    journal = JournalState(deployment)
    version = QueryVersion("delays", "v1", Mark("delays", 0, 0))
    events = [Events("flights", 1, 0, (), ())] * 8
    end = [Mark("delays", 1, 10), Published("delays", "board", 1)]
    bodies = [EpochStart("node-a", "p"), Application("app", (version,)), *events, *end]
    for sequence, body in enumerate(bodies, 1):
        journal.replay(Record(Position(1, sequence), sequence, body, b""))
    deployment.marks["delays"].finished = 1
    retention = Retention(journal, deployment)
    retention.revisions_are(((Position(1, 8), Position(1, 9)),))
    assert [*retention.trim(0.0, retain_after)] == [do.TrimJournal(Position(1, trimmed))]
