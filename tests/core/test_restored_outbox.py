"""The state of a query comes from a snapshot, of batches that the outbox lacked (RULES.md#r21)."""

from __future__ import annotations

import pytest

from ha_engine.core import Core
from ha_engine.core import inputs as on
from ha_engine.errors import InvariantBroken
from ha_engine.types import Application, Events, Mark, Position, QueryVersion, Record
from tests.core.lone import member_b
from tests.core.world import plan

BODIES = (
    Application("app", (QueryVersion("delays", "v1", Mark("delays", 0, 0)),)),
    Events("flights", 1, 0),
    *(Mark("delays", number, 2) for number in range(1, 10)),
)


@pytest.fixture
def core() -> Core:
    """Return a node whose journal has nine marks, and whose outbox has two batches."""
    core = member_b(plans=[plan("delays", "flights", "table")])
    for sequence, body in enumerate(BODIES, 1):
        core.journal.replay(Record(Position(1, sequence), sequence - 1, body))
    core.step(0.0, on.Tick())
    for number in (1, 2):
        core.step(0.1, on.BatchAdmitted("delays", number, 1, 100))
    return core


def restore(core: Core, left: int, *batches: int) -> None:
    core.step(0.2, on.OutboxRestored("delays", left))
    for number in batches:
        core.step(0.2, on.BatchAdmitted("delays", number, 1, 100))


def test_outbox_continues_after_the_batches_of_the_snapshot(core: Core) -> None:
    restore(core, 4, 5, 6)
    marks = core.deployment.marks["delays"]
    assert (marks.admitted, marks.in_flight) == (6, 7)
    assert (marks.outbox.floor, marks.outbox.backlog) == (4, (2, 200))
    assert marks.start_after("table") == 4, "no sink may ask for a batch that the outbox lacks"


def test_batches_that_the_outbox_has_stay(core: Core) -> None:
    restore(core, 0, 3, 4)
    marks = core.deployment.marks["delays"]
    assert (marks.admitted, marks.outbox.floor, marks.outbox.backlog[0]) == (4, 0, 4)
    restore(core, 1, 5)
    assert (marks.admitted, marks.outbox.floor, marks.outbox.backlog[0]) == (5, 1, 4)


def test_batch_after_a_gap_is_refused(core: Core) -> None:
    with pytest.raises(InvariantBroken):
        restore(core, 4, 6)
