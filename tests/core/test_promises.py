"""The promises of a member that has tried to acquire (RULES.md#r16), and when it may acquire
(RULES.md#r4)."""

from __future__ import annotations

import math
from dataclasses import replace

from ha_engine.core import messages as say
from ha_engine.core.high_water import HighWater
from ha_engine.core.lease import Lease, LeaseTiming
from ha_engine.core.progress import PeerTiming
from ha_engine.core.replication import Replication
from ha_engine.types import DatabaseIdentity, Holder, LeaseRow, Member
from tests.core.surroundings import IDENTITY

A, B = Member("a", "ja"), Member("b", "jb")
ROW = LeaseRow("group-1", Holder("a", "p1"), 1, 4, (A, B), identity=IDENTITY)
TRIED = (2, 5)


def read(lease: Lease, now: float, row: LeaseRow) -> None:
    lease.request_sent(now)
    lease.row_read(now + 0.1, row, IDENTITY)


def test_member_promises_only_once_the_row_passed_an_earlier_acquire_attempt() -> None:
    known = HighWater(1, 4, IDENTITY, tried=TRIED)
    lease = Lease(Holder("b", "p2"), B, LeaseTiming(3.0, 0.8, 0.4), known)
    read(lease, 1.0, ROW)
    assert not lease.promise(1.2, 1), "the acquire may still take effect"
    read(lease, 2.0, replace(ROW, version=5))
    assert lease.promise(2.2, 1), "it would need version 4"
    assert lease.high_water.tried == (0, 0)


def test_member_gives_no_promise_to_a_holder_that_lost_the_lease() -> None:
    known = HighWater(1, 4, IDENTITY, tried=TRIED)
    lease = Lease(Holder("b", "p2"), B, LeaseTiming(3.0, 0.8, 0.4), known)
    read(lease, 1.0, replace(ROW, holder=Holder("b", "p1"), epoch=2, version=5, in_sync=(B,)))
    assert not lease.promise(1.2, 1)


def test_denied_acquire_does_not_bind_a_member_and_earlier_attempts_do() -> None:
    timing = LeaseTiming(3.0, 0.8, 0.4)
    for before in ((0, 0), TRIED):
        lease = Lease(Holder("b", "p2"), B, timing, HighWater(1, 4, IDENTITY, tried=before))
        read(lease, 1.0, ROW)
        lease.request_sent(5.0, lease.acquired(None), ROW)
        assert not lease.promise(5.1, 1), "it is on its way"
        lease.write_refused()
        assert lease.high_water.tried == before


def test_row_that_another_node_created_excludes_the_attempt_of_this_node() -> None:
    """RULES.md#r26: a node that knew a higher version need not wait until the row reaches it."""
    lease = Lease(Holder("b", "p2"), B, LeaseTiming(3.0, 0.8, 0.4), HighWater(7, 900, IDENTITY))
    lease.request_sent(1.0)
    lease.row_read(1.1, None, IDENTITY)
    lease.request_sent(2.0, lease.forced_without_row("group-1", None))
    lease.outcome_unknown()
    assert lease.high_water.tried[0] > 7
    read(lease, 3.0, replace(ROW, epoch=lease.high_water.tried[0] - 1))
    assert lease.high_water.tried == (0, 0)


def test_row_that_reuses_the_version_of_a_lost_one_restarts_the_ttl() -> None:
    """RULES.md#r4. 1. A renewal is read, and a failover of the database loses it. 2. The holder
    renews again, within its authority, and gets the same version."""
    lease = Lease(Holder("b", "p2"), B, LeaseTiming(3.0, 0.8, 0.4), HighWater())
    read(lease, 1.0, ROW)
    later = DatabaseIdentity(IDENTITY.system_identifier, "00000002")
    lease.request_sent(2.0)
    lease.row_read(2.1, replace(ROW, identity=later), later)
    assert lease.takeover_at == 2.1 + 3.0


def test_promise_counts_only_for_the_journal_of_the_member_that_gave_it() -> None:
    """RULES.md#r16, RULES.md#i2: a node that lost its disk knows of no acquisition that it made
    before."""
    replication = Replication(A, 1, PeerTiming(0.2, 2.0), 0.0, ["b"], 0)
    list(replication.tick(1.0, 0, 0, 0, asks=True))
    replication.promised("b", say.Promise(1, 1, "jb-2"))
    assert replication.promised_until(frozenset((A, B)), 3.0, 0.4) == -math.inf
    replication.promised("b", say.Promise(1, 1, "jb"))
    assert replication.promised_until(frozenset((A, B)), 3.0, 0.4) == 1.0 + 3.0 - 0.4
