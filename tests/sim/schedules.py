"""Histories that random seeds rarely reach, each described step by step; the judges are the
same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import ha_engine.core
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.types import Events, Member, Role, Submission
from tests.core.surroundings import Disk
from tests.core.truth import require
from tests.sim.forcing import force
from tests.sim.group import Group
from tests.sim.history import heal
from tests.sim.node import PEERS, SimNode
from tests.sim.variants import Variant

SETTLED_BY = 8.0


class Stage:
    """Two nodes in sync, the first of them active, without random faults. In the variant with a
    backup, ``c`` is the backup and follows."""

    def __init__(self, engine: Any = ha_engine.core, *, variant: Variant = Variant.PLAIN) -> None:
        self.group = Group(1, engine, nodes=2, variant=variant)
        self.group.restart_within = 0.5
        self.a, self.b = self.group.nodes["a"], self.group.nodes["b"]
        self.a.start()
        self.wait(0.5)
        self.b.start()
        self.until(lambda: len(self.in_sync) == 2)
        if self.group.backup:
            self.c.start()
        self.wait(SETTLED_BY - self.group.now)

    @property
    def c(self) -> SimNode:
        return self.group.nodes["c"]

    @property
    def in_sync(self) -> tuple[Member, ...]:
        row = self.group.around.table.row
        return row.in_sync if row is not None else ()

    def wait(self, seconds: float) -> None:
        self.group.agenda.run_until(self.group.now + seconds)

    def until(self, holds: Callable[[], bool], within: float = 20.0) -> None:
        end = self.group.now + within
        while not holds():
            require(self.group.now < end, "schedule", "what the story tells did not come about")
            self.wait(0.01)

    def is_active(self, node: SimNode) -> Callable[[], bool]:
        return lambda: node.alive and node.truth.role is Role.ACTIVE

    @property
    def listed(self) -> set[str]:
        return {member.node for member in self.in_sync}

    def isolate(self, node: SimNode, *, database: bool = True) -> None:
        for other in sorted(set(self.group.nodes) - {node.node}):
            self.group.network.block(node.node, other)
            self.group.network.block(other, node.node)
        if database:
            self.group.database.unreachable.add(node.node)

    def reconnect(self, node: SimNode) -> None:
        self.group.network.unblock()
        self.group.database.unreachable.discard(node.node)

    def pause_and_resume_up_to(self, version: int) -> None:
        """Change the row as an operator, repeatedly, until it has ``version``."""
        table = self.group.around.table
        while table.row is not None and table.row.version < version:
            self.group.database.pause(not table.row.paused)

    def image_of(self, node: SimNode) -> Disk:
        """Copy a node's disk, and wait until the row proves that the copy lacks records."""
        image, table = copy.deepcopy(node.disk), self.group.around.table
        self.until(lambda: table.row is not None and table.row.committed > image.last)
        return image

    def return_alone(self, node: SimNode, image: Disk) -> None:
        """Kill both nodes, and start ``node`` alone with an earlier image of its disk. It must not
        promote."""
        self.group.restart_within = 60
        for one in (self.a, self.b):
            one.kill(query_process_dies=True)
        node.go_back_to(image)
        node.start()
        self.wait(8)
        promoted = f"{node.node} promoted with an earlier image"
        require(node.truth.role is not Role.ACTIVE, "R8", promoted)

    def acked_by(self, node: SimNode) -> int:
        """Return how far the active knows the node's journal to be durable."""
        member = Member(node.node, node.disk.journal_id)
        return int(self.a.core.term.replication.acked_through(member))

    def heal(self) -> None:
        heal(self.group)


def an_acquisition_is_lost_while_the_former_holder_sleeps(stage: Stage) -> None:
    """1. a holds the lease and is stopped for longer than a ttl. 2. b acquires and acts. 3. The
    database fails over to a standby without b's acquisition. 4. a continues: its renewal finds the
    row unchanged. If a took that for its lease, two nodes would act (RULES.md#r5)."""
    group = stage.group
    stage.a.pause(30)
    stage.until(stage.is_active(stage.b))
    before = next(n for n, row in enumerate(group.facts.branch) if row.epoch == 2)
    group.database.fail_over(len(group.facts.branch) - before)
    group.network.block("a", "b")
    group.network.block("b", "a")
    group.database.unreachable.add("b")
    stage.a.resume(stage.a.processes)
    stage.wait(6)
    stage.heal()


def an_acquisition_is_lost_while_the_former_holder_is_cut_off(stage: Stage) -> None:
    """The story is the same, but a was cut off instead, so that its next request is a read."""
    group = stage.group
    stage.isolate(stage.a)
    stage.until(stage.is_active(stage.b))
    before = next(n for n, row in enumerate(group.facts.branch) if row.epoch == 2)
    group.database.fail_over(len(group.facts.branch) - before)
    group.database.unreachable.add("b")
    group.database.unreachable.discard("a")
    stage.wait(6)
    stage.heal()


def a_higher_epoch_is_read_after_a_failover(stage: Stage) -> None:
    """RULES.md#r14, RULES.md#r5. 1. a is cut off, b acquires, the database fails over and keeps
    that. 2. a reads b's row: it must be demoted by it. 3. The database fails over to the first row,
    which lists a alone: if a took that for its own, it would act beside b."""
    group = stage.group
    stage.isolate(stage.a)
    stage.until(stage.is_active(stage.b))
    group.database.fail_over(0)
    group.database.unreachable.add("b")
    group.database.unreachable.discard("a")
    stage.wait(1.5)
    require(stage.a.truth.role is not Role.ACTIVE, "R14", "a read a higher epoch and stays active")
    group.database.fail_over(len(group.facts.branch) - 1)
    stage.wait(4)
    stage.heal()


