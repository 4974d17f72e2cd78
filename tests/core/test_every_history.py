"""No history of inputs, faults included, leads to an unsafe act; every history can be healed.

Hypothesis plays crashes, lost and late replies, pauses past the ttl, dying queries, and rows that
a peer, an operator or a failed-over database changed. ``truth`` judges each action; ``heal`` at
the end requires that all events are published.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import ha_engine.core
from ha_engine.core import inputs as on
from ha_engine.types import Holder, LeaseRow
from tests.core.ghost import MEMBER
from tests.core.world import EVERYTHING, PLANS, World, plan

QUERIES = st.sampled_from([one.name for one in PLANS])
PEER = Holder("b", "q1")
REPLIES = ["arrives", "arrives", "request lost", "reply lost", "late"]
HEALED_WITHIN = 120
"""Seconds of the world's clock; the longest backoff of its query process is eight."""

BACK = plan("delays", "flights", "board", "v1", "keep")
CHANGES = {
    "keep": (plan("delays", "flights", "board", "v2", "keep"), PLANS[1]),
    "reset": (plan("delays", "flights", "board", "v3", "reset"), PLANS[1]),
    "backfill": (plan("delays", "flights", "board", "v4", "backfill"), PLANS[1]),
    "add": (BACK, PLANS[1], plan("audit", "flights", "")),
    "back": (BACK, PLANS[1]),
}


# -- other writers of the row ----------------------------------------------------------------------


def holds(world: World) -> bool:
    row = world.table.row
    current = row is not None and (row.epoch, row.version) == world.table.highest
    return current and world.alive and row is not None and row.holder == world.me


def peer_joins(world: World) -> None:
    """Link a peer that has everything; the holder records it as in sync (RULES.md#r9)."""
    if world.alive:
        world.ghost.link()
        world.settle()


def peer_falls_silent(world: World) -> None:
    world.ghost.linked = False


def link_to_the_peer_breaks(world: World) -> None:
    if world.alive:
        world.ghost.unlink()
        world.settle()


def peer_takes_over(world: World) -> None:
    row = world.table.row
    if row is None or row.paused or (row.epoch, row.version) < world.table.highest:
        return
    still = world.now - world.table.changed_at >= world.timing.ttl
    if MEMBER in row.in_sync and row.holder != PEER and (row.holder is None or still):
        world.rewrite_row(holder=PEER, epoch=row.epoch + 1, in_sync=(MEMBER,))
        peer_falls_silent(world)


def peer_leaves(world: World) -> None:
    row = world.table.row
    if row is not None and row.holder == PEER:
        world.rewrite_row(holder=None, in_sync=(world.member,))


def supervisor_releases(world: World) -> None:
    row = world.table.row
    lives = world.alive and row is not None and row.holder == world.me
    if row is not None and row.holder not in (None, PEER) and not lives:
        world.rewrite_row(holder=None, successor=None)


def operator_pauses(world: World) -> None:
    if world.table.row is not None:
        world.rewrite_row(paused=not world.table.row.paused)


def database_fails_over(world: World) -> None:
    """Fail over to a standby that lacks the latest writes (RULES.md#i13)."""
    history = world.table.history
    world.set_row(history[max(0, len(history) - 3)])


def database_loses_the_row(world: World) -> None:
    world.set_row(None)


OTHERS: dict[str, Callable[[World], None]] = {
    other.__name__: other
    for other in (
        peer_joins,
        peer_falls_silent,
        link_to_the_peer_breaks,
        peer_takes_over,
        peer_leaves,
        supervisor_releases,
        operator_pauses,
        database_fails_over,
        database_loses_the_row,
    )
}


