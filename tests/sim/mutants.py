"""Mutants of the cooperation of two nodes, each with a seed whose history detects it.

``python -m tests.sim.mutants`` prints which seed detects which mutant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.core.mutants import Mutant, load
from tests.sim import schedules
from tests.sim.history import Failed, play
from tests.sim.schedules import Stage
from tests.sim.variants import Variant

TRIED_MAX = 150


@dataclass(frozen=True, slots=True)
class Hunted:
    seed: int
    mutant: Mutant
    variant: Variant = Variant.PLAIN


@dataclass(frozen=True, slots=True)
class Scheduled:
    schedule: Callable[[Stage], None]
    mutant: Mutant


def _hunted(seed: int, rule: str, module: str, function: str, old: str, new: str) -> Hunted:
    return Hunted(seed, Mutant(rule, module, function, old, new))


def _hunted_warm(seed: int, module: str, function: str, old: str, new: str) -> Hunted:
    return Hunted(seed, Mutant("R33", module, function, old, new), Variant.WARM)


def _hunted_deployed(seed: int, module: str, function: str, old: str, new: str) -> Hunted:
    return Hunted(seed, Mutant("R36", module, function, old, new), Variant.DEPLOYED)


def _hunted_shadowed(seed: int, module: str, function: str, old: str, new: str) -> Hunted:
    return Hunted(seed, Mutant("R38", module, function, old, new), Variant.SHADOWED)


HUNTED = (
    _hunted_shadowed(
        6,
        "deployment",
        "Deployment._apply_application",
        "self.marks[version.query].continue_shadow(version.first)",
        "pass",
    ),
    _hunted_shadowed(
        5000066,
        "marks",
        "QueryMarks.continue_shadow",
        "self.admitted = max(self.admitted, first.number)",
        "pass",
    ),
    _hunted_shadowed(
        1,
        "shadow",
        "ShadowQuery.answer",
        "min(live.admitted, live.last.number)",
        "live.last.number",
    ),
    _hunted_shadowed(31, "versions", "Versions.apply", "self.adopting[name] = shadow", "pass"),
    _hunted_shadowed(48, "deployment", "Deployment.need", "self.shadow is None", "True"),
    _hunted_shadowed(6, "deployment", "Deployment._next_version", "promoted is not None", "False"),
    _hunted_deployed(
        1,
        "term",
        "Term._next_holder",
        "self._rollout.next_holder(now, lease.member, tuple(ready))",
        "None",
    ),
    _hunted_deployed(1, "base", "base_of", "versions.deployed", "None"),
    _hunted_deployed(
        1, "deployment", "Deployment.load_base", "self.versions.deployed = base.deployed", "pass"
    ),
    Hunted(
        3000102,
        Mutant("R36", "deployment", "Deployment.take_over", "self.lacks_deployment", "False"),
        Variant.BACKUP,
    ),
    _hunted_deployed(
        26,
        "replication",
        "Replication._is_lost",
        "peer is None or not self._fits(peer.name)",
        "peer is None",
    ),
    _hunted(
        61,
        "wake",
        "term",
        "Term.holder_wake_at",
        "ahead(now, self.authority_ends())",
        "math.inf",
    ),
    _hunted(
        4, "wake", "replication", "Replication.wake_at", "self.near != self._near(now)", "False"
    ),
    _hunted(
        37,
        "wake",
        "replication",
        "Replication.wake_at",
        "*(ahead(now, self._late_at(peer)) for peer in peers)",
        "",
    ),
    _hunted(1, "I3", "replication", "Replication.commit_limit", "in_sync | self.near", "self.near"),
    _hunted(3, "I3", "replication", "Replication.wanted", "self.acked_through(m) >= committed", ""),
    _hunted(
        91,
        "P8",
        "replication",
        "Replication.wanted",
        "m == self.me or not self._is_lost(m, now)",
        "",
    ),
    _hunted(
        64,
        "R1",
        "lease",
        "Lease.possible",
        "(self.own_row, self.row, self._in_flight, *self._unresolved)",
        "(self.own_row, self.row, *self._unresolved)",
    ),
    _hunted(
        1,
        "I3",
        "follower",
        "Follower._ack",
        "journal.durable",
        "journal.last.sequence",
    ),
    _hunted(
        1,
        "R12",
        "follower",
        "Follower.commit",
        "min(self._announced, self._journal.durable)",
        "self._announced",
    ),
    _hunted(
        1,
        "I8",
        "progress",
        "common_end",
        "min",
        "max",
    ),
    _hunted(2, "I8", "progress", "common_end", "-1", "0"),
    _hunted(3, "I8", "progress", "_end_of", "later[0] - 1", "later[0]"),
    _hunted(
        5,
        "I8",
        "follower",
        "Follower._new_records",
        "message.previous.sequence > last.sequence",
        "",
    ),
    _hunted(
        8, "I8", "follower", "Follower._new_records", "r.position.sequence > last.sequence", ""
    ),
    _hunted(
        3, "I8", "follower", "Follower._on_follow", "message.shared_end != self._journal.last", ""
    ),
    _hunted(
        4,
        "R16",
        "lease",
        "Lease.takeover_at",
        "max(self.unchanged_since + self.timing.ttl, self._promised_until)",
        "max(self.unchanged_since + self.timing.ttl, 0)",
    ),
    _hunted(
        41,
        "R16",
        "replication",
        "Replication.promised_until",
        "min((self._promised_at(member) for member in others)) + ttl - margin",
        "min((self._promised_at(member) for member in others)) + 2 * ttl",
    ),
    _hunted(11, "R5", "lease", "Lease.regressed", "self.high_water.above(row)", ""),
    _hunted(
        6,
        "R3",
        "term",
        "Term._is_level_with",
        "durable == journal.last.sequence == journal.committed",
        "True",
    ),
    _hunted(
        1,
        "R3",
        "lease",
        "Lease.acquired",
        "(self.member,)",
        "self.row.in_sync",
    ),
    _hunted(
        5,
        "R25",
        "marks",
        "QueryMarks.set_outbox_floor",
        "self.admitted = max(self.admitted, floor)",
        "",
    ),
    _hunted_warm(
        3,
        "marks",
        "QueryMarks.shared",
        "min(published, self.kept_after.number + bisect_right(self._sequences, end))",
        "self.kept_after.number + bisect_right(self._sequences, end)",
    ),
    _hunted_warm(
        29,
        "query_control",
        "QueryControl._is_present",
        "self.deployment.must_not_run(query)",
        "False",
    ),
    _hunted_warm(11, "deployment", "Deployment._ready", "name in self._halting", "False"),
    _hunted_warm(4, "deployment", "Deployment._halt", "self._halting.update(queries)", "pass"),
    _hunted_warm(
        4,
        "role_machine",
        "RoleMachine.become_demoting",
        "self.query_control.deployment.stand_by()",
        "pass",
    ),
    _hunted_warm(
        1,
        "role_machine",
        "RoleMachine.become_active",
        "self.query_control.deployment.take_over()",
        "pass",
    ),
    _hunted_warm(
        1,
        "marks",
        "QueryMarks.forget_through",
        "self.admitted = max(self.admitted, self.kept_after.number)",
        "pass",
    ),
)
"""Mutants that the history of a seed detects."""


def _scheduled(
    schedule: Callable[[Stage], None], rule: str, module: str, function: str, old: str, new: str
) -> Scheduled:
    return Scheduled(schedule, Mutant(rule, module, function, old, new))


SCHEDULED = (
    _scheduled(
        schedules.a_holder_stops_over_a_row_that_lost_an_acquisition,
        "R5",
        "role_machine",
        "RoleMachine.leave",
        "lease.is_doubtful(self.now, self.authority_ends)",
        "",
    ),
    _scheduled(
        schedules.a_release_and_what_it_allowed_are_lost,
        "R3",
        "role_machine",
        "RoleMachine.authority_ends",
        "self.lease_client.releasing",
        "False",
    ),
    _scheduled(
        schedules.the_database_answers_reads_and_hangs_on_writes,
        "I12",
        "lease",
        "Lease.row_read",
        "self.is_holder and self._write_failed",
        "False",
    ),
    _scheduled(
        schedules.a_holder_comes_back_to_a_database_that_lost_nothing,
        "R15",
        "term",
        "Term.tick",
        "now >= lease.safe_until",
        "",
    ),
    _scheduled(
        schedules.an_acquisition_without_an_answer_meets_a_failover,
        "R1",
        "lease",
        "Lease.is_doubtful",
        "not sole",
        "",
    ),
    _scheduled(
        schedules.the_query_process_dies_before_the_member_has_its_batch,
        "R22",
        "term",
        "Term.hand_over_after_breakdown",
        "successor is not None or self._deployment.is_past(breakdown.in_flight)",
        "True",
    ),
    _scheduled(
        schedules.the_query_process_dies_before_the_member_has_its_batch,
        "R22",
        "replication",
        "Replication.successor",
        "all((has.get(query, 0) >= number for query, number in batches.items()))",
        "True",
    ),
    _scheduled(
        schedules.a_batch_of_a_warm_query_kills_spark_everywhere,
        "R22",
        "deployment",
        "Deployment.needed_of_successor",
        "self.lives[name].died_in(number)",
        "False",
    ),
    _scheduled(
        schedules.a_batch_of_a_warm_query_kills_spark_everywhere,
        "R22",
        "deployment",
        "Deployment.needed_of_successor",
        "name not in self._warm",
        "True",
    ),
    _scheduled(
        schedules.a_higher_epoch_is_read_after_a_failover,
        "R14",
        "lease_client",
        "LeaseClient.read_as_holder",
        "row is not None and row.epoch > epoch",
        "False",
    ),
    _scheduled(
        schedules.an_acquisition_is_lost_while_the_former_holder_sleeps,
        "R5",
        "lease",
        "Lease.is_doubtful",
        "self.is_holder and self.database_failed_over and (now >= authority_ends) and (not sole)",
        "self.is_holder and self.database_failed_over and False",
    ),
    _scheduled(
        schedules.an_acquisition_is_lost_while_the_former_holder_is_cut_off,
        "R5",
        "lease",
        "Lease.must_read",
        "self.is_doubtful(now, authority_ends)",
        "",
    ),
    _scheduled(
        schedules.a_member_is_listed_by_an_unanswered_write,
        "R15",
        "lease",
        "Lease.alone",
        "confirmed and self.own_row is not None and (self.possible == {self.member})",
        "confirmed and self.row.in_sync == (self.member,)",
    ),
    _scheduled(
        schedules.a_disk_goes_back_after_its_member_was_removed,
        "I3",
        "replication",
        "Replication.on_probe_reply",
        "shared_end.sequence < acked",
        "False",
    ),
    _scheduled(
        schedules.a_disk_goes_back_while_the_row_lists_its_member,
        "I3",
        "invariants",
        "_broken_journal",
        "core.term.replication.all_had(committed, core.lease.possible)",
        "all(core.term.replication.acked_through(m) >= committed for m in core.lease.possible "
        "if m != core.lease.member)",
    ),
    _scheduled(
        schedules.a_disk_goes_back_and_the_active_dies,
        "R8",
        "lease",
        "Lease.lacks_committed",
        "row.committed > last",
        "False",
    ),
    _scheduled(
        schedules.a_disk_goes_back_and_the_active_dies,
        "R8",
        "lease",
        "Lease.renewed",
        "max(committed, self.row.committed)",
        "self.row.committed",
    ),
    _scheduled(
        schedules.a_disk_with_a_longer_discarded_tail_comes_back,
        "R8",
        "lease",
        "Lease.lacks_committed",
        "row.committed > last",
        "row.committed.sequence > last.sequence",
    ),
    _scheduled(
        schedules.a_disk_goes_back_during_an_outage_of_the_database,
        "R8",
        "lease_client",
        "LeaseClient.read_as_other",
        "announced > last.sequence",
        "False",
    ),
    _scheduled(
        schedules.a_disk_goes_back_before_the_active_has_its_records,
        "I3",
        "replication",
        "Replication.commit_limit",
        "self.acked_through(member)",
        "self._ever_acked(member)",
    ),
    _scheduled(
        schedules.both_disks_go_back,
        "R26",
        "forced_failover",
        "ForcedFailover._why_not_by_row",
        "complete",
        "",
    ),
    _scheduled(
        schedules.a_member_comes_back_with_another_journal_at_once,
        "I3",
        "replication",
        "Replication.acked_through",
        "0 if peer is None else peer.acked_through_of(member.journal_id)",
        "peer.acked_through if peer is not None and peer.member == member else 0",
    ),
    _scheduled(
        schedules.a_sole_member_past_safe_until_lists_another,
        "I2",
        "term",
        "Term.wanted_in_sync",
        "now < self._lease.safe_until",
        "True",
    ),
    _scheduled(
        schedules.a_row_regresses_to_one_with_a_removed_member,
        "R5",
        "invariants",
        "_broken_journal",
        "core.lease.regressed",
        "",
    ),
    _scheduled(
        schedules.a_row_regresses_and_its_holder_dies,
        "R5",
        "lease",
        "Lease.regressed",
        "self.database_failed_over and (not self._is_as_written)",
        "False",
    ),
    _scheduled(
        schedules.a_switchover_while_an_operator_pauses,
        "R7",
        "term",
        "Term.hand_over",
        "paused",
        "",
    ),
    _scheduled(
        schedules.a_late_removal_and_acks_alone,
        "R1",
        "lease",
        "Lease.possible",
        "(self.own_row, self.row, self._in_flight, *self._unresolved)",
        "(self.own_row, self.row, self._in_flight)",
    ),
    _scheduled(
        schedules.a_member_without_its_disk_while_the_active_sleeps,
        "R8",
        "lease",
        "Lease.takeover_at",
        "self.member not in row.in_sync",
        "self.member.node not in [m.node for m in row.in_sync]",
    ),
    _scheduled(
        schedules.the_database_is_unreachable_and_promises_hold,
        "I12",
        "term",
        "Term.tick",
        "(lease.failing or now >= lease.safe_until) and (not lease.alone)",
        "False",
    ),
    _scheduled(
        schedules.an_acquisition_is_forgotten_by_a_restart,
        "R16",
        "lease",
        "Lease.promise",
        "self.high_water.tried[0] > epoch",
        "",
    ),
    _scheduled(
        schedules.a_switchover_meets_a_row_that_lost_writes,
        "R5",
        "term",
        "Term.hand_over",
        "lease.is_holder and (not lease.regressed) and (not doubtful)",
        "lease.is_holder",
    ),
    _scheduled(
        schedules.a_paused_holder_does_not_trim_by_old_revisions,
        "R29",
        "core",
        "Core._may_trim",
        "self.term is None or self.term.may_act(self.now)",
        "True",
    ),
    _scheduled(
        schedules.a_promise_is_forgotten_by_a_restart,
        "R4",
        "lease",
        "Lease.takeover_at",
        "max(self.unchanged_since + self.timing.ttl, self._promised_until)",
        "self._promised_until",
    ),
    _scheduled(
        schedules.a_stopped_holder_does_not_count_its_member_as_silent,
        "R13",
        "replication",
        "Replication.tick",
        "self.restart_timers(now)",
        "pass",
    ),
    _scheduled(
        schedules.a_late_follow_answers_an_earlier_probe_reply,
        "I14",
        "follower",
        "Follower._on_follow",
        "message.replied_end == self._journal.last",
        "True",
    ),
    _scheduled(
        schedules.an_operator_gives_up_what_the_other_has,
        "R26",
        "replication",
        "Replication.on_probe_reply",
        "journal.forced_after(shared_end)",
        "False",
    ),
    _scheduled(
        schedules.an_operator_gives_up_what_the_other_has,
        "R26",
        "follower",
        "Follower._replace_journal",
        "self.giving_up and incarnation is not None",
        "False",
    ),
    _scheduled(
        schedules.an_operator_gives_up_what_the_other_has,
        "R26",
        "marks",
        "QueryMarks._lacks_given_up",
        "self.last.number < self._given_up_through",
        "False",
    ),
    _scheduled(
        schedules.a_pause_gives_a_lost_row_the_version_of_a_release,
        "R15",
        "lease",
        "Lease.is_holder",
        "row.epoch > self.ended",
        "",
    ),
    _scheduled(
        schedules.a_pause_gives_a_lost_row_the_version_of_a_removal,
        "R5",
        "lease",
        "Lease.regressed",
        "self._is_as_written",
        "self.is_holder",
    ),
    _scheduled(
        schedules.a_member_of_an_unanswered_write_acquires_and_that_is_lost,
        "R5",
        "lease",
        "Lease.row_read",
        "not self.database_failed_over",
        "",
    ),
    _scheduled(
        schedules.a_member_falls_behind_its_removal,
        "R9",
        "replication",
        "Replication.wanted",
        "m == self.me or not self._is_lost(m, now)",
        "",
    ),
    _scheduled(
        schedules.a_member_that_stops_leaves_the_row_first,
        "R9",
        "role_machine",
        "RoleMachine.stop",
        "self.follower.leaves = True",
        "",
    ),
    _scheduled(
        schedules.a_member_that_stops_leaves_the_row_first,
        "R9",
        "replication",
        "Replication._late_at",
        "if peer.leaves:\n            return -math.inf",
        "",
    ),
    _scheduled(
        schedules.a_slow_backup_delays_no_ack,
        "R37",
        "replication",
        "Replication._near",
        "not peer.is_backup or now >= self._backup_joins_at",
        "True",
    ),
    _scheduled(
        schedules.a_slow_backup_delays_no_ack,
        "R37",
        "core",
        "Core._starts_spark",
        "needed or not self.identity.is_backup",
        "True",
    ),
    _scheduled(
        schedules.the_backup_is_listed_while_the_member_is_away,
        "R37",
        "replication",
        "Replication._near",
        "now >= self._backup_joins_at",
        "False",
    ),
    _scheduled(
        schedules.the_backup_is_listed_while_the_member_is_away,
        "R37",
        "role_machine",
        "RoleMachine._become_backup",
        "self._end_query_process('the backup runs no query')",
        "pass",
    ),
    _scheduled(
        schedules.the_backup_stays_the_second_disk_in_the_next_epoch,
        "R37",
        "replication",
        "Replication._stood_in",
        "has_backup and not any(self._is_regular(member) for member in in_sync)",
        "False",
    ),
    _scheduled(
        schedules.two_disks_stay_the_rule_when_the_member_returns,
        "R37",
        "replication",
        "Replication.wanted",
        "any((self._is_regular(member) for member in has_all if member in listed))",
        "any((self._is_regular(member) for member in self.near))",
    ),
    _scheduled(
        schedules.a_backup_that_is_not_listed_waits_for_an_operator,
        "I4",
        "lease",
        "Lease.takeover_at",
        "self.member not in row.in_sync",
        "False",
    ),
    _scheduled(
        schedules.a_deployment_hands_no_lease_to_the_backup,
        "R37",
        "replication",
        "Replication.without_backup",
        "one == self.me or self._is_regular(one)",
        "True",
    ),
)
"""Mutants that the schedule of their history detects."""


def killed_by(engine: Any, seed: int, variant: Variant = Variant.PLAIN) -> str | None:
    """Return the fault that the history of ``seed`` finds, None without one."""
    try:
        play(seed, engine, variant=variant)
    except Failed as failed:
        return str(failed).splitlines()[0]
    return None


def found_out(hunted: Hunted) -> str | None:
    """Return the finding of its seed. Where a change of the core or the simulator changed that
    history, return that of the first seed that detects the mutant."""
    engine, seeds = load(hunted.mutant), (hunted.seed, *range(1, TRIED_MAX))
    findings = (killed_by(engine, seed, hunted.variant) for seed in seeds)
    return next(filter(None, findings), None)


if __name__ == "__main__":
    for one in HUNTED:
        sys.stdout.write(f"{one.mutant.name}\n    {found_out(one)}\n")
        sys.stdout.flush()
