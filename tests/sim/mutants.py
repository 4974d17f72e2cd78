"""Breakages of what two nodes do together, each with a seed whose history finds it out.

``python -m tests.sim.mutants`` tells which finds out which.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from tests.core.mutants import Mutant, load
from tests.sim import schedules
from tests.sim.history import Failed, play
from tests.sim.schedules import Stage

TRIED_MAX = 150


@dataclass(frozen=True, slots=True)
class Hunted:
    seed: int
    mutant: Mutant


@dataclass(frozen=True, slots=True)
class Told:
    schedule: Callable[[Stage], None]
    mutant: Mutant


def _hunted(seed: int, rule: str, module: str, old: str, new: str) -> Hunted:
    return Hunted(seed, Mutant(rule, module, old, new))


HUNTED = (
    _hunted(1, "I3", "leading", "(in_sync | self.joining) - {self.me}", "self.joining - {self.me}"),
    _hunted(3, "I3", "leading", " if self.match_of(m) >= committed)", ")"),
    _hunted(93, "P8", "leading", "if m == self.me or not self._is_lost(m, now))", ")"),
    _hunted(137, "R1", "lease", "self.row, self._in_flight, *self._un", "self.row, *self._un"),
    _hunted(
        1,
        "I3",
        "following",
        "journal.durable,\n            self.room",
        "journal.last.sequence,\n            self.room",
    ),
    _hunted(
        1, "R12", "following", "min(self._committed, self._journal.durable)", "self._committed"
    ),
    _hunted(
        1,
        "I8",
        "progress",
        "Position(newest.epoch, min(ends))",
        "Position(newest.epoch, max(ends))",
    ),
    _hunted(5, "I8", "progress", "newest = shared[-1]", "newest = shared[0]"),
    _hunted(2, "I8", "progress", "later[0] - 1 if later", "later[0] if later"),
    _hunted(1, "I8", "following", " or message.previous.sequence > last.sequence:", ":"),
    _hunted(3, "I8", "following", "if r.position.sequence > last.sequence)", ")"),
    _hunted(2, "I8", "following", "if message.match != self._journal.last or", "if"),
    _hunted(
        12, "R16", "lease", "+ self.timing.ttl, self._promised_until)", "+ self.timing.ttl, 0)"
    ),
    _hunted(46, "R16", "leading", "in others) + ttl - margin", "in others) + 2 * ttl"),
    _hunted(24, "R5", "lease", "return self.high_water.above(row) or", "return"),
    _hunted(
        7,
        "R3",
        "tenure",
        "self.leading.match_of(heir) == journal.last.sequence == journal.committed",
        "True",
    ),
    _hunted(
        5,
        "R3",
        "lease",
        "in_sync=(self.member,),\n            advertise",
        "in_sync=self.row.in_sync,\n            advertise",
    ),
    _hunted(
        5,
        "R25",
        "marks",
        "        self.admitted = max(self.admitted, floor)\n        self._begin",
        "        self._begin",
    ),
)
"""Breakages that the history of a seed finds out."""


def _told(schedule: Callable[[Stage], None], rule: str, module: str, old: str, new: str) -> Told:
    return Told(schedule, Mutant(rule, module, old, new))


TOLD = (
    _told(
        schedules.a_holder_stops_over_a_row_that_lost_an_acquisition,
        "R5",
        "life",
        " or lease.is_doubtful(self.now, self.authority_ends):",
        ":",
    ),
    _told(
        schedules.a_release_and_what_it_allowed_are_lost,
        "R3",
        "life",
        "if self.lessee.releasing:  #",
        "if False:  #",
    ),
    _told(
        schedules.the_database_answers_reads_and_hangs_on_writes,
        "I12",
        "lease",
        "self.failing = self.mine and self._write_failed",
        "self.failing = False",
    ),
    _told(
        schedules.a_holder_comes_back_to_a_database_that_lost_nothing,
        "R15",
        "tenure",
        "(lease.failing or now >= lease.safe_until)",
        "lease.failing",
    ),
    _told(
        schedules.an_acquisition_without_an_answer_meets_a_failover,
        "R1",
        "lease",
        "now >= authority_ends and not sole",
        "now >= authority_ends",
    ),
    _told(
        schedules.the_query_process_dies_before_the_member_has_its_batch,
        "R22",
        "tenure",
        "if heir is not None or self._deployment.is_past(breakdown.in_flight):",
        "if True:",
    ),
    _told(
        schedules.the_query_process_dies_before_the_member_has_its_batch,
        "R22",
        "leading",
        "if all(has.get(query, 0) >= number for query, number in batches.items()):",
        "if True:",
    ),
    _told(
        schedules.a_higher_epoch_is_read_behind_a_failover,
        "R14",
        "lessee",
        "if row is not None and row.epoch > epoch:",
        "if False:",
    ),
    _told(
        schedules.an_acquisition_is_lost_while_the_former_holder_sleeps,
        "R5",
        "lease",
        "now >= authority_ends and not sole",
        "False",
    ),
    _told(
        schedules.an_acquisition_is_lost_while_the_former_holder_is_cut_off,
        "R5",
        "lease",
        "return late or self.is_doubtful(now, authority_ends)",
        "return late",
    ),
    _told(
        schedules.a_member_is_taken_in_without_an_answer,
        "R15",
        "lease",
        "self.held is not None and self.possible == {self.member}",
        "self.row.in_sync == (self.member,)",
    ),
    _told(
        schedules.a_member_comes_back_with_another_journal_at_once,
        "I3",
        "leading",
        "return 0 if peer is None else peer.match_of(member.journal_id)",
        "return peer.match if peer is not None and peer.member == member else 0",
    ),
    _told(
        schedules.alone_and_past_safe_until_it_takes_in_a_member,
        "I2",
        "tenure",
        "if now < self._lease.safe_until:",
        "if True:",
    ),
    _told(
        schedules.a_row_regresses_to_one_with_a_removed_member,
        "R5",
        "invariants",
        "if core.tenure is None or core.lease.regressed:",
        "if core.tenure is None:",
    ),
    _told(
        schedules.a_row_regresses_and_its_holder_dies,
        "R5",
        "lease",
        "(self.moved and not self._is_as_written)",
        "False",
    ),
    _told(
        schedules.a_handover_while_an_operator_pauses,
        "R7",
        "tenure",
        "heir is None or paused or",
        "heir is None or",
    ),
    _told(
        schedules.a_late_removal_and_acks_alone,
        "R1",
        "lease",
        "self._in_flight, *self._unresolved)\n        if",
        "self._in_flight)\n        if",
    ),
    _told(
        schedules.a_member_without_its_disk_while_the_active_sleeps,
        "R8",
        "lease",
        " or self.member not in row.in_sync:",
        " or self.member.node not in [m.node for m in row.in_sync]:",
    ),
    _told(
        schedules.the_database_is_away_and_promises_hold,
        "I12",
        "tenure",
        "asks = (lease.failing or now >= lease.safe_until) and not lease.alone",
        "asks = False",
    ),
    _told(
        schedules.an_acquisition_is_forgotten_by_a_restart,
        "R16",
        "lease",
        " or self.high_water.tried[0] > epoch:",
        ":",
    ),
    _told(
        schedules.a_handover_meets_a_row_that_lost_writes,
        "R5",
        "tenure",
        "holds = lease.mine and not lease.regressed and not doubtful",
        "holds = lease.mine",
    ),
    _told(
        schedules.a_holder_sleeps_while_another_keeps_other_revisions,
        "R29",
        "core",
        "if tenure is None or tenure.may_act(self.now):",
        "if True:",
    ),
    _told(
        schedules.a_promise_is_forgotten_by_a_restart,
        "R4",
        "lease",
        "max(self.still_since + self.timing.ttl, self._promised_until)",
        "self._promised_until",
    ),
    _told(
        schedules.a_stopped_follower_does_not_think_its_leader_silent,
        "R13",
        "tenure",
        "leading.restart_timers(now)",
        "pass",
    ),
    _told(
        schedules.a_late_word_to_follow_answers_an_earlier_standing,
        "I14",
        "following",
        "if message.stood == self._journal.last:",
        "if True:",
    ),
    _told(
        schedules.an_operator_gives_up_what_the_other_has,
        "R26",
        "leading",
        "journal.forced_behind(match),",
        "False,",
    ),
    _told(
        schedules.an_operator_gives_up_what_the_other_has,
        "R26",
        "following",
        "if self.giving_up and incarnation is not None:",
        "if False:",
    ),
    _told(
        schedules.an_operator_gives_up_what_the_other_has,
        "R26",
        "marks",
        "if self.last.number < self._given_up_through:",
        "if False:",
    ),
    _told(
        schedules.a_pause_gives_a_lost_row_the_version_of_a_release,
        "R15",
        "lease",
        " and row.epoch > self.ended",
        "",
    ),
    _told(
        schedules.a_pause_gives_a_lost_row_the_version_of_a_removal,
        "R5",
        "lease",
        "(self.moved and not self._is_as_written)",
        "(self.moved and not self.mine)",
    ),
    _told(
        schedules.a_member_of_an_unanswered_write_acquires_and_that_is_lost,
        "R5",
        "lease",
        "if row is not None and not self.moved:",
        "if row is not None:",
    ),
    _told(
        schedules.a_member_falls_behind_its_removal,
        "R9",
        "leading",
        "if m == self.me or not self._is_lost(m, now))",
        ")",
    ),
)
"""Breakages that the schedule of their history finds out."""


def killed_by(mutant: Mutant, seed: int) -> str | None:
    """What the history of ``seed`` finds, None when it notices nothing."""
    try:
        play(seed, load(mutant))
    except Failed as failed:
        return str(failed).splitlines()[0]
    return None


def found_out(hunted: Hunted) -> str | None:
    """By its seed; where a change of the core or the simulator made another history of that, by
    the first seed that does."""
    seeds = (hunted.seed, *range(1, TRIED_MAX))
    return next(filter(None, (killed_by(hunted.mutant, seed) for seed in seeds)), None)


if __name__ == "__main__":
    for one in HUNTED:
        sys.stdout.write(f"{one.mutant.name}\n    {found_out(one)}\n")
        sys.stdout.flush()