def a_member_comes_back_with_another_journal_at_once(stage: Stage) -> None:
    """1. {a, b} are in sync. 2. b's disk is lost, and b is back with another journal before a could
    write that it misses it. 3. a learns of the new journal while the row still lists the old one.
    If a forgot the acks of the old one, its own invariant would end it: one lost disk would stop
    both nodes (RULES.md#i3)."""
    stage.b.kill(query_process_dies=True)
    stage.b.new_disk()
    stage.group.database.unreachable.add("a")
    stage.b.start()
    replication = stage.a.core.term.replication
    stage.until(lambda: replication.peers["b"].journal_id == stage.b.disk.journal_id)
    stage.group.database.unreachable.clear()
    stage.until(lambda: stage.b.disk.journal_id in {m.journal_id for m in stage.in_sync})
    require(stage.a.processes == 1, "schedule", "a had to be started again")
    stage.heal()


def a_disk_goes_back_after_its_member_was_removed(stage: Stage) -> None:
    """RULES.md#r8. 1. b acks records, dies, and is removed; the input ends. 2. b returns with an
    earlier image of its disk, in the same epoch, and catches up slowly. 3. a must not list b before
    b has caught up."""
    before = copy.deepcopy(stage.b.disk)
    stage.until(lambda: stage.acked_by(stage.b) > len(before.records) + 20)
    stage.group.producers.sending = False
    stage.wait(4.0)
    # a must append nothing until b returns, so b dies when the marks of an idle journal are done.
    idle = len(stage.a.disk.records)
    stage.until(lambda: stage.acked_by(stage.b) == len(stage.a.disk.records) >= idle + 4)
    stage.group.restart_within = 60
    stage.b.kill(query_process_dies=True)
    stage.until(lambda: len(stage.in_sync) == 1)
    stage.b.go_back_to(before)
    stage.b.fsync_max = 2.0
    stage.b.start()
    stage.until(lambda: len(stage.in_sync) == 2)
    require(stage.a.processes == 1, "schedule", "a had to be started again")
    stage.heal()


def a_disk_goes_back_while_the_row_lists_its_member(stage: Stage) -> None:
    """RULES.md#r8. 1. a does not reach the database, and commits by b's promises. 2. b dies, and
    returns at once with an earlier image of its disk. 3. The row still lists b, so a must commit
    nothing before b has caught up."""
    before = copy.deepcopy(stage.b.disk)
    stage.until(lambda: stage.acked_by(stage.b) > len(before.records) + 20)
    stage.group.database.unreachable.add("a")
    stage.wait(1.0)
    stage.group.restart_within = 60
    stage.b.kill(query_process_dies=True)
    stage.b.go_back_to(before)
    stage.b.start()
    stage.until(lambda: stage.b.disk.durable > stage.acked_by(stage.b) > len(before.records))
    stage.group.database.unreachable.clear()
    stage.until(lambda: len(stage.in_sync) == 2)
    require(stage.a.processes == 1, "schedule", "a had to be started again")
    stage.heal()


def a_disk_goes_back_and_the_active_dies(stage: Stage) -> None:
    """RULES.md#r8. 1. b acks records. 2. Both nodes die, and b returns with an earlier image of its
    disk. 3. The row lists b: b must not acquire the lease, since acked records would be lost."""
    stage.return_alone(stage.b, stage.image_of(stage.b))
    stage.a.start()
    stage.heal()


def a_disk_with_a_longer_discarded_tail_comes_back(stage: Stage) -> None:
    """RULES.md#r8. 1. a is cut off, and appends many records that are never committed; an image of
    its disk is taken. 2. b takes over; a truncates these records and is in sync again. 3. b acks a
    few events. Both die, and a returns with the image, which has more records than were ever
    committed. a must not promote."""
    group = stage.group
    stage.isolate(stage.a)
    stage.wait(0.5)
    for number in range(1, 61):
        events = Events("flights", 1, 0, (Submission("burst", number, "", 1),))
        stage.a.feed(on.EventsOffered(events, b""))
    stage.wait(1.0)
    image, acks = copy.deepcopy(stage.a.disk), group.counters["acks"]
    stage.until(stage.is_active(stage.b))
    stage.reconnect(stage.a)
    stage.until(lambda: len(stage.in_sync) == 2 and group.counters["acks"] > acks + 5)
    stage.wait(1.3)
    require(len(group.facts.committed) < len(image.records), "schedule", "the image is short")
    stage.return_alone(stage.a, image)
    stage.b.start()
    stage.heal()


def a_disk_goes_back_during_an_outage_of_the_database(stage: Stage) -> None:
    """RULES.md#r8. 1. a does not reach the database, so the row names an old commit position. 2. b
    returns with an image from the time of the outage, and hears from a what is committed. 3. a dies
    before b has caught up. b must not promote."""
    group, table = stage.group, stage.group.around.table
    group.database.unreachable.add("a")
    stage.until(lambda: table.row is not None and stage.b.disk.last > table.row.committed)
    stage.wait(1.0)
    image = copy.deepcopy(stage.b.disk)
    stage.until(lambda: stage.acked_by(stage.b) > len(image.records) + 20)
    group.restart_within = 60
    stage.b.kill(query_process_dies=True)
    stage.b.go_back_to(image)
    stage.b.fsync_max = 1.0
    stage.b.start()
    stage.until(lambda: stage.b.core.follower.highest_announced > stage.b.disk.last.sequence)
    stage.a.kill(query_process_dies=True)
    stage.wait(8)
    require(stage.b.truth.role is not Role.ACTIVE, "R8", "b promoted with an earlier image")
    refusal = stage.b.core.why_no_forced_failover(("a",))
    require(refusal is None, "R26", f"an operator cannot give up what a had: {refusal}")
    group.database.unreachable.clear()
    stage.a.start()
    stage.heal()


