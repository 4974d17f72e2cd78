"""The position of a snapshot, the time it is taken, and the records that it lets a node trim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import ha_engine.core
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.digests import DIGESTS_KEPT
from ha_engine.core.snapshots import ALIGN_SECONDS_MAX
from ha_engine.core.term import LAST_SNAPSHOT_SECONDS_MAX
from ha_engine.errors import InvariantBroken
from ha_engine.types import (
    DatabaseIdentity,
    EpochStart,
    Mark,
    Position,
    Published,
    SnapshotPlace,
)
from tests.core.lone import take
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


def require_aligned(world: World, place: SnapshotPlace) -> None:
    marks = world.core.deployment.marks
    assert dict(place.batches).keys() == marks.keys()
    for query, number in place.batches:
        assert marks[query].mark_at(number).through == place.position.sequence


def test_every_query_ends_a_batch_at_the_barrier_of_the_snapshot(world: World) -> None:
    world.offer("flights", 10)
    world.offer("weather", 5)
    committed = world.core.journal.committed
    ask(world)
    place = newest(world)
    require_aligned(world, place)
    assert place.position.sequence >= committed
    assert world.archive.shown_under == [world.core.epoch]


def test_changed_snapshot_interval_takes_effect_at_once() -> None:
    world = new_world()
    world.feed(on.SnapshotEvery(0.0))
    world.offer("flights", 10)
    world.wait(1000)
    assert world.archive.visible == []
    world.feed(on.SnapshotEvery(30.0))
    for _ in range(4):  # a reload of the same interval does not prolong the wait
        world.wait(8)
        world.feed(on.SnapshotEvery(30.0))
    assert len(world.archive.visible) == 1


def test_changed_snapshot_interval_stays_in_the_next_epoch() -> None:
    world = new_world()
    world.feed(on.SnapshotEvery(0.0))
    world.stop()
    world.start()
    world.feed(on.SnapshotEvery(30.0))
    world.offer("flights", 10)
    world.wait(40)
    assert len(world.archive.visible) == 1


def test_query_without_input_ends_an_empty_batch_at_the_barrier(world: World) -> None:
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
    assert world.archive.drafts == {}
    world.automatic |= {"batches"}
    world.wait(1)
    require_aligned(world, newest(world))
    assert newest(world).position.sequence == barrier


def test_failed_query_is_named_and_prevents_the_snapshot(world: World) -> None:
    world.offer("flights", 10)
    running = world.running("storms")
    assert running is not None
    for _ in range(2):
        world.feed(on.QueryFailed("storms", 1, "a cast", running.lineage))
        world.settle()
    ask(world)
    assert world.archive.drafts == {}
    assert world.core.term.snapshots.why_not == "query storms is failed"


def test_snapshot_is_abandoned_when_a_query_does_not_reach_the_barrier(world: World) -> None:
    world.automatic -= {"batches"}
    world.offer("flights", 10)
    world.wait(1)
    world.offer("flights", 10)
    ask(world)
    assert world.core.term.snapshots.state == "aligning"
    world.wait(ALIGN_SECONDS_MAX + 1)
    assert world.core.term.snapshots.state == "waiting"
    assert world.core.term.snapshots.why_not == "a query is too far behind"


def test_node_takes_a_snapshot_at_each_interval_while_input_comes() -> None:
    world = World()
    world.digests, world.snapshot_every = True, 5.0
    world.start()
    world.wait(6)
    taken = len(world.archive.drafts)  # the epoch and the application are new
    world.wait(20)
    assert len(world.archive.drafts) == taken
    for _ in range(3):
        world.offer("flights", 10)
        world.wait(6)
    assert len(world.archive.drafts) == taken + 3


def test_snapshots_continue_until_no_kept_revision_predates_a_burst() -> None:
    """The journal keeps all records behind the oldest revision: the whole burst may fill a disk."""
    world = by_the_clock()
    world.wait(61)
    for _ in range(20):
        world.offer("flights", BATCH)
    burst = world.core.journal.last.sequence
    world.wait(300)
    assert world.archive.visible[0].position.sequence >= burst
    assert world.core.journal.base.sequence >= burst
    taken = len(world.archive.drafts)
    world.wait(300)
    assert len(world.archive.drafts) == taken


def test_journal_trims_records_that_no_query_and_no_kept_revision_needs(
    world: World,
) -> None:
    drafts = []
    for _ in range(4):
        world.offer("flights", 10)
        ask(world)
        drafts.append(newest(world).position.sequence)
        world.wait(11)
    kept = world.archive.visible[0].position.sequence
    assert kept == drafts[-2]
    assert world.disk.base.position.sequence == kept == world.core.journal.base.sequence
    world.crash()
    world.start()
    world.offer("flights", 10)
    world.wait(2)
    assert world.truth.all_published()


def test_revision_of_another_history_neither_retains_nor_trims_records(world: World) -> None:
    world.offer("flights", 10)
    ask(world)
    stands, written = newest(world).position, newest(world).last_mark
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


def test_warm_member_takes_the_snapshot_and_the_holder_makes_it_visible(world: World) -> None:
    with_a_warm_member(world)
    world.offer("flights", 10)
    ask(world)
    assert len(world.archive.visible) == 1


def test_holder_takes_the_snapshot_itself_if_only_it_has_the_state_of_a_query(
    world: World,
) -> None:
    world.crash()
    world.plans = {name: replace(plan, warm=True) for name, plan in world.plans.items()}
    world.start()
    world.wait(20)
    with_a_warm_member(world)
    sent: list[object] = []
    world.heard = sent.append
    world.offer("flights", 10)
    ask(world)
    assert len(world.archive.visible) == 1
    assert not [one for one in sent if isinstance(getattr(one, "message", None), say.TakeSnapshot)]


def on_standby(world: World) -> Any:
    """A deployment whose only query another node runs. The journal has its batches up to 4, one in
    each of the records 2 to 5, and the sink has the batches up to 3."""
    engine = world.engine
    plan = engine.QueryPlan("q", "d", frozenset({"s"}), ("board",), warm=True)
    deployment = engine.Deployment("app", (plan,), LIMITS, engine.RestartPolicy())
    take(deployment, [EpochStart("a", "p", False)])
    take(deployment, [Mark("q", number, number) for number in range(1, 5)], first=2)
    take(deployment, [Published("q", "board", 3)], first=6)
    return deployment


def test_node_on_standby_needs_no_records_of_batches_that_every_sink_has(world: World) -> None:
    assert on_standby(world).need() == 3


def test_no_batch_after_an_epoch_is_continued_from_its_checkpoint(world: World) -> None:
    marks = on_standby(world).marks["q"]
    epochs = Position(1, 1), Position(2, 4)
    assert [*marks.shared(epochs, 6, 0)] == [(1, 2), (2, 3)]


def test_slow_snapshot_becomes_visible_after_its_digests_left_memory(
    world: World,
) -> None:
    """Later batches have driven the digests of its batches out of memory, on both nodes."""
    with_a_warm_member(world)
    world.ghost.takes_long = True
    world.offer("flights", 10)
    ask(world)
    for number in range(100, 100 + DIGESTS_KEPT):
        world.feed(on.BatchDigested("delays", number, f"digest {number}"))
    world.ghost.has_taken()
    world.wait(1)
    assert len(world.archive.visible) == 1


def test_snapshot_with_a_digest_mismatch_never_becomes_visible(world: World) -> None:
    with_a_warm_member(world)
    world.ghost.digest_of_snapshots = "another"
    world.offer("flights", 10)
    ask(world)
    assert len(world.archive.drafts) == 1
    assert world.archive.visible == []


def test_epoch_after_lost_database_writes_trims_by_the_revisions_left(
    world: World,
) -> None:
    for _ in range(3):
        world.offer("flights", 10)
        ask(world)
    base, first = world.core.journal.base, world.archive.drafts[1]
    world.archive.visible[:] = [first]
    world.archive.answers = False
    lose_the_row(world)
    world.wait(12)
    assert world.core.journal.base == base == first.position


def test_node_snapshots_at_once_when_no_revision_joins_its_journal(
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


def test_lone_node_takes_a_final_snapshot_before_it_stops() -> None:
    world = by_the_clock()
    world.offer("flights", 10)
    last = world.core.journal.last.sequence
    world.stop()
    assert (world.receiving, world.alive) == (False, True)
    world.wait(2)
    assert newest(world).position.sequence >= last
    assert world.table.row.holder is None
    assert not world.alive


def test_stop_waits_only_briefly_for_the_final_snapshot() -> None:
    world = by_the_clock()
    world.automatic -= {"batches"}
    world.offer("flights", 10)
    world.stop()
    world.wait(LAST_SNAPSHOT_SECONDS_MAX - 1)
    assert world.alive
    world.wait(2)
    assert not world.alive


def test_second_stop_request_skips_the_final_snapshot() -> None:
    world = by_the_clock()
    world.automatic -= {"batches"}
    world.offer("flights", 10)
    world.stop()
    assert world.alive
    world.stop()
    assert not world.alive


def test_stop_is_immediate_when_a_peer_is_in_sync() -> None:
    world = with_a_warm_member(by_the_clock())
    world.offer("flights", 10)
    world.stop()
    assert not world.alive


def test_snapshot_is_abandoned_when_spark_dies_before_a_digest_is_known(world: World) -> None:
    """Nobody computes a committed batch again, so its digest would never be known."""
    world.digests = False
    world.offer("flights", 10)
    ask(world)
    world.kill_spark()
    world.digests = True
    world.wait(5)
    world.offer("flights", 10)
    ask(world)
    assert len(world.archive.visible) == 1


def test_snapshot_is_abandoned_when_spark_of_the_holder_dies_before_a_digest(world: World) -> None:
    with_a_warm_member(world)
    world.ghost.digest_of_snapshots, world.ghost.takes_long = "another", True
    world.digests = False
    world.offer("flights", 10)
    ask(world)
    world.ghost.warm = False  # a warm member would take over
    world.wait(1)
    world.kill_spark()
    assert world.core.term.snapshots.state == "waiting"


def test_holder_drops_a_snapshot_request_when_its_link_was_replaced(world: World) -> None:
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
    """Fail the database over to one that lacks the holder's last writes."""
    before = world.core.epoch
    world.table.identity = DatabaseIdentity("7000000000000000001", "00000002")
    world.set_row(next(row for row in world.table.history if row.epoch))
    world.wait(2)
    assert world.core.epoch > before


