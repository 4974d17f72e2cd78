"""The active lists the backup only while no other member is in sync, and waits for it nowhere else
(RULES.md#r37)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from ha_engine.core.messages import Ack
from ha_engine.core.progress import PeerTiming
from ha_engine.core.replication import RETAIN_SECONDS, Replication
from ha_engine.types import Holder, Member, Position, Role
from tests.core.world import World

ME, OTHER, BACKUP = Member("a", "a-1"), Member("b", "b-1"), Member("c", "c-1")
TIMING = PeerTiming(heartbeat_interval=0.2, sync_timeout=2.0, backup_after=30.0)


class Active:
    """The active's view of members that have all of its ten records, unless ``durable`` says
    less."""

    def __init__(
        self, *members: Member, backup: str | None = "c", inherited: tuple[Member, ...] = ()
    ) -> None:
        names = [member.node for member in members]
        self.replication = Replication(
            ME, 1, TIMING, 0.0, names, 10, backup=backup, inherited=inherited
        )
        self.members, self.durable = members, 10
        for member in members:
            self.replication.peers[member.node].follows(0.0, member.journal_id)

    def hear(self, now: float, *, warm: bool = False, batches: Iterable[Member] = ()) -> None:
        ran = tuple(batches)
        for member in self.members:
            newest = (("q", 9),) if member in ran else ()
            ack = Ack(1, member.journal_id, self.durable, True, warm, newest)
            self.replication.acked(now, member.node, ack)

    def lists(self, now: float, *listed: Member) -> tuple[Member, ...]:
        """The members that the row should list, if it lists ``listed`` now."""
        self.hear(now)
        self.replication.note_listed(now, listed)
        self.replication.choose_near(now)
        return self.replication.wanted(now, listed, 10)


def test_backup_is_not_listed_beside_another_member() -> None:
    active = Active(OTHER, BACKUP)
    assert active.lists(0.0, ME) == (ME, OTHER)
    assert active.lists(100.0, ME, OTHER) == (ME, OTHER)


def test_backup_is_listed_after_the_other_member_was_out_for_long() -> None:
    active = Active(BACKUP)
    assert active.lists(0.0, ME) == (ME,)
    assert active.lists(29.9, ME) == (ME,)
    assert active.lists(30.0, ME) == (ME, BACKUP)


def test_short_return_of_the_other_member_begins_the_wait_again() -> None:
    active = Active(BACKUP)
    active.lists(0.0, ME)
    active.lists(20.0, ME, OTHER)
    active.lists(21.0, ME)
    assert active.lists(50.9, ME) == (ME,)
    assert active.lists(51.0, ME) == (ME, BACKUP)


@pytest.mark.parametrize(
    ("inherited", "after"),
    [((ME, BACKUP), 0.0), ((ME,), 30.0), ((ME, BACKUP, OTHER), 30.0), ((OTHER, ME), 30.0)],
)
def test_backup_that_was_the_second_disk_is_listed_again_at_once(
    inherited: tuple[Member, ...], after: float
) -> None:
    """A holder may only restart, or get the lease back from the backup."""
    active = Active(BACKUP, inherited=inherited)
    assert (active.lists(0.0, ME) == (ME, BACKUP)) is (after == 0)
    assert active.lists(after, ME) == (ME, BACKUP)


def test_backup_that_was_the_second_disk_is_relieved_in_the_next_epoch_too() -> None:
    active = Active(OTHER, BACKUP, inherited=(ME, BACKUP))
    assert active.lists(0.0, ME, OTHER, BACKUP) == (ME, OTHER)
    assert active.lists(29.9, ME) == (ME, OTHER)


def test_backup_that_lacks_a_committed_record_is_not_listed() -> None:
    active = Active(BACKUP)
    active.durable = 9
    active.lists(0.0, ME)
    assert active.lists(30.0, ME) == (ME,)


def test_backup_leaves_only_after_the_row_has_the_other_member() -> None:
    active = Active(OTHER, BACKUP)
    assert active.lists(0.0, ME, BACKUP) == (ME, BACKUP, OTHER)
    assert active.lists(1.0, ME, BACKUP, OTHER) == (ME, OTHER)


def test_other_member_that_is_lost_again_does_not_displace_the_backup() -> None:
    active = Active(BACKUP)
    assert active.lists(1.0, ME, BACKUP, OTHER) == (ME, BACKUP)


def test_commit_waits_for_the_backup_only_while_it_is_needed() -> None:
    active = Active(OTHER, BACKUP)
    active.lists(0.0, ME, OTHER)
    active.replication.acked(0.1, "b", Ack(1, "b-1", 20, headroom=True, warm=True))
    assert active.replication.commit_limit(20, frozenset({ME, OTHER})) == 20
    assert active.replication.commit_limit(20, frozenset({ME, OTHER, BACKUP})) == 10
    alone = Active(BACKUP)
    alone.lists(0.0, ME)
    assert alone.replication.commit_limit(20, frozenset({ME})) == 20
    alone.lists(30.0, ME)
    assert alone.replication.commit_limit(20, frozenset({ME})) == 10


def test_backup_that_is_the_active_lists_the_other_members() -> None:
    active = Active(OTHER, BACKUP, backup="a")
    assert active.lists(0.0, ME) == (ME, OTHER, BACKUP)


def test_marks_wait_for_no_batch_of_the_backup() -> None:
    active = Active(BACKUP)
    active.hear(1.0, batches=[BACKUP])
    active.replication.note_behind(1.0, (ME, BACKUP), {"q": 20})
    assert not active.replication.starting(1.0, (ME, BACKUP), "another")
    assert active.replication.slowest(1.0, (ME, BACKUP), "q", 20) is None


@pytest.mark.parametrize(("to", "successor"), [(None, "b"), ("b", "b"), ("c", "c")])
def test_only_an_operator_names_the_backup_as_the_successor(to: str | None, successor: str) -> None:
    active = Active(BACKUP, OTHER)
    active.hear(1.0, warm=True)
    assert active.replication.successor((ME, BACKUP, OTHER), {}, to) == successor


def test_lease_is_not_handed_to_the_backup_for_want_of_another() -> None:
    active = Active(BACKUP)
    active.hear(1.0, warm=True)
    assert active.replication.successor((ME, BACKUP), {}) is None


@pytest.mark.parametrize(("member", "retained"), [(OTHER, 100.0), (BACKUP, math.inf)])
def test_journal_waits_a_while_for_a_backup_that_is_always_behind(
    member: Member, retained: float
) -> None:
    """A joining member counts as long as it makes progress."""
    active = Active(member)
    peer = active.replication.peers[member.node]
    peer.replied(0.0, member.journal_id, Position(1, 50))
    for now in range(100):
        active.durable = int(now) + 1
        active.hear(float(now))
    assert active.replication.retain_after(99.0, (ME,)) == 100
    active.replication.acked(
        RETAIN_SECONDS, member.node, Ack(1, member.journal_id, 100, headroom=True, warm=False)
    )
    assert active.replication.retain_after(RETAIN_SECONDS, (ME,)) == retained


def test_journal_waits_again_for_a_backup_that_must_restore_a_snapshot() -> None:
    active = Active(BACKUP)
    peer = active.replication.peers["c"]
    peer.replied(0.0, "c-1", Position(1, 10))
    later = RETAIN_SECONDS + 1
    assert active.replication.retain_after(later, (ME,)) == math.inf
    for now in (later, later + 5):
        peer.begins(now, 40)
    assert active.replication.retain_after(later + 5, (ME,)) == 40
    assert active.replication.retain_after(later + RETAIN_SECONDS, (ME,)) == math.inf
    peer.replied(later + RETAIN_SECONDS, "c-2", Position(1, 60))
    peer.follows(later + RETAIN_SECONDS, "c-2")
    assert active.replication.retain_after(later + RETAIN_SECONDS, (ME,)) == 0


def test_backup_does_not_begin_a_group() -> None:
    world = World()
    world.backup = world.node
    world.start()
    world.wait(3)
    assert world.table.row is None
    assert world.core.role is Role.JOINING
    assert world.core.reason == "this node is the backup; another node must begin the group"


def test_reason_of_a_backup_that_is_not_listed_asks_for_nothing() -> None:
    world = World()
    world.start()
    world.crash()
    world.backup = world.node
    world.rewrite_row(holder=Holder("b", "q1"), in_sync=(OTHER,))
    world.start()
    world.wait(3)
    assert world.core.role is Role.BACKUP
    reason = "it is the backup, and takes over only by force until the lease row lists it"
    assert world.core.reason == reason