def a_disk_goes_back_before_the_active_has_its_records(stage: Stage) -> None:
    """RULES.md#r8, RULES.md#i3. 1. The disk of a is slow, so b has acked records that are not
    committed. 2. b returns with an earlier image, while a does not reach the database. 3. The
    records become durable on a. a must not commit them by the acks of b's lost records."""
    image = copy.deepcopy(stage.b.disk)
    stage.until(lambda: stage.acked_by(stage.b) > len(image.records) + 20)
    stage.a.fsync_max = 6.0
    stage.until(lambda: stage.acked_by(stage.b) > stage.a.disk.durable + 2)
    stage.group.database.unreachable.add("a")
    stage.group.restart_within = 60
    stage.b.kill(query_process_dies=True)
    stage.b.go_back_to(image)
    stage.b.fsync_max = 60.0
    stage.b.start()
    stage.until(lambda: stage.group.counters["disks reported as gone back"] > 0)
    before = stage.a.disk.durable
    stage.until(lambda: stage.a.disk.durable > before)
    stage.wait(0.5)
    stage.b.fsync_max = stage.a.fsync_max = 0.02
    stage.group.database.unreachable.clear()
    stage.until(lambda: len(stage.in_sync) == 2)
    stage.heal()


def both_disks_go_back(stage: Stage) -> None:
    """RULES.md#r8, RULES.md#r26. 1. Both nodes die, and return with earlier images of their disks.
    2. Neither may acquire the lease. 3. An operator gives the lost records up: stops b, and forces
    a failover to a."""
    images = [(node, stage.image_of(node)) for node in (stage.a, stage.b)]
    stage.group.restart_within = 60
    for node, _ in images:
        node.kill(query_process_dies=True)
    for node, image in images:
        node.go_back_to(image)
        node.start()
    stage.wait(8)
    for node, _ in images:
        require(node.truth.role is not Role.ACTIVE, "R8", f"{node.node} promoted")
    stage.b.kill(query_process_dies=True)
    stage.until(lambda: stage.a.core.why_no_forced_failover(("b",)) is None)
    stage.a.feed(on.FailoverForced("operator", ("b",)))
    stage.until(lambda: stage.a.truth.role is Role.ACTIVE)
    stage.group.restart_within = 0.5
    stage.b.start()
    stage.until(lambda: len(stage.in_sync) == 2)
    stage.heal()


def a_sole_member_past_safe_until_lists_another(stage: Stage) -> None:
    """1. a has removed b and is alone; 2. the database stops, and a continues beyond safe_until,
    since no other node can acquire. 3. b catches up. 4. The database is back. If a wrote b into the
    row at once, its authority would end in that moment, receivers open (RULES.md#i2)."""
    stage.group.restart_within = 60
    stage.b.kill(query_process_dies=True)
    stage.until(lambda: len(stage.in_sync) == 1)
    stage.wait(0.3)
    stage.group.database.up = False
    stage.until(lambda: stage.a.core.lease.failing)
    stage.b.start()
    stage.wait(5)
    stage.group.database.up = True
    stage.until(lambda: len(stage.in_sync) == 2)
    require(stage.a.processes == 1, "schedule", "a had to be started again")
    require(not stage.group.counters["suspensions"], "R15", "a was suspended, alone")
    stage.heal()


def a_member_is_listed_by_an_unanswered_write(stage: Stage) -> None:
    """RULES.md#r1, RULES.md#r15. 1. a is alone, and b returns. 2. a writes b into the row, gets
    no answer, and is cut off. 3. b acquires: a must not continue as if it were still alone."""
    group, a = stage.group, stage.a
    group.restart_within = 60
    stage.b.kill(query_process_dies=True)
    stage.until(lambda: len(stage.in_sync) == 1)
    stage.wait(0.3)
    stage.b.start()
    stage.until(lambda: len(a.core.lease.possible) == 2)
    group.database.loses_replies = 1.0
    stage.until(lambda: len(stage.in_sync) == 2)
    stage.isolate(a)
    group.database.loses_replies = 0.0
    stage.until(stage.is_active(stage.b))
    require(not a.core.may_act(), "I2", "a and b act")
    stage.heal()


def a_row_regresses_to_one_with_a_removed_member(stage: Stage) -> None:
    """RULES.md#r5. 1. a removes b and acks alone. 2. The database fails over to the row that lists
    b. 3. a reads it: it must neither end itself nor commit without b before it has written the row
    again; and b must not acquire from it when a dies."""
    group = stage.group
    stage.isolate(stage.b, database=False)
    stage.until(lambda: len(stage.in_sync) == 1)
    acks = group.counters["acks"]
    stage.until(lambda: group.counters["acks"] > acks)
    listed = max(n for n, row in enumerate(group.facts.branch) if len(row.in_sync) == 2)
    group.database.fail_over(len(group.facts.branch) - listed - 1)
    stage.until(lambda: group.facts.newest is not None and group.facts.newest.epoch == 2)
    require(stage.a.processes == 1, "schedule", "a had to be started again")
    stage.heal()


def a_row_regresses_and_its_holder_dies(stage: Stage) -> None:
    """RULES.md#r5, the end of the same story: a dies before it reads the older row. b, which has
    not read that a removed it, must wait."""
    group = stage.group
    stage.isolate(stage.b)
    stage.until(lambda: len(stage.in_sync) == 1)
    acks = group.counters["acks"]
    stage.until(lambda: group.counters["acks"] > acks)
    group.restart_within = 60
    stage.a.kill(query_process_dies=True)
    listed = max(n for n, row in enumerate(group.facts.branch) if len(row.in_sync) == 2)
    group.database.fail_over(len(group.facts.branch) - listed - 1)
    group.database.unreachable.clear()
    stage.wait(15)
    require(stage.b.truth.role is not Role.ACTIVE, "R5", "b promoted from the past")
    stage.heal()


def a_truncation_removes_a_published_record(stage: Stage) -> None:
    """RULES.md#r25. 1. a publishes batch n and writes that in its journal; b lacks that record. 2.
    a is stopped; b takes over. 3. a starts again, truncates the record, and continues with the
    next batch. If it had trimmed its outbox by the uncommitted record, batch n + 1 would follow
    n - 1 there."""
    group = stage.group
    published = dict.fromkeys(group.around.ledgers, 0)
    stage.until(lambda: all(group.around.ledgers[key].batch > 2 for key in published))
    group.network.block("a", "b")
    stage.wait(0.7)
    stage.a.kill(query_process_dies=False)
    group.network.unblock()
    stage.a.start()
    stage.heal()