BROKEN: tuple[tuple[Callable[[World], None], Mutant], ...] = (
    (
        test_snapshot_is_abandoned_when_spark_of_the_holder_dies_before_a_digest,
        Mutant(
            "R28",
            "term",
            "Term.note_breakdown",
            "self.snapshots.lost_digests(breakdown.reason)",
            "pass",
        ),
    ),
    (
        test_holder_drops_a_snapshot_request_when_its_link_was_replaced,
        Mutant("R28", "core", "Core._on_peer", "self.term.snapshots.linked(peer)", "pass"),
    ),
    (
        test_every_query_ends_a_batch_at_the_barrier_of_the_snapshot,
        Mutant(
            "R28",
            "pending_events",
            "PendingEvents.next_batch_end",
            "through if barrier is None else barrier",
            "through",
        ),
    ),
    (
        test_no_query_waits_for_another_at_the_barrier,
        Mutant("R28", "barrier", "batches_at", "len(ended) == len(numbers)", "ended"),
    ),
    (
        test_journal_trims_records_that_no_query_and_no_kept_revision_needs,
        Mutant(
            "R29",
            "retention",
            "Retention.revisions_are",
            "min(ours, default=0)",
            "max(ours, default=0)",
        ),
    ),
    (
        test_revision_of_another_history_neither_retains_nor_trims_records,
        Mutant("R28", "retention", "Retention.revisions_are", "has(last_mark)", ""),
    ),
    (
        test_revision_of_another_history_neither_retains_nor_trims_records,
        Mutant("R28", "retention", "Retention.revisions_are", "has(position)", ""),
    ),
    (
        test_snapshot_with_a_digest_mismatch_never_becomes_visible,
        Mutant(
            "R28",
            "snapshots",
            "Snapshots._is_ours",
            "digests.get((query, n)) == digest",
            "digests.get((query, n))",
        ),
    ),
    (
        test_epoch_after_lost_database_writes_trims_by_the_revisions_left,
        Mutant(
            "R29", "role_machine", "RoleMachine.become_promoting", "retention.begin_epoch()", ""
        ),
    ),
    (
        test_node_snapshots_at_once_when_no_revision_joins_its_journal,
        Mutant("R29", "core", "Core._on_revisions", "self.retention.lacks_revision", "False"),
    ),
    (
        test_holder_takes_the_snapshot_itself_if_only_it_has_the_state_of_a_query,
        Mutant("R33", "snapshots", "Snapshots._align", "only_here", "False"),
    ),
    (
        test_node_on_standby_needs_no_records_of_batches_that_every_sink_has,
        Mutant("R33", "deployment", "Deployment._need", "on_standby", "False"),
    ),
    (
        test_no_batch_after_an_epoch_is_continued_from_its_checkpoint,
        Mutant(
            "R33",
            "marks",
            "QueryMarks.shared",
            "[start.sequence - 1 for start in epochs[1:]]",
            "[committed for start in epochs[1:]]",
        ),
    ),
)


@pytest.mark.parametrize(
    "test", dict.fromkeys(test for test, _ in BROKEN), ids=lambda test: test.__name__
)
def test_unmutated_core_passes_the_snapshot_tests(test: Callable[[World], None]) -> None:
    test(new_world(load(None)))


@pytest.mark.parametrize(("test", "mutant"), BROKEN, ids=lambda one: getattr(one, "name", ""))
def test_each_mutant_is_detected_by_the_snapshot_tests(
    test: Callable[[World], None], mutant: Mutant
) -> None:
    world = new_world(load(mutant))
    with pytest.raises((AssertionError, InvariantBroken, LookupError)):
        test(world)
