"""A member that stops, as its acks say, is neither waited for nor given the lease (RULES.md#r9)."""

from __future__ import annotations

import pytest

from ha_engine.core.messages import Ack
from ha_engine.core.progress import PeerTiming
from ha_engine.core.replication import Replication
from ha_engine.types import Member

ME, OTHER = Member("a", "a-1"), Member("b", "b-1")


@pytest.fixture
def replication() -> Replication:
    """Return that of an active whose passive is connected, in sync and warm."""
    replication = Replication(ME, 2, PeerTiming(0.2, 2.0), 0.0, ["b"], 0)
    replication.peers["b"].follows(0.0, "b-1")
    replication.acked(0.1, "b", Ack(2, "b-1", 10, True, True))
    replication.choose_near(0.1)
    return replication


def leaves(replication: Replication, now: float, *, yes: bool) -> None:
    replication.acked(now, "b", Ack(2, "b-1", 10, True, True, leaves=yes))
    replication.choose_near(now)


def test_row_is_written_at_once_without_a_member_that_stops(replication: Replication) -> None:
    assert replication.wanted(0.2, (ME, OTHER), 10) == (ME, OTHER)
    leaves(replication, 0.2, yes=True)
    assert replication.wanted(0.2, (ME, OTHER), 10) == (ME,)
    assert replication.near == frozenset()


def test_member_that_stops_is_no_successor(replication: Replication) -> None:
    assert replication.why_no_successor(OTHER, (ME, OTHER)) is None
    assert replication.is_reached(OTHER)
    leaves(replication, 0.2, yes=True)
    assert replication.why_no_successor(OTHER, (ME, OTHER)) == "b is stopping"
    assert not replication.is_reached(OTHER)


def test_late_ack_of_an_earlier_process_keeps_no_member_out(replication: Replication) -> None:
    leaves(replication, 0.2, yes=True)
    leaves(replication, 0.3, yes=False)
    assert replication.wanted(0.3, (ME,), 10) == (ME, OTHER)
    leaves(replication, 0.4, yes=True)
    replication.peers["b"].linked(0.5)
    assert not replication.peers["b"].leaves