def a_switchover_while_an_operator_pauses(stage: Stage) -> None:
    """RULES.md#r7. 1. a is asked to switch over and waits for b's slow disk. 2. An operator pauses
    failover. 3. a must not release a lease that no node may acquire then."""
    group = stage.group
    stage.until(lambda: stage.a.core.why_no_switchover(None) is None)
    stage.b.fsync_max = 1.0
    stage.a.feed(on.SwitchoverAsked(None, "operator"))
    group.database.pause(True)
    stage.wait(4)
    stage.b.fsync_max = 0.02
    require(stage.is_active(stage.a)(), "R7", "a gave the lease up while failover was paused")
    stage.heal()


def a_late_removal_and_acks_alone(stage: Stage) -> None:
    """RULES.md#r1. 1. b is out of sync, and back. 2. a's ADD b misses its deadline. 3. a reads {a},
    which resolves nothing, while b is cut off again. 4. The ADD lands: had a acked without b
    meanwhile, a's death would now lose those events."""
    group = stage.group
    stage.isolate(stage.b, database=False)
    stage.until(lambda: len(stage.in_sync) == 1)
    group.database.late, group.database.late_after = 1.0, (2.0, 2.1)
    group.network.unblock()
    stage.until(lambda: any(len(row.in_sync) == 2 for row in group.database.pending.values()))
    stage.isolate(stage.b, database=False)
    stage.until(lambda: len(stage.in_sync) == 2)
    group.database.late = 0.0
    stage.heal()


def a_member_without_its_disk_while_the_active_sleeps(stage: Stage) -> None:
    """RULES.md#r8. 1. {a, b} are in sync; a is stopped. 2. b's disk is lost, and b returns
    empty. 3. b must not promote: the row lists the journal that it had, not the one that it has."""
    stage.a.pause(12)
    stage.b.kill(query_process_dies=True)
    stage.b.new_disk()
    stage.b.start()
    stage.wait(10)
    require(stage.b.truth.role is not Role.ACTIVE, "R8", "b promoted with an empty journal")
    stage.heal()


def the_database_is_unreachable_and_promises_hold(stage: Stage) -> None:
    """RULES.md#r15, RULES.md#r16, RULES.md#i12. The database is unreachable for ten ttl: no role
    changes and acks continue."""
    group, epochs = stage.group, dict(stage.group.facts.acquired)
    group.database.up = False
    for _ in range(10):
        acks = group.counters["acks"]
        stage.wait(stage.a.timing.ttl)
        require(group.counters["acks"] > acks, "I12", "acks stopped though the peer promises")
    group.database.up = True
    stage.wait(3)
    require(group.facts.acquired == epochs, "C7", "a role changed while the database was away")
    stage.heal()


def a_promise_is_forgotten_by_a_restart(stage: Stage) -> None:
    """RULES.md#r16 with RULES.md#r4. 1. The database is away, b promises. 2. b is killed and starts
    again, the database is back, a cut off. 3. b, which forgot its promise, waits for a ttl
    itself."""
    group = stage.group
    group.database.up = False
    stage.until(lambda: group.counters["promises given"] > 0)
    stage.wait(5)
    stage.isolate(stage.a)
    stage.b.kill(query_process_dies=True)
    stage.b.start()
    group.database.up = True
    stage.until(stage.is_active(stage.b))
    stage.heal()


def an_acquisition_is_forgotten_by_a_restart(stage: Stage) -> None:
    """RULES.md#r16. 1. a is cut off, b acquires, and the answer is lost. 2. b is killed, starts
    again and does not reach the database. 3. a, cut off from it too, asks b for a promise: b must
    not give one, since a's epoch may be over as far as b knows."""
    group, table = stage.group, stage.group.around.table
    stage.isolate(stage.a)
    stage.until(lambda: stage.b.core.lease.high_water.tried[0] == 2)
    group.database.loses_replies = 1.0
    stage.until(lambda: table.row is not None and table.row.epoch == 2)
    stage.b.kill(query_process_dies=True)
    group.database.unreachable.add("b")
    group.network.unblock()
    stage.until(lambda: stage.b.alive)
    asked = group.counters["promises given"]
    stage.wait(6)
    require(group.counters["promises given"] == asked, "R16", "b promised to the old holder")
    group.database.loses_replies = 0.0
    group.database.unreachable.clear()
    stage.heal()


def a_switchover_meets_a_row_that_lost_writes(stage: Stage) -> None:
    """RULES.md#r5. 1. A renewal of a has no answer, and a shall hand over to b, which caught up. 2.
    The database fails over without it and the one before. 3. a, whose authority is over, reads its
    own older row: it must not release from there."""
    group, a = stage.group, stage.a
    group.producers.sending = False
    stage.wait(1)
    stage.until(lambda: a.core.lease.sent_at is not None)
    group.database.unreachable.add("a")
    stage.until(lambda: a.core.lease.failing)
    a.feed(on.SwitchoverAsked(None, "operator"))
    stage.isolate(a)
    term = a.core.term
    require(term is not None and term.handover is not None, "schedule", "no handover began")
    stage.until(lambda: term is not None and a.now > term.authority_ends())
    group.database.fail_over(2)
    group.database.unreachable.discard("a")
    stage.until(lambda: a.core.lease.regressed)
    stage.heal()


