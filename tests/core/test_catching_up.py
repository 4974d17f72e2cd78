"""A slow member that is behind with its batches catches up, and output continues meanwhile."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from ha_engine.core.marks import MarkLimits, QueryMarks
from ha_engine.core.messages import Ack
from ha_engine.core.pace import CATCH_UP_SECONDS, CATCH_UP_SECONDS_MAX, PAUSE_IN_BATCHES
from ha_engine.core.progress import STUCK_AFTER_SECONDS, PeerTiming
from ha_engine.core.replication import RETAIN_SECONDS, Replication
from ha_engine.types import ORIGIN, Events, Mark, Member, Position

ME, OTHER = Member("a", "a-1"), Member("b", "b-1")
LIMITS = MarkLimits(1000, 0.0, 5.0, 100, 1 << 30)
STEP = 0.05


class Pair:
    """The active's marks of one query; each step brings events, and Spark is quick."""

    def __init__(self, backlog: int, batch_seconds: float = 0.0) -> None:
        self.now, self.sequence, self.come_to = 0.0, 0, 0.0
        self.batch_seconds, self.warm = batch_seconds, False
        self.marks = QueryMarks("q", frozenset({"s"}), ("sink",), LIMITS)
        self.replication = Replication(ME, 1, PeerTiming(0.2, 2.0), 0.0, ["b"], 0)
        self.replication.peers["b"].journal_id = "b-1"
        self.at: list[float] = []
        while self.marks.last.number < backlog:
            self.step(None)

    def step(self, slowest: int | None, rows: int = 1, *, starting: bool = False) -> None:
        self.now += STEP
        self.sequence += 1
        self.marks.apply_events(self.sequence, Events("s", rows, 0))
        if not self.at or self.now >= self.at[-1] + self.batch_seconds:
            self.marks.asked(self.now, self.marks.last.number)
        mark = self.marks.plan(self.now, self.sequence, slowest, starting=starting)
        if mark is not None:
            self._cut(mark)

    def _cut(self, mark: Mark) -> None:
        self.sequence += 1
        self.marks.apply_mark(self.sequence, mark)
        self.marks.note_admitted(mark.number, 1, 1)
        self.marks.outbox.trim(mark.number)
        self.at.append(self.now)

    def step_beside(self, seconds_a_batch: float, rows: int = 1) -> None:
        """The member runs the planned batches, one after the other."""
        last = self.marks.last.number
        self.come_to = min(last, self.come_to + STEP / seconds_a_batch)
        batches = (("q", int(self.come_to)),)
        self.warm = self.lag <= 1
        ack = Ack(1, "b-1", self.sequence, True, self.warm, batches)
        self.replication.acked(self.now, "b", ack)
        self.replication.note_behind(self.now, (ME, OTHER), {"q": last})
        self.step(self.replication.slowest(self.now, (ME, OTHER), "q", last), rows)

    def step_beside_a_start(self) -> None:
        self.step(None, starting=self.replication.starting(self.now, (ME, OTHER), "q"))

    @property
    def lag(self) -> int:
        return self.marks.last.number - int(self.come_to)

    def gaps(self, since: float) -> list[float]:
        late = [at for at in self.at if at >= since]
        return [after - before for before, after in pairwise(late)]


@pytest.mark.parametrize("seconds_a_batch", [0.1, 0.5, 1.0, 3.0])
def test_member_sixty_batches_behind_catches_up(seconds_a_batch: float) -> None:
    pair = Pair(backlog=60)
    began = pair.now
    while not pair.warm and pair.now < began + 600:
        pair.step_beside(seconds_a_batch)
    assert pair.warm
    most = max(CATCH_UP_SECONDS[1], 2 * seconds_a_batch)
    assert max(pair.gaps(began)) <= most + 2 * STEP
    assert min(pair.gaps(began)[:-1]) >= CATCH_UP_SECONDS[0] - 2 * STEP


@pytest.mark.parametrize("seconds_a_batch", [6.0, 9.0])
def test_member_whose_batches_outlast_the_catch_up_pause_catches_up(seconds_a_batch: float) -> None:
    """Simulate both nodes on one host that has a third of the usual speed."""
    pair = Pair(backlog=20)
    began = pair.now
    while not pair.warm and pair.now < began + 600:
        pair.step_beside(seconds_a_batch)
    assert pair.warm
    assert max(pair.gaps(began)) <= 2 * seconds_a_batch + 2 * STEP


def test_output_keeps_coming_while_a_very_slow_member_catches_up() -> None:
    pair = Pair(backlog=60)
    began = pair.now
    while pair.now < began + 300:
        pair.step_beside(40.0)
    assert max(pair.gaps(began)) <= CATCH_UP_SECONDS_MAX + 2 * STEP


