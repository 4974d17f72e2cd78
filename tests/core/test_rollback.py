"""The commit position of the lease row, which reveals a journal that lost records."""

from __future__ import annotations

from dataclasses import replace

from ha_engine.core import HighWater
from ha_engine.core.lease import Lease, LeaseTiming
from ha_engine.types import DatabaseIdentity, Holder, LeaseRow, Member, Position

ME, OTHER = Member("a", "a-1"), Member("b", "b-1")
HOLDER = Holder("a", "p1")
IDENTITY = DatabaseIdentity("1", 1)
ROW = LeaseRow("group", HOLDER, 1, 1, (ME, OTHER), identity=IDENTITY, committed=Position(1, 98))


def test_renewals_in_a_long_outage_of_the_database_are_remembered_once() -> None:
    lease = Lease(HOLDER, ME, LeaseTiming(3.0, 0.8, 0.4), HighWater(1, 1, IDENTITY))
    lease.request_sent(0.0)
    lease.row_read(0.1, ROW, IDENTITY)
    for at in range(1, 1000):
        renewed = lease.renewed((ME, OTHER), Position(1, 98 + at))
        lease.request_sent(float(at), renewed)
        lease.outcome_unknown()
    assert len(lease._unresolved) == 1
    assert lease.possible == {ME, OTHER}


def test_journal_that_the_row_does_not_list_lacks_nothing() -> None:
    lease = Lease(Holder("a", "p2"), ME, LeaseTiming(3.0, 0.8, 0.4), HighWater())
    lease.request_sent(0.0)
    lease.row_read(0.1, ROW, IDENTITY)
    assert lease.lacks_committed(Position(1, 97))
    assert not lease.lacks_committed(Position(1, 98))
    assert lease.lacks_committed(Position(0, 200))
    lease.request_sent(1.0)
    lease.row_read(1.1, replace(ROW, in_sync=(OTHER,), version=2), IDENTITY)
    assert not lease.lacks_committed(Position(1, 97))