def a_reader_sleeps_through_an_acquisition_and_its_loss(stage: Stage) -> None:
    """RULES.md#r5, RULES.md#i1. 1. b has asked for the row and is stopped. 2. a is started again,
    acquires again and dies. 3. The database fails over without that acquisition. 4. b continues
    with the old answer: the row is as b read it, and b must not acquire from it."""
    group, a, b = stage.group, stage.a, stage.b
    group.restart_within = 0.1
    a.kill(query_process_dies=False)
    stage.until(lambda: b.core.lease.sent_at is not None)
    b.pause(60)
    stage.until(lambda: a.alive and a.core.epoch == 2 and stage.is_active(a)())
    group.restart_within = 30.0
    a.kill(query_process_dies=False)
    before = next(n for n, row in enumerate(group.facts.branch) if row.epoch == 2)
    group.database.fail_over(len(group.facts.branch) - before)
    b.resume(b.processes)
    stage.wait(3)
    require(b.truth.role is not Role.ACTIVE, "R5", "b acquired an epoch that was another's")
    stage.heal()


def a_paused_holder_does_not_trim_by_old_revisions(stage: Stage) -> None:
    """RULES.md#r29. 1. a may trim up to its oldest revision, and is stopped. 2. b acquires and
    takes snapshots until none is left that joins a's journal. 3. a continues, and does
    not know of its successor: it must not trim by its old list of revisions."""
    group, a, b = stage.group, stage.a, stage.b

    def may_trim() -> bool:
        a.feed(on.SnapshotAsked())
        kept = a.core.retention.oldest_revision
        return kept > a.core.journal.base.sequence

    stage.until(may_trim)
    a.pause(60)
    stage.until(stage.is_active(b))

    def are_gone() -> bool:
        b.feed(on.SnapshotAsked())
        return not any(a.core.journal.has(one.place.position) for one in group.archive.visible)

    stage.until(are_gone)
    a.resume(a.processes)
    stage.heal()


def a_stopped_holder_does_not_count_its_member_as_silent(stage: Stage) -> None:
    """RULES.md#r13. 1. a is stopped for longer than sync_timeout and less than a ttl; the link
    breaks. 2. When a continues, b seems silent only because a was stopped: b gets its time to
    reconnect."""
    stage.isolate(stage.b, database=False)
    stage.wait(0.1)
    stage.a.pause(2.0)
    stage.wait(1.9)
    stage.group.network.unblock()
    stage.wait(0.1)
    removals = stage.group.counters["in-sync removals"]
    stage.wait(1.0)
    require(stage.group.counters["in-sync removals"] == removals, "R13", "b was removed")
    stage.heal()


def a_member_falls_behind_its_removal(stage: Stage) -> None:
    """RULES.md#r9. b receives nothing; a's commits wait until the row is without b, and continue
    then."""
    group = stage.group
    stage.isolate(stage.b)
    stage.wait(0.8)
    acks = group.counters["acks"]
    stage.until(lambda: len(stage.in_sync) == 1)
    stage.until(lambda: group.counters["acks"] > acks)
    stage.heal()


def a_late_follow_answers_an_earlier_probe_reply(stage: Stage) -> None:
    """RULES.md#i14, RULES.md#i8. 1. b was not linked; a sends it a Follow behind its last record,
    and this message arrives twice, the second time late. 2. b appends records, which a counts, and
    is started again. 3. The late message arrives: b must neither truncate its newer records nor
    take its journal for that of another history."""
    group = stage.group
    stage.isolate(stage.b, database=False)
    stage.until(lambda: len(stage.in_sync) == 1)
    stage.wait(1.0)
    had = len(stage.b.disk.records)
    group.network.unblock()
    stage.until(lambda: stage.b.disk.durable > had)
    stage.isolate(stage.b, database=False)
    words = (what for _, who, what in group.transcript if who == "b")
    late = [
        w for w in words if isinstance(w, on.PeerMessage) and isinstance(w.message, say.Follow)
    ][-1]
    require(len(stage.in_sync) == 1, "schedule", "b was in sync again too early")
    stage.b.kill(query_process_dies=False)
    stage.b.start()
    stage.wait(0.5)
    stage.b.feed(late)
    require(stage.b.alive, "I14", "b ended over a word of before")
    stage.heal()


def an_operator_gives_up_what_the_other_has(stage: Stage) -> None:
    """RULES.md#r26. 1. b is cut off and leaves the row; a acks and publishes alone, and is lost. 2.
    An operator makes sure that a is off and forces b. 3. b continues after the batches that a
    published. 4. a returns: it sets aside its surplus records, and follows."""
    group = stage.group
    stage.isolate(stage.b, database=False)
    stage.until(lambda: len(stage.in_sync) == 1)
    published = {key: ledger.batch for key, ledger in group.around.ledgers.items()}
    stage.until(lambda: all(group.around.ledgers[key].batch > published[key] for key in published))
    group.restart_within = 0.1
    force(group)
    group.network.unblock()
    stage.until(stage.is_active(stage.b))
    require(group.counters["records given up"] > 0, "schedule", "there was nothing to give up")
    stage.until(lambda: group.counters["journals set aside"] > 0)
    stage.heal()


def a_pause_gives_a_lost_row_the_version_of_a_release(stage: Stage) -> None:
    """RULES.md#r5, RULES.md#r15. 1. a hands over to b, which does not reach the database. 2. The
    database fails over without the release, and a pause gives the row the release's version. 3. It
    names a, whose epoch is over: if a renewed it, no node could acquire and none would act, for
    ever."""
    group = stage.group
    stage.until(lambda: stage.a.core.why_no_switchover(None) is None)
    group.database.unreachable.add("b")
    stage.a.feed(on.SwitchoverAsked(None, "operator"))
    stage.until(lambda: group.around.table.row is not None and not group.around.table.row.holder)
    stage.until(lambda: stage.a.truth.role is Role.JOINING)
    version = group.facts.branch[-1].version
    group.database.fail_over(1)
    stage.pause_and_resume_up_to(version)
    stage.wait(2)
    stage.heal()


