"""When a member may promise to acquire nothing, though it has tried to (R16)."""

from __future__ import annotations

from dataclasses import replace

from ha_engine.core.lease import HighWater, Lease, LeaseTiming
from ha_engine.types import Holder, LeaseRow, Member
from tests.core.surroundings import IDENTITY

A, B = Member("a", "ja"), Member("b", "jb")
ROW = LeaseRow("group-1", Holder("a", "p1"), 1, 4, (A, B), identity=IDENTITY)
TRIED = (2, 5)


def read(lease: Lease, now: float, row: LeaseRow) -> None:
    lease.sent(now)
    lease.saw(now + 0.1, row, IDENTITY)


def test_none_is_given_until_the_row_has_moved_past_what_an_earlier_process_tried() -> None:
    known = HighWater(1, 4, IDENTITY, tried=TRIED)
    lease = Lease(Holder("b", "p2"), B, LeaseTiming(3.0, 0.8, 0.4), known)
    read(lease, 1.0, ROW)
    assert not lease.promise(1.2, 1), "the acquire may still take effect"
    read(lease, 2.0, replace(ROW, version=5))
    assert lease.promise(2.2, 1), "it would need version 4"
    assert lease.high_water.tried == (0, 0)


def test_none_is_given_to_the_holder_that_was_succeeded() -> None:
    known = HighWater(1, 4, IDENTITY, tried=TRIED)
    lease = Lease(Holder("b", "p2"), B, LeaseTiming(3.0, 0.8, 0.4), known)
    read(lease, 1.0, replace(ROW, holder=Holder("b", "p1"), epoch=2, version=5, in_sync=(B,)))
    assert not lease.promise(1.2, 1)