class EveryHistory(RuleBasedStateMachine):
    """Parts that no rule drives at the moment work by themselves, so that histories get far."""

    engine: Any = ha_engine.core

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.engine)
        self.world.digests, self.world.snapshot_every = True, 5.0
        self.world.start()

    # -- time and the lease's replies --------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 3.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 5.0, 30.0]))
    def the_process_is_paused(self, seconds: float) -> None:
        self.world.jump(seconds)

    @rule(parts=st.sets(st.sampled_from(sorted(EVERYTHING)), max_size=3))
    def parts_wait_for_their_word(self, parts: set[str]) -> None:
        self.world.automatic = set(EVERYTHING) - parts
        self.world.settle()

    @rule(up=st.booleans(), how=st.sampled_from(REPLIES))
    def database(self, up: bool, how: str) -> None:
        """Set the database down or up; ``how`` is the fate of the next or pending request."""
        self.world.table.up = up
        if self.world.request is not None:
            self.world.reply(how)
        else:
            self.world.next_reply = how

    @precondition(lambda self: self.world.request is not None)
    @rule(how=st.sampled_from(REPLIES))
    def reply(self, how: str) -> None:
        self.world.reply(how)
        self.world.settle()

    @precondition(lambda self: self.world.late)
    @rule()
    def a_late_request_lands(self) -> None:
        self.world.land()

    # -- the row, changed by others ----------------------------------------------------------------

    @precondition(lambda self: self.world.table.row is not None)
    @rule(who=st.sampled_from(sorted(OTHERS)))
    def the_row_is_changed(self, who: str) -> None:
        OTHERS[who](self.world)
        self.world.settle()

    @precondition(lambda self: self.world.alive)
    @rule(query=QUERIES, above=st.integers(-1, 1), where=st.sampled_from(["ledger", "peer"]))
    def another_epoch_is_heard_of(self, query: str, above: int, where: str) -> None:
        world = self.world
        epoch = max(0, world.table.highest[0] + above)
        if where == "ledger":
            ledger = world.ledgers[(query, "board")]
            ledger.epoch = max(ledger.epoch, epoch)
        else:
            world.read_max = max(world.read_max, (epoch, 0))
            world.feed(on.HigherEpochSeen(epoch, "a peer"))
        world.settle()

    # -- processes ---------------------------------------------------------------------------------

    @rule(tail_kept=st.integers(0, 3), query_process_dies=st.booleans(), released=st.booleans())
    def the_node_process_is_killed(
        self, tail_kept: int, query_process_dies: bool, released: bool
    ) -> None:
        if self.world.alive:
            self.world.crash(tail_kept=tail_kept, query_process_dies=query_process_dies)
        if released and self.world.table.row is not None:
            supervisor_releases(self.world)

    @precondition(lambda self: not self.world.alive)
    @rule()
    def start(self) -> None:
        self.world.start()

    @precondition(lambda self: not self.world.alive)
    @rule(change=st.sampled_from(sorted(CHANGES)))
    def start_with_another_application(self, change: str) -> None:
        self.world.spark = None
        self.world.plans = {one.name: one for one in CHANGES[change]}
        self.world.start()

    @precondition(lambda self: self.world.alive)
    @rule()
    def a_snapshot_is_asked_for(self) -> None:
        self.world.feed(on.SnapshotAsked())
        self.world.settle()

    @precondition(lambda self: self.world.alive)
    @rule(seconds=st.sampled_from([0.0, 1.0, 60.0]))
    def another_interval_is_configured(self, seconds: float) -> None:
        self.world.feed(on.SnapshotEvery(seconds))
        self.world.settle()

    @rule(sure=st.integers(0, 9))
    def stop(self, sure: int) -> None:
        if sure == 9:
            self.world.stop()

    @rule(asks=st.booleans())
    def query_process_dies_or_asks_what_to_run(self, asks: bool) -> None:
        if not self.world.alive or self.world.spark is None:
            return
        if asks:
            self.world.attend()
        else:
            self.world.kill_spark()
        self.world.settle()

    # -- records, batches, sinks -------------------------------------------------------------------

    @rule(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4), finished=st.booleans())
    def good_times(self, sizes: list[int], finished: bool) -> None:
        """Let everything work for a while; else few histories get beyond their first fault."""
        self._end_faults()
        if not self.world.alive:
            self.world.start()
        self.world.wait(6)
        self.world.automatic -= set() if finished else {"batches", "sinks"}
        for rows in sizes:
            self.world.offer("flights" if rows % 3 else "weather", rows)

    @rule(stream=st.sampled_from(["flights", "weather", "taxis"]), rows=st.integers(1, 60))
    def offer(self, stream: str, rows: int) -> None:
        self.world.offer(stream, rows)

    @rule(records=st.sampled_from([1, 2, None]))
    def sync(self, records: int | None) -> None:
        if self.world.alive:
            self.world.sync(records)

    @rule(query=QUERIES)
    def source_polls_again(self, query: str) -> None:
        self.world.poll(query)

    @rule(query=QUERIES, dies=st.booleans())
    def batch_comes_out(self, query: str, dies: bool) -> None:
        self.world.finish(query, dies=dies)

    @rule(query=QUERIES)
    def query_fails(self, query: str) -> None:
        if self.world.alive:
            self.world.fail(query)

    @rule(query=QUERIES)
    def operator_skips(self, query: str) -> None:
        self.world.skip(query)

    @precondition(lambda self: self.world.alive)
    @rule(query=QUERIES)
    def operator_retries(self, query: str) -> None:
        self.world.feed(on.RetryAsked(query))
        self.world.settle()

    @rule(query=QUERIES, sink=st.sampled_from(["board", "archive"]))
    def publisher_goes_on(self, query: str, sink: str) -> None:
        if query in self.world.plans and sink in self.world.plans[query].sinks:
            self.world.publish(query, sink)

    @invariant()
    def nothing_is_published_under_an_epoch_that_was_not_acquired(self) -> None:
        assert self.world.publishing is None or self.world.publishing in self.world.truth.epochs

    # -- the end -----------------------------------------------------------------------------------

    def teardown(self) -> None:
        if self.world.broken:
            return
        self.heal()
        self.world.truth.require_all_published()
        self.world.require_same_after_restart()

    def heal(self) -> None:
        """End every fault and do, as an operator, what the core says it waits for."""
        world = self.world
        self._end_faults()
        for _ in range(HEALED_WITHIN // 6):
            if not world.alive:
                world.start()
            world.settle()
            world.wait(6)
            if world.truth.all_published():
                return
            for name, life in world.core.deployment.lives.items():
                if life.state.value == "failed":
                    world.skip(name)

    def _end_faults(self) -> None:
        world = self.world
        world.late.clear()
        world.table.up, world.next_reply = True, "arrives"
        self._repair_row()
        world.automatic = set(EVERYTHING)
        world.settle()

    def _repair_row(self) -> None:
        """Stop the nodes before an operator writes the row by hand (RULES.md#r26)."""
        world, row = self.world, self.world.table.row
        epoch = max([0, *(ledger.epoch for ledger in world.ledgers.values())])
        highest = max(world.table.highest, world.read_max, (epoch, 0))
        sound = row is not None and (row.epoch, row.version) >= highest and not row.paused
        listed = row is not None and world.member in row.in_sync
        if (sound and listed) or highest == (0, 0):
            return
        if world.alive:
            world.crash()
        version = max(highest[1], *(row.version for row in world.table.history), 0) + 1
        world.table.put(world.now, LeaseRow("group-1", None, highest[0], version, (world.member,)))


def run(engine: Any, examples: int, steps: int, *, for_a_mutant: bool = False) -> None:
    """Play histories against ``engine``. Raise what the first bad one raised.

    ``for_a_mutant``: play the same histories each time, and do not shrink the first bad one.
    """
    phases = [Phase.generate] if for_a_mutant else [Phase.generate, Phase.shrink]
    machine = type("EveryHistory", (EveryHistory,), {"engine": engine})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=for_a_mutant,
            phases=phases,
            print_blob=False,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_history_breaks_an_invariant_and_each_can_be_healed() -> None:
    run(ha_engine.core, examples=150, steps=60)


DIES = {"query_process_dies": False, "released": True, "tail_kept": 1}


def test_query_that_lacks_events_does_not_run_before_a_record_restarts_it() -> None:
    """RULES.md#r23, RULES.md#r28. 1. The query leaves the application. 2. The events that it has
    not read are trimmed. 3. It returns: its old version is not in force until a record says where
    it begins."""
    machine = EveryHistory()
    machine.the_node_process_is_killed(**DIES)
    machine.start_with_another_application("add")
    machine.the_node_process_is_killed(**DIES)
    machine.start_with_another_application("keep")
    machine.good_times(finished=False, sizes=[1, 1])
    machine.the_node_process_is_killed(**DIES)
    machine.start_with_another_application("add")
    machine.teardown()


def test_query_that_restarts_behind_a_batch_that_never_ran_continues() -> None:
    """RULES.md#r19, RULES.md#r28. 1. A batch of a query is planned, and the query leaves the
    application before it runs. 2. Its events are trimmed. 3. It returns with a new state: the next
    batch that it admits must follow the last one that the outbox has."""
    machine = EveryHistory()
    machine.the_node_process_is_killed(**DIES)
    machine.start_with_another_application("add")
    machine.good_times(finished=False, sizes=[1])
    machine.the_node_process_is_killed(**DIES)
    machine.start_with_another_application("back")
    machine.good_times(finished=False, sizes=[1])
    machine.good_times(finished=False, sizes=[1])
    machine.the_node_process_is_killed(**DIES)
    machine.start_with_another_application("add")
    machine.good_times(finished=True, sizes=[1])
    machine.teardown()


def test_skip_of_a_trimmed_batch_is_forgotten_after_a_restart() -> None:
    """RULES.md#r12. The trimmed records include the batch; the skip's record is behind them."""
    machine = EveryHistory()
    machine.good_times(finished=False, sizes=[1])
    machine.a_snapshot_is_asked_for()
    machine.query_fails("storms")
    machine.time_passes(0.25)
    machine.query_fails("storms")
    machine.teardown()


def test_query_without_a_batch_since_its_reset_has_no_state_to_keep() -> None:
    """RULES.md#r23. 1. A batch is planned. 2. The query is changed and reset, and its node dies
    before it runs that batch. 3. It is changed again with the order to keep its state."""
    machine = EveryHistory()
    machine.good_times(finished=False, sizes=[1])
    machine.the_node_process_is_killed(**DIES)
    machine.parts_wait_for_their_word({"process"})
    machine.start_with_another_application("reset")
    machine.the_node_process_is_killed(**DIES)
    machine.parts_wait_for_their_word(set())
    machine.start_with_another_application("add")
    machine.teardown()


def test_no_checkpoint_outlives_a_change_that_a_crash_undid() -> None:
    """RULES.md#r23. 1. A query is changed and keeps its state; the record is not durable. 2. It
    runs, and its checkpoint names that record. 3. The node dies, and the record is lost."""
    machine = EveryHistory()
    machine.start_with_another_application("keep")
    machine.good_times(finished=False, sizes=[1])
    machine.parts_wait_for_their_word({"disk"})
    machine.the_node_process_is_killed(query_process_dies=False, released=True, tail_kept=0)
    machine.start_with_another_application("add")
    machine.sync(1)
    machine.the_row_is_changed("database_fails_over")
    machine.teardown()


def test_batches_that_a_backfill_makes_again_stay_admitted() -> None:
    """RULES.md#r12, RULES.md#r23. 1. A batch is published, and leaves the outbox. 2. A changed
    query begins before that batch. 3. The node restarts before the query has made it again."""
    machine = EveryHistory()
    machine.good_times(finished=False, sizes=[1])
    machine.the_node_process_is_killed(query_process_dies=False, released=True, tail_kept=0)
    machine.start_with_another_application("backfill")
    machine.the_node_process_is_killed(query_process_dies=False, released=False, tail_kept=0)
    machine.teardown()
