"""A query that only the active runs (RULES.md#r33)."""

from __future__ import annotations

import math

import pytest

from ha_engine.core import Deployment, JournalState, QueryPlan, RestartPolicy
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
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
from tests.core.world import LIMITS, World, plan

PLAN = QueryPlan("delays", "v1", frozenset({"flights"}), ("board",), warm=True)


def journal_of(deployment: Deployment) -> JournalState:
    """Return a journal with one batch in epoch 1 and two in epoch 2, all published but the last."""
    journal = JournalState(deployment)
    version = QueryVersion("delays", "v1", Mark("delays", 0, 0))
    event = Events("flights", 1, 0, (), ())
    bodies = [
        (1, EpochStart("node-a", "p")),
        (1, Application("app", (version,))),
        (1, event),
        (1, Mark("delays", 1, 3)),
        (2, EpochStart("node-b", "q")),
        (2, event),
        (2, Mark("delays", 2, 6)),
        (2, event),
        (2, Mark("delays", 3, 8)),
        (2, Published("delays", "board", 2)),
        (3, EpochStart("node-a", "r")),
    ]
    for sequence, (epoch, body) in enumerate(bodies, 1):
        journal.replay(Record(Position(epoch, sequence), sequence, body, b""))
    return journal


@pytest.fixture
def deployment() -> Deployment:
    return Deployment("app", (PLAN,), LIMITS, RestartPolicy())


def test_batches_of_a_later_epoch_are_not_those_of_an_earlier_active(
    deployment: Deployment,
) -> None:
    """The active of epoch 1 may have run another batch 2, which an operator gave up."""
    journal = journal_of(deployment)
    deployment.take_over()
    (run,) = deployment.runs(0.0, journal.committed, "journal", journal.epochs)
    assert run.takeover == do.Takeover(3, 2, ((1, 1), (2, 2), (3, 2)))


@pytest.mark.parametrize(("oldest", "trimmed"), [(8, 6), (20, 0)])
def test_node_on_standby_trims_what_a_snapshot_and_every_sink_have(
    deployment: Deployment, oldest: int, trimmed: int
) -> None:
    """A snapshot beyond its journal may be of a history that an operator gives up. Every sink has
    the batches through the record 6."""
    journal = journal_of(deployment)
    retention = Retention(journal, deployment)
    retention.oldest_revision = oldest
    through = [action.position.sequence for action in retention.trim(0.0, math.inf)]
    assert through == ([trimmed] if trimmed else [])


def test_active_takes_the_snapshots_of_a_warm_query_itself() -> None:
    world = World(plans=(plan("delays", "flights", "board", warm=True),))
    world.digests = True
    world.start()
    world.wait(1)
    world.ghost.warm = True
    world.ghost.link()
    world.offer("flights", 10)
    world.wait(2)
    asked: list[do.Action] = []
    world.heard = asked.append
    world.feed(on.SnapshotAsked())
    world.wait(1)
    assert any(isinstance(action, do.TakeSnapshot) for action in asked)
    assert len(world.archive.visible) == 1


def test_late_failure_of_a_query_that_was_told_to_stop_is_not_counted() -> None:
    world = World(plans=(plan("delays", "flights", "board", warm=True),))
    world.start()
    world.wait(1)
    life, lineage = world.core.deployment.lives["delays"], world.core.deployment.lineage("delays")
    world.automatic -= {"process"}
    world.core.deployment.stand_by()
    world.feed(on.QueryFailed("delays", 1, "late", f"{world.disk.journal_id}:{lineage}"))
    assert (life.state.value, life.restarts) == ("standby", 0)
