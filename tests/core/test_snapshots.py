"""Where a snapshot stands, when one is taken, and what its being kept lets go of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ha_engine.core
from ha_engine.core import inputs as on
from ha_engine.core.digests import DIGESTS_KEPT
from ha_engine.core.snapshots import ALIGN_SECONDS_MAX
from ha_engine.core.term import LAST_SNAPSHOT_SECONDS_MAX
from ha_engine.errors import InvariantBroken
from ha_engine.types import DatabaseIdentity, SnapshotPlace
from tests.core.mutants import Mutant, load
from tests.core.world import LIMITS, World

BATCH = LIMITS.max_events_per_batch


def new_world(engine: Any = ha_engine.core) -> World:
    """Two queries, of which one reads another stream too; snapshots only when asked for."""
    world = World(engine)
    world.digests = True
    world.start()
    world.wait(1)
    return world


@pytest.fixture
def world() -> World:
    return new_world()


def ask(world: World) -> None:
    world.feed(on.SnapshotAsked())
    world.wait(1)


def newest(world: World) -> SnapshotPlace:
    return world.archive.visible[-1]


def require_aligned(world: World, cut: SnapshotPlace) -> None:
    marks = world.core.deployment.marks
    assert dict(cut.batches).keys() == marks.keys()
    for query, number in cut.batches:
        assert marks[query].mark_at(number).through == cut.position.sequence


def test_every_query_ends_a_batch_where_the_snapshot_stands(world: World) -> None:
    world.offer("flights", 10)
    world.offer("weather", 5)
    committed = world.core.journal.committed
    ask(world)
    cut = newest(world)
    require_aligned(world, cut)
    assert cut.position.sequence >= committed
    assert world.archive.shown_under == [world.core.epoch]


def test_an_interval_that_is_set_later_holds_from_then_on() -> None:
    world = new_world()
    world.feed(on.SnapshotEvery(0.0))
    world.offer("flights", 10)
    world.wait(1000)
    assert world.archive.visible == []
    world.feed(on.SnapshotEvery(30.0))
    for _ in range(4):  # to read it again is no reason to wait longer
        world.wait(8)
        world.feed(on.SnapshotEvery(30.0))
    assert len(world.archive.visible) == 1


def test_an_interval_that_is_set_later_holds_under_the_next_epoch() -> None:
    world = new_world()
    world.feed(on.SnapshotEvery(0.0))
    world.stop()
    world.start()
    world.feed(on.SnapshotEvery(30.0))
    world.offer("flights", 10)
    world.wait(40)
    assert len(world.archive.visible) == 1


def test_a_query_without_input_ends_an_empty_batch_there(world: World) -> None:
    world.offer("weather", 5)  # delays does not read it
    ask(world)
    require_aligned(world, newest(world))


def test_no_query_waits_for_another_at_the_barrier(world: World) -> None:
    world.automatic -= {"batches"}
    for _ in range(5):
        world.offer("flights", BATCH)
    world.feed(on.SnapshotAsked())
    world.wait(0.5)
    barrier = world.core.term.snapshots.barrier
    for _ in range(8):
        world.offer("flights", BATCH)
        world.finish("delays")
        world.wait(0.5)
    delays, storms = (world.core.deployment.marks[name].last for name in ("delays", "storms"))
    assert barrier is not None
    assert delays.through > barrier > storms.through
    assert world.archive.cuts == {}
    world.automatic |= {"batches"}
    world.wait(1)
    require_aligned(world, newest(world))
    assert newest(world).position.sequence == barrier


def test_a_failed_query_is_named_and_no_snapshot_is_taken(world: World) -> None:
    world.offer("flights", 10)
    for _ in range(2):
        world.feed(on.QueryFailed("storms", 1, "a cast"))
        world.settle()
    ask(world)
    assert world.archive.cuts == {}
    assert world.core.term.snapshots.why_not == "query storms is failed"


def test_a_query_that_does_not_come_to_the_barrier_is_given_up(world: World) -> None:
    world.automatic -= {"batches"}
    world.offer("flights", 10)
    world.wait(1)
    world.offer("flights", 10)
    ask(world)
    assert world.core.term.snapshots.state == "aligning"
    world.wait(ALIGN_SECONDS_MAX + 1)
    assert world.core.term.snapshots.state == "waiting"
    assert world.core.term.snapshots.why_not == "a query is too far behind"


def test_one_is_taken_at_each_interval_while_input_comes() -> None:
    world = World()
    world.digests, world.snapshot_every = True, 5.0
    world.start()
    world.wait(6)
    taken = len(world.archive.cuts)  # the epoch and the application are new
    world.wait(20)
    assert len(world.archive.cuts) == taken
    for _ in range(3):
        world.offer("flights", 10)
        world.wait(6)
    assert len(world.archive.cuts) == taken + 3


def test_after_a_burst_snapshots_go_on_until_none_kept_is_from_before_it() -> None:
    """The journal keeps what the oldest one lacks: all of the burst, which may fill the disk."""
    world = by_the_clock()
    world.wait(61)
    for _ in range(20):
        world.offer("flights", BATCH)
    burst = world.core.journal.last.sequence
    world.wait(300)
    assert world.archive.visible[0].position.sequence >= burst
    assert world.core.journal.base.sequence >= burst
    taken = len(world.archive.cuts)
    world.wait(300)
    assert len(world.archive.cuts) == taken


def test_the_journal_lets_go_of_what_neither_a_query_nor_the_oldest_revision_needs(
    world: World,
) -> None:
    cuts = []
    for _ in range(4):
        world.offer("flights", 10)
        ask(world)
        cuts.append(newest(world).position.sequence)
        world.wait(11)
    kept = world.archive.visible[0].position.sequence
    assert kept == cuts[-2]
    assert world.disk.base.position.sequence == kept == world.core.journal.base.sequence
    world.crash()
    world.start()
    world.offer("flights", 10)
    world.wait(2)
    assert world.truth.all_published()


def test_a_revision_of_another_history_holds_nothing_and_frees_nothing(world: World) -> None:
    world.offer("flights", 10)
    ask(world)
    stands, written = newest(world).position, newest(world).written
    other = type(stands)(stands.epoch + 7, stands.sequence)
    for strange in ((other, written), (stands, other)):
        world.feed(on.RevisionsKept((strange,)))
        assert world.core.retention.oldest_revision == 0
    world.feed(on.RevisionsKept(((other, written), (stands, written))))
    assert world.core.retention.oldest_revision == stands.sequence


def with_a_warm_member(world: World) -> World:
    world.ghost.warm = True
    world.ghost.link()
    world.wait(3)
    assert len(world.table.row.in_sync) == 2
    return world


def test_a_warm_member_takes_it_and_the_holder_shows_it(world: World) -> None:
    with_a_warm_member(world)
    world.offer("flights", 10)
    ask(world)
    assert len(world.archive.visible) == 1


def test_a_snapshot_that_takes_long_is_shown_though_its_batches_are_long_past(
    world: World,
) -> None:
    """Those that came since have driven what they came to out of memory, on both nodes."""
    with_a_warm_member(world)
    world.ghost.takes_long = True
    world.offer("flights", 10)
    ask(world)
    for number in range(100, 100 + DIGESTS_KEPT):
        world.feed(on.BatchDigested("delays", number, f"digest {number}"))
    world.ghost.has_taken()
    world.wait(1)
    assert len(world.archive.visible) == 1


def test_a_snapshot_whose_batches_came_to_something_else_is_never_shown(world: World) -> None:
    with_a_warm_member(world)
    world.ghost.digest_of_snapshots = "another"
    world.offer("flights", 10)
    ask(world)
    assert len(world.archive.cuts) == 1
    assert world.archive.visible == []


def test_an_epoch_that_the_database_lost_writes_before_trims_by_what_is_there_now(
    world: World,
) -> None:
    for _ in range(3):
        world.offer("flights", 10)
        ask(world)
    base, first = world.core.journal.base, world.archive.cuts[1]
    world.archive.visible[:] = [first]
    world.archive.answers = False
    lose_the_row(world)
    world.wait(12)
    assert world.core.journal.base == base == first.position


def test_a_snapshot_is_taken_at_once_when_there_is_none_that_the_journal_goes_on_from(
    world: World,
) -> None:
    for _ in range(3):
        world.offer("flights", 10)
        ask(world)
        world.wait(11)
    base = world.core.journal.base.sequence
    assert base > 0
    world.archive.visible.clear()
    lose_the_row(world)
    world.wait(2)
    assert newest(world).position.sequence >= base


def by_the_clock() -> World:
    world = World()
    world.digests, world.snapshot_every = True, 60.0
    world.start()
    world.wait(1)
    return world


def test_who_is_alone_takes_a_last_snapshot_before_it_stops() -> None:
    world = by_the_clock()
    world.offer("flights", 10)
    last = world.core.journal.last.sequence
    world.stop()
    assert (world.receiving, world.alive) == (False, True)
    world.wait(2)
    assert newest(world).position.sequence >= last
    assert world.table.row.holder is None
    assert not world.alive


def test_a_last_snapshot_is_not_waited_for_long() -> None:
    world = by_the_clock()
    world.automatic -= {"batches"}
    world.offer("flights", 10)
    world.stop()
    world.wait(LAST_SNAPSHOT_SECONDS_MAX - 1)
    assert world.alive
    world.wait(2)
    assert not world.alive


def test_who_is_asked_to_stop_again_waits_for_nothing() -> None:
    world = by_the_clock()
    world.automatic -= {"batches"}
    world.offer("flights", 10)
    world.stop()
    assert world.alive
    world.stop()
    assert not world.alive


def test_who_leaves_a_member_that_is_in_sync_stops_at_once() -> None:
    world = with_a_warm_member(by_the_clock())
    world.offer("flights", 10)
    world.stop()
    assert not world.alive


def test_one_is_given_up_when_spark_dies_before_it_told_what_a_batch_came_to(world: World) -> None:
    """What is committed is not computed again, so nobody would ever tell."""
    world.digests = False
    world.offer("flights", 10)
    ask(world)
    world.kill_spark()
    world.digests = True
    world.wait(5)
    world.offer("flights", 10)
    ask(world)
    assert len(world.archive.visible) == 1


def test_one_is_given_up_when_the_holders_own_spark_dies_so(world: World) -> None:
    with_a_warm_member(world)
    world.ghost.digest_of_snapshots, world.ghost.takes_long = "another", True
    world.digests = False
    world.offer("flights", 10)
    ask(world)
    world.ghost.warm = False  # or it would take over
    world.wait(1)
    world.kill_spark()
    assert world.core.term.snapshots.state == "waiting"


def test_a_wish_is_not_waited_for_when_its_link_is_another_one(world: World) -> None:
    with_a_warm_member(world)
    world.ghost.takes_long = True
    world.offer("flights", 10)
    ask(world)
    world.ghost.unlink()
    world.ghost.link()
    assert world.core.term.snapshots.state == "waiting"
    world.ghost.has_taken()
    world.wait(1)
    assert world.archive.visible == []


def lose_the_row(world: World) -> None:
    """The database fails over, and the new one has never heard of the holder's last writes."""
    before = world.core.epoch
    world.table.identity = DatabaseIdentity("7000000000000000001", "00000002")
    world.set_row(next(row for row in world.table.history if row.epoch))
    world.wait(2)
    assert world.core.epoch > before