def a_pause_gives_a_lost_row_the_version_of_a_removal(stage: Stage) -> None:
    """RULES.md#r5. 1. a removes b and acks alone. 2. The database fails over without the removal,
    and a pause gives the lost row its version. 3. a reads a row of its own that lists b again: it
    must neither end itself nor take b for a member."""
    group = stage.group
    stage.isolate(stage.b, database=False)
    stage.until(lambda: len(stage.in_sync) == 1)
    acks = group.counters["acks"]
    stage.until(lambda: group.counters["acks"] > acks)
    listed = max(n for n, row in enumerate(group.facts.branch) if len(row.in_sync) == 2)
    version = group.facts.branch[-1].version
    group.database.unreachable.add("a")  # so that it reads before it writes
    stage.wait(1.2)
    group.database.fail_over(len(group.facts.branch) - listed - 1)
    stage.pause_and_resume_up_to(version)
    group.database.unreachable.discard("a")
    stage.wait(3)
    require(stage.a.processes == 1, "schedule", "a had to be started again")
    stage.heal()


def a_member_of_an_unanswered_write_acquires_and_that_is_lost(stage: Stage) -> None:
    """RULES.md#r1, RULES.md#r5. 1. a is alone and lists b again; that takes effect, and a gets
    no answer. 2. a is stopped, b acquires. 3. The database fails over without b's acquisition. 4. a
    finds its own row, which lists b: it was not alone, so it must not write the row again under b's
    epoch."""
    group = stage.group
    stage.isolate(stage.b, database=False)
    stage.until(lambda: len(stage.in_sync) == 1)
    group.database.loses_replies = 1.0
    group.network.unblock()
    stage.until(lambda: len(stage.in_sync) == 2)
    stage.a.pause(30)
    group.database.loses_replies = 0.0
    stage.until(stage.is_active(stage.b))
    before = next(n for n, row in enumerate(group.facts.branch) if row.epoch == 2)
    group.database.fail_over(len(group.facts.branch) - before)
    stage.isolate(stage.b)
    stage.a.resume(stage.a.processes)
    stage.wait(6)
    stage.heal()


def a_call_of_the_former_holder_lands_late(stage: Stage) -> None:
    """RULES.md#r24, RULES.md#i7. 1. a's calls to the sinks take seconds. 2. a is asked to switch
    over, b claims the ledgers. 3. a's calls land: the ledgers refuse them, though a was allowed
    to send them."""
    group = stage.group
    stage.until(lambda: stage.a.core.why_no_switchover(None) is None)
    group.sink_slow = 1.0
    stage.wait(1.0)
    stage.a.feed(on.SwitchoverAsked(None, "operator"))
    group.sink_slow = 0.0
    stage.until(stage.is_active(stage.b))
    stage.until(lambda: group.counters["fenced publishers"] > 0)
    stage.heal()


def the_query_process_dies_before_the_member_has_its_batch(stage: Stage) -> None:
    """RULES.md#r22. 1. a's query process dies in the middle of a batch. 2. b has not finished that
    batch either, and does a moment later. 3. b takes over then, long before a's Spark runs
    again."""
    group, a = stage.group, stage.a
    group.batch_max, a.spark_starts_within = 1.0, (15.0, 15.0)

    def only_begun() -> bool:
        in_flight = a.core.deployment.in_flight()
        return bool(in_flight) and not stage.b.core.deployment.is_past(in_flight)

    stage.until(only_begun)
    a.kill_spark()
    waits = a.core.term is not None and a.core.term.handover is None
    require(waits, "R22", "a hands over to who lacks the batch")
    stage.until(stage.is_active(stage.b), within=5.0)
    stage.wait(15)
    stage.heal()


def a_batch_of_a_warm_query_kills_spark_everywhere(stage: Stage) -> None:
    """RULES.md#r22. 1. A batch of the query that only the active runs kills a's Spark: b takes
    over, long before a's Spark runs again. 2. The batch kills b's Spark: a takes over. 3. It kills
    a's Spark again: a keeps the lease, since b would only give it back."""
    group, a, b = stage.group, stage.a, stage.b
    group.unfinished.add("delays")
    a.spark_starts_within = b.spark_starts_within = (15.0, 15.0)
    stage.until(lambda: "delays" in a.core.deployment.in_flight())
    number = a.core.deployment.in_flight()["delays"]

    def kill_spark(active: SimNode) -> None:
        stage.until(lambda: active.core.deployment.in_flight() == {"delays": number})
        stage.until(lambda: active.core.why_no_switchover(None) is None)
        active.kill_spark()

    for active, other in ((a, b), (b, a)):
        kill_spark(active)
        stage.until(stage.is_active(other), within=5.0)
    kill_spark(a)
    stage.wait(5)
    require(stage.is_active(a)(), "R22", "the lease moves with each death")
    group.unfinished.clear()
    a.kill_spark()
    stage.heal()


def a_holder_stops_over_a_row_that_lost_an_acquisition(stage: Stage) -> None:
    """RULES.md#r5, RULES.md#i1. 1. a is cut off, b acquires and acts. 2. The database fails over
    without that, and b does not reach it yet. 3. a reads its own row, past its authority, and is
    stopped. If that was released, a's next process would acquire the epoch that is b's."""
    group, a = stage.group, stage.a
    stage.isolate(a)
    stage.until(stage.is_active(stage.b))
    before = next(n for n, row in enumerate(group.facts.branch) if row.epoch == 2)
    group.database.fail_over(len(group.facts.branch) - before)
    group.database.unreachable.add("b")
    group.database.unreachable.discard("a")
    stage.until(lambda: a.core.lease.database_failed_over)
    a.feed(on.StopAsked())
    stage.until(lambda: a.alive and a.processes == 2)
    stage.wait(6)
    require(not stage.is_active(a)(), "R5", "a acquired what b had")
    stage.heal()


def a_member_that_stops_leaves_the_row_first(stage: Stage) -> None:
    """RULES.md#r9. The passive acks until the row lists the active alone, so that no ack of a
    producer waits for it."""
    began = stage.group.now
    stage.b.feed(on.StopAsked())
    stage.until(lambda: not stage.b.alive)
    require(stage.listed == {"a"}, "R9", "b has ended, and commits wait for it")
    require(stage.group.now - began < PEERS.sync_timeout, "R9", "b waited in vain")
    stage.heal()