def test_output_is_as_quick_as_before_once_an_equally_fast_member_caught_up() -> None:
    pair = Pair(backlog=30, batch_seconds=0.5)
    while pair.lag > 1:
        pair.step_beside(0.5)
    level = pair.now
    for _ in range(400):
        pair.step_beside(0.5)
    assert pair.lag <= 2
    assert max(pair.gaps(level + 5)) <= pair.batch_seconds + 2 * STEP


def test_output_does_not_wait_for_a_member_that_caught_up() -> None:
    pair = Pair(backlog=10)
    pair.come_to = 10
    began = pair.now
    for _ in range(40):
        pair.step_beside(STEP / 2)
    assert max(pair.gaps(began)) <= 2 * STEP


def test_output_does_not_wait_for_a_member_whose_queries_make_no_progress() -> None:
    pair = Pair(backlog=60)
    began = pair.now
    while pair.now < began + STUCK_AFTER_SECONDS + 10:
        pair.step_beside(1e9)
    assert max(pair.gaps(began + STUCK_AFTER_SECONDS + 5)) <= 2 * STEP


def test_active_waits_only_for_those_queries_of_a_member_that_make_progress() -> None:
    replication = Replication(ME, 1, PeerTiming(0.2, 2.0), 0.0, ["b"], 0)
    replication.peers["b"].journal_id = "b-1"
    in_sync = (ME, OTHER)
    for second in range(int(STUCK_AFTER_SECONDS) + 2):
        replication.acked(second, "b", Ack(1, "b-1", 1, True, False, (("p", second), ("r", 1))))
    replication.note_behind(second, in_sync, {"p": second + 9, "r": second + 9})
    assert replication.slowest(second, in_sync, "p", second + 9) == second
    assert replication.slowest(second, in_sync, "r", second + 9) is None
    assert not replication.starting(second, in_sync, "q")


def test_query_of_a_member_counts_as_starting_after_its_process_died() -> None:
    replication = Replication(ME, 1, PeerTiming(0.2, 2.0), 0.0, ["b"], 0)
    replication.peers["b"].journal_id = "b-1"
    replication.acked(1.0, "b", Ack(1, "b-1", 1, True, False, (("q", 1),)))
    replication.acked(999.0, "b", Ack(1, "b-1", 1, True, False, ()))
    assert replication.starting(1000.0, (ME, OTHER), "q")


def test_commit_waits_for_a_member_only_once_it_is_near() -> None:
    replication = Replication(ME, 2, PeerTiming(0.2, 2.0), 0.0, ["b"], 1000)
    replication.peers["b"].follows(0.0, "b-1")
    replication.acked(0.1, "b", Ack(2, "b-1", 10, True, False))
    replication.choose_near(0.1)
    assert not replication.near
    replication.acked(0.2, "b", Ack(2, "b-1", 1000, True, False))
    replication.choose_near(0.2)
    assert replication.near == {OTHER}


def test_full_batch_is_cut_without_waiting_for_a_slow_member() -> None:
    pair = Pair(backlog=60)
    began = pair.now
    for _ in range(100):
        pair.step_beside(3.0, rows=LIMITS.max_events_per_batch)
    assert max(pair.gaps(began)) <= 2 * STEP


def test_active_pauses_for_a_bounded_time_while_the_queries_of_a_member_start() -> None:
    pair = Pair(backlog=10, batch_seconds=0.5)
    began = pair.now
    pair.replication.peers["b"].linked(began)
    while pair.now < began + STUCK_AFTER_SECONDS + 10:
        pair.step_beside_a_start()
    early = [gap for gap in pair.gaps(began + 1) if gap > 1][:-1]
    rest = PAUSE_IN_BATCHES * pair.batch_seconds
    assert early == pytest.approx([rest] * len(early), abs=(PAUSE_IN_BATCHES + 1) * STEP)
    assert len(early) >= STUCK_AFTER_SECONDS / rest - 4
    assert max(pair.gaps(began + STUCK_AFTER_SECONDS)) <= pair.batch_seconds + 2 * STEP


def test_active_retains_records_only_for_a_member_that_makes_progress() -> None:
    """RULES.md#r29: a member that dies at each start must not fill the disk of the active."""
    replication = Replication(ME, 1, PeerTiming(0.2, 2.0), 0.0, ["b"], 0)
    peer, now = replication.peers["b"], 0.0
    for _ in range(20):
        peer.replied(now, "b-1", Position(1, 7))
        peer.begins(now, 40)
        now += RETAIN_SECONDS / 10
    assert replication.retain_after(now, (ME,)) == math.inf
    peer.replied(now, "b-2", ORIGIN)
    peer.follows(now, "b-2")
    replication.acked(now, "b", Ack(1, "b-2", 50, True, False, ()))
    assert replication.retain_after(now + RETAIN_SECONDS - 1, (ME,)) == 50
    replication.restart_timers(now + RETAIN_SECONDS)
    assert replication.retain_after(now + RETAIN_SECONDS, (ME,)) == math.inf