BROKEN: tuple[tuple[Callable[[World], None], Mutant], ...] = (
    (
        test_one_is_given_up_when_the_holders_own_spark_dies_so,
        Mutant("R28", "core", "Core._on_broke", "self.term.snapshots.broke(broke.reason)", "pass"),
    ),
    (
        test_a_wish_is_not_waited_for_when_its_link_is_another_one,
        Mutant("R28", "core", "Core._on_peer", "self.term.snapshots.linked(peer)", "pass"),
    ),
    (
        test_every_query_ends_a_batch_where_the_snapshot_stands,
        Mutant(
            "R28",
            "pending_events",
            "PendingEvents.cut",
            "through if barrier is None else barrier",
            "through",
        ),
    ),
    (
        test_no_query_waits_for_another_at_the_barrier,
        Mutant("R28", "barrier", "batches_at", "len(ended) == len(numbers)", "ended"),
    ),
    (
        test_the_journal_lets_go_of_what_neither_a_query_nor_the_oldest_revision_needs,
        Mutant(
            "R29",
            "retention",
            "Retention.revisions_are",
            "min(ours, default=0)",
            "max(ours, default=0)",
        ),
    ),
    (
        test_a_revision_of_another_history_holds_nothing_and_frees_nothing,
        Mutant("R28", "retention", "Retention.revisions_are", "has(written)", ""),
    ),
    (
        test_a_revision_of_another_history_holds_nothing_and_frees_nothing,
        Mutant("R28", "retention", "Retention.revisions_are", "has(position)", ""),
    ),
    (
        test_a_snapshot_whose_batches_came_to_something_else_is_never_shown,
        Mutant(
            "R28",
            "snapshots",
            "Snapshots._is_ours",
            "came_to.get((query, n)) == digest",
            "came_to.get((query, n))",
        ),
    ),
    (
        test_an_epoch_that_the_database_lost_writes_before_trims_by_what_is_there_now,
        Mutant(
            "R29", "role_machine", "RoleMachine.become_promoting", "retention.begin_epoch()", ""
        ),
    ),
    (
        test_a_snapshot_is_taken_at_once_when_there_is_none_that_the_journal_goes_on_from,
        Mutant("R29", "core", "Core._on_revisions", "self.retention.lacks_revision", "False"),
    ),
)


@pytest.mark.parametrize(
    "test", dict.fromkeys(test for test, _ in BROKEN), ids=lambda test: test.__name__
)
def test_a_sound_copy_of_the_core_is_not_called_broken(test: Callable[[World], None]) -> None:
    test(new_world(load(None)))


@pytest.mark.parametrize(("test", "mutant"), BROKEN, ids=lambda one: getattr(one, "name", ""))
def test_a_broken_core_is_found_out(test: Callable[[World], None], mutant: Mutant) -> None:
    world = new_world(load(mutant))
    with pytest.raises((AssertionError, InvariantBroken, LookupError)):
        test(world)