def a_member_stops_without_the_database(stage: Stage) -> None:
    """RULES.md#r9. No row can be written, so the passive ends while the row still lists it."""
    stage.group.database.up = False
    stage.b.feed(on.StopAsked())
    stage.until(lambda: not stage.b.alive, within=2 * PEERS.sync_timeout)
    stage.heal()


def a_release_and_what_it_allowed_are_lost(stage: Stage) -> None:
    """RULES.md#r5, RULES.md#r3. 1. a releases to b and gets no answer. 2. b acquires at once. 3.
    The database fails over without both. 4. a, whose earlier renewals still seem valid, must not
    renew."""
    group, table = stage.group, stage.group.around.table
    stage.until(lambda: stage.a.core.why_no_switchover(None) is None)
    released = len(group.facts.branch)
    group.database.loses_replies = 1.0
    stage.a.feed(on.SwitchoverAsked(None, "operator"))
    stage.until(lambda: table.row is not None and table.row.holder is None)
    released = len(group.facts.branch) - 1
    group.database.loses_replies = 0.0
    group.network.block("a", "b")
    group.network.block("b", "a")
    stage.until(lambda: table.row is not None and table.row.epoch == 2)
    group.database.fail_over(len(group.facts.branch) - released)
    group.database.unreachable.add("b")
    stage.wait(6)
    stage.heal()


def the_database_answers_reads_and_hangs_on_writes(stage: Stage) -> None:
    """RULES.md#i12, RULES.md#r16. 1. Renewals get no answer, and the reads between them do. 2. b
    promises for as long as that lasts, and no node is suspended."""
    group, a = stage.group, stage.a
    group.database.hangs = True
    stage.wait(20)
    require(not group.counters["suspensions"], "I12", "a was suspended though b could promise")
    group.database.hangs = False
    stage.wait(3)
    require(a.processes == 1 and stage.is_active(a)(), "I12", "a did not stay the active")
    stage.heal()


def a_holder_comes_back_to_a_database_that_lost_nothing(stage: Stage) -> None:
    """RULES.md#r15. 1. a is stopped for longer than its authority, and the database fails over
    meanwhile. 2. b has not acquired: its promise shows a that no node has, and a continues."""
    group, a = stage.group, stage.a
    group.database.unreachable.add("b")
    a.pause(5)
    stage.wait(4)
    group.database.fail_over(0)
    group.database.unreachable.clear()
    a.resume(a.processes)
    stage.until(lambda: a.core.lease.database_failed_over)
    stage.until(a.core.may_act, within=4.0)
    require(a.processes == 1, "R15", "a had to be started again")
    stage.heal()


def an_acquisition_without_an_answer_meets_a_failover(stage: Stage) -> None:
    """RULES.md#r1, RULES.md#r5. 1. a is lost; b acquires and gets no answer. 2. The database fails
    over and keeps that. 3. b finds its own row there, from which only b could acquire, and writes
    it."""
    group, table = stage.group, stage.group.around.table
    group.restart_within = 60
    stage.a.kill(query_process_dies=True)
    stage.until(lambda: stage.b.core.lease.high_water.tried[0] == 2)
    group.database.loses_replies = 1.0
    stage.until(lambda: table.row is not None and table.row.epoch == 2)
    group.database.fail_over(0)
    group.database.loses_replies = 0.0
    stage.until(stage.is_active(stage.b), within=5.0)
    stage.heal()


def a_slow_backup_delays_no_ack(stage: Stage) -> None:
    """RULES.md#r37. 1. {a, b} are in sync, and the disk of the backup c is slow. 2. a commits what
    c does not have yet, and does not list c."""
    committed, c = stage.group.facts.committed, stage.c
    require(c.truth.role is Role.BACKUP and c.spark is None, "R37", "c is no idle backup")
    c.fsync_max = 1.0
    stage.until(lambda: len(committed) > c.disk.durable + 2)
    require(stage.listed == {"a", "b"}, "R37", f"{stage.listed} are in sync")
    stage.heal()


def the_backup_is_listed_while_the_member_is_away(stage: Stage) -> None:
    """RULES.md#r37, RULES.md#i3. 1. b is cut off, and the backup c is listed. 2. a fails. 3. c
    takes over by itself, with every acked event. 4. a and b are back: both join the active c."""
    group = stage.group
    stage.isolate(stage.b)
    stage.until(lambda: stage.listed == {"a", "c"})
    acks = group.counters["acks"]
    stage.until(lambda: group.counters["acks"] > acks + 3)
    group.restart_within = 60
    stage.a.kill(query_process_dies=True)
    stage.until(stage.is_active(stage.c))
    require(stage.c.spark is not None, "R37", "the active c has no Spark")
    stage.a.start()
    stage.reconnect(stage.b)
    stage.until(lambda: stage.listed == {"a", "b", "c"})
    stage.until(lambda: stage.c.core.why_no_switchover(None) is None)
    stage.c.feed(on.SwitchoverAsked(None, "operator"))
    stage.until(lambda: stage.c.truth.role is Role.BACKUP)
    require(stage.c.spark is None, "R37", "Spark outlives the switchover")
    stage.heal()


def the_backup_stays_the_second_disk_in_the_next_epoch(stage: Stage) -> None:
    """RULES.md#r37. 1. b is cut off, and the backup c is listed. 2. a fails, and c takes over. 3. a
    is back and gets the lease from c: it lists c at once, since b is still away."""
    group = stage.group
    stage.isolate(stage.b)
    stage.until(lambda: stage.listed == {"a", "c"})
    group.restart_within = 60
    stage.a.kill(query_process_dies=True)
    stage.until(stage.is_active(stage.c))
    stage.a.start()
    stage.until(lambda: stage.listed == {"a", "c"})
    stage.until(lambda: stage.c.core.why_no_switchover(None) is None)
    stage.c.feed(on.SwitchoverAsked(None, "operator"))
    stage.until(stage.is_active(stage.a))
    since = group.now
    stage.until(lambda: stage.listed == {"a", "c"})
    require(group.now - since < 1, "R37", f"one disk for {group.now - since} s")
    stage.heal()


def two_disks_stay_the_rule_when_the_member_returns(stage: Stage) -> None:
    """RULES.md#r37. 1. b is cut off, and the backup c is listed. 2. b is back: each row lists two
    members or more, until {a, b} are in sync again."""
    stage.isolate(stage.b)
    stage.until(lambda: stage.listed == {"a", "c"})
    rows = len(stage.group.facts.branch)
    stage.reconnect(stage.b)
    stage.until(lambda: stage.listed == {"a", "b"})
    sizes = [len(row.in_sync) for row in stage.group.facts.branch[rows:]]
    require(min(sizes) == 2, "R37", f"rows list {sizes} members")
    stage.until(lambda: stage.c.truth.role is Role.BACKUP)
    stage.heal()


def a_backup_that_is_not_listed_waits_for_an_operator(stage: Stage) -> None:
    """RULES.md#r37, RULES.md#i4. 1. {a, b} are in sync, and both fail. 2. The backup c is not
    listed, so it does not take over. 3. An operator forces a failover to c."""
    group, c = stage.group, stage.c
    group.restart_within = 60
    for node in (stage.a, stage.b):
        node.kill(query_process_dies=True)
    stage.wait(8)
    require(c.truth.role is Role.BACKUP, "I4", "c took over by itself")
    refusal = c.core.why_no_forced_failover(())
    require(refusal is not None and "--confirm-fenced" in refusal, "R26", f"not: {refusal}")
    c.feed(on.FailoverForced("operator", ("a", "b")))
    stage.until(stage.is_active(c))
    stage.a.start()
    stage.b.start()
    stage.heal()


def a_deployment_hands_no_lease_to_the_backup(stage: Stage) -> None:
    """RULES.md#r37, RULES.md#r36. 1. b is cut off, and the backup c is listed. 2. An application is
    deployed. 3. a hands the lease to its own next process, although c restarts first."""
    a, c = stage.a, stage.c
    stage.isolate(stage.b)
    stage.until(lambda: stage.listed == {"a", "c"})
    a.feed(on.DeployAsked("archive 1", "application", "operator", 0, ""))
    stage.until(lambda: a.processes == 2 and stage.is_active(a)())
    stage.until(lambda: stage.listed == {"a", "c"})
    require(not c.truth.epochs, "R37", "c has held the lease")
    stage.heal()


WARM_SCHEDULES = (a_batch_of_a_warm_query_kills_spark_everywhere,)
BACKUP_SCHEDULES = (
    a_slow_backup_delays_no_ack,
    the_backup_is_listed_while_the_member_is_away,
    the_backup_stays_the_second_disk_in_the_next_epoch,
    two_disks_stay_the_rule_when_the_member_returns,
    a_backup_that_is_not_listed_waits_for_an_operator,
    a_deployment_hands_no_lease_to_the_backup,
)
SCHEDULES: tuple[Callable[[Stage], None], ...] = (
    *WARM_SCHEDULES,
    *BACKUP_SCHEDULES,
    a_member_is_listed_by_an_unanswered_write,
    a_holder_stops_over_a_row_that_lost_an_acquisition,
    a_release_and_what_it_allowed_are_lost,
    the_database_answers_reads_and_hangs_on_writes,
    a_holder_comes_back_to_a_database_that_lost_nothing,
    an_acquisition_without_an_answer_meets_a_failover,
    an_acquisition_is_lost_while_the_former_holder_sleeps,
    an_acquisition_is_lost_while_the_former_holder_is_cut_off,
    a_higher_epoch_is_read_after_a_failover,
    a_member_comes_back_with_another_journal_at_once,
    a_disk_goes_back_after_its_member_was_removed,
    a_disk_goes_back_while_the_row_lists_its_member,
    a_disk_goes_back_and_the_active_dies,
    a_disk_with_a_longer_discarded_tail_comes_back,
    a_disk_goes_back_during_an_outage_of_the_database,
    a_disk_goes_back_before_the_active_has_its_records,
    both_disks_go_back,
    a_sole_member_past_safe_until_lists_another,
    a_row_regresses_to_one_with_a_removed_member,
    a_row_regresses_and_its_holder_dies,
    a_truncation_removes_a_published_record,
    a_switchover_while_an_operator_pauses,
    a_late_removal_and_acks_alone,
    a_member_without_its_disk_while_the_active_sleeps,
    the_database_is_unreachable_and_promises_hold,
    a_promise_is_forgotten_by_a_restart,
    an_acquisition_is_forgotten_by_a_restart,
    a_switchover_meets_a_row_that_lost_writes,
    a_reader_sleeps_through_an_acquisition_and_its_loss,
    a_paused_holder_does_not_trim_by_old_revisions,
    a_stopped_holder_does_not_count_its_member_as_silent,
    a_member_that_stops_leaves_the_row_first,
    a_member_stops_without_the_database,
    a_member_falls_behind_its_removal,
    a_late_follow_answers_an_earlier_probe_reply,
    a_pause_gives_a_lost_row_the_version_of_a_release,
    a_pause_gives_a_lost_row_the_version_of_a_removal,
    a_member_of_an_unanswered_write_acquires_and_that_is_lost,
    an_operator_gives_up_what_the_other_has,
    a_call_of_the_former_holder_lands_late,
    the_query_process_dies_before_the_member_has_its_batch,
)


def stage_for(schedule: Callable[[Stage], None], engine: Any = ha_engine.core) -> Stage:
    """Return a stage with the queries that ``schedule`` needs."""
    variant = Variant.PLAIN
    if schedule in WARM_SCHEDULES:
        variant = Variant.WARM
    elif schedule in BACKUP_SCHEDULES:
        variant = Variant.BACKUP
    return Stage(engine, variant=variant)
