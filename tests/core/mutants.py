"""Mutants of the core, one place each: scenarios or random histories must detect every one.

A mutant is loaded as a copy of the core's modules under a name of its own; inputs, actions and
messages stay the real ones. ``python -m tests.core.mutants`` prints which test kills which.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import count
from types import CodeType, ModuleType, SimpleNamespace

from tests.core.story import retell
from tests.core.test_every_history import run
from tests.core.test_scenarios import SCENARIOS
from tests.mutation import Mutation, module_spec, parsed

CORE = "ha_engine.core"
SHARED = ("actions", "inputs", "messages")
"""Modules of values that tests and core exchange: every copy uses the same classes."""

HISTORIES, STEPS = 300, 50
_copies = count(1)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutation of a module of the core; ``rule`` is what it breaks."""

    rule: str
    module: str
    function: str
    old: str
    new: str

    @property
    def mutation(self) -> Mutation:
        return Mutation(f"{CORE}.{self.module}", self.function, self.old, self.new)

    @property
    def name(self) -> str:
        return f"{self.rule}: {self.mutation}"


def load(mutant: Mutant | None) -> SimpleNamespace:
    """Return the public names of a mutated core; of an unmutated copy without ``mutant``."""
    package = ModuleType(f"core_copy_{next(_copies)}")
    package.__path__ = []
    copies = _Copies(package.__name__, mutant)
    sys.modules[package.__name__] = package
    sys.meta_path.insert(0, copies)
    try:
        modules = {name: import_module(f"{package.__name__}.{name}") for name in _ENTRANCES}
    finally:
        sys.meta_path.remove(copies)
        for name in [name for name in sys.modules if name.partition(".")[0] == package.__name__]:
            del sys.modules[name]
    return SimpleNamespace(
        Core=modules["core"].Core,
        NodeIdentity=modules["identity"].NodeIdentity,
        Deployment=modules["deployment"].Deployment,
        QueryPlan=modules["queries"].QueryPlan,
        HighWater=modules["high_water"].HighWater,
        RestartPolicy=modules["queries"].RestartPolicy,
    )


_ENTRANCES = ("core", "identity", "deployment", "queries", "high_water")


class _Copies(MetaPathFinder):
    """Imports the core's modules into ``package``, the mutant's with its mutation."""

    def __init__(self, package: str, mutant: Mutant | None) -> None:
        self._package, self._mutant = package, mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != self._package:
            return None
        if self._mutant is not None and self._mutant.module == name:
            return module_spec(fullname, _compiled(name, self._mutant.mutation.tree()))
        return module_spec(fullname, _whole(name))


@cache
def _whole(name: str) -> CodeType:
    return _compiled(name, parsed(f"{CORE}.{name}"))


def _compiled(name: str, tree: ast.Module) -> CodeType:
    """Compile for any package: a copy imports its neighbours from its own package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(CORE):
            module = (node.module or "").removeprefix(CORE).removeprefix(".")
            if (module or node.names[0].name) not in SHARED:
                node.module, node.level = module or None, 1
    return compile(tree, f"{CORE}.{name}", "exec")


def killers(mutant: Mutant | None) -> Iterator[str]:
    """Tests that fail for the mutant, the quick ones first."""
    core = load(mutant)
    for path in SCENARIOS:
        told = path.read_text()
        try:
            same = retell(told, core) == told
        except Exception as error:
            yield f"{path.stem} ({type(error).__name__})"
        else:
            if not same:
                yield path.stem
    try:
        run(core, examples=HISTORIES, steps=STEPS, for_a_mutant=True)
    except Exception as error:
        yield f"every history ({type(error).__name__}: {str(error).splitlines()[0][:70]})"


MUTANTS = (
    # -- lease -------------------------------------------------------------------------------------
    Mutant(
        "I1",
        "lease",
        "Lease.acquired",
        "max(self.row.epoch, self.high_water.epoch) + 1",
        "self.high_water.epoch",
    ),
    Mutant(
        "R15",
        "core",
        "Core._after_write",
        "self.lease.is_holder and (not self.lease.regressed) and (row.epoch > self.epoch)",
        "self.lease.is_holder",
    ),
    Mutant(
        "R1",
        "lease",
        "Lease.renewed",
        "self.row.version + 1",
        "",
    ),
    Mutant(
        "R1",
        "lease",
        "Lease.row_read",
        "self._remember(now, row)",
        "self.safe_until = now + self.timing.ttl\nself._remember(now, row)",
    ),
    Mutant(
        "R1",
        "lease_client",
        "LeaseClient.read_as_other",
        "lease.ask_at_once(now)\nreturn None",
        "return self._write(now, row, lease.acquired(None), '')",
    ),
    Mutant(
        "R1",
        "lease",
        "Lease.outcome_unknown",
        "self.row_is_current = False",
        "",
    ),
    Mutant(
        "R1",
        "lease",
        "Lease.wake_at",
        "self.next_at if self.sent_at is None else math.inf",
        "self.next_at",
    ),
    Mutant(
        "I2",
        "lease",
        "Lease.row_written",
        "self.sent_at + self.timing.ttl",
        "now + self.timing.ttl",
    ),
    Mutant(
        "I2",
        "lease",
        "Lease.row_written",
        "self.sent_at + self.timing.ttl - self.timing.margin",
        "self.sent_at + self.timing.ttl",
    ),
    Mutant(
        "I2",
        "term",
        "Term.may_act",
        "self.authority_seconds(now) > 0",
        "self.active",
    ),
    Mutant("I2", "term", "Term.keeps_the_lease", "not self._lease_client.releasing", ""),
    Mutant(
        "I2",
        "role_machine",
        "RoleMachine.leave",
        "self.journal.durable < self.journal.last.sequence",
        "",
    ),
    Mutant("I2", "core", "Core._advance", "None if self.stopping else self.term", "self.term"),
    Mutant(
        "R2",
        "lease",
        "Lease.is_holder",
        "row is not None and row.holder == self.me and (row.epoch > self.ended)",
        "row is not None and row.holder is not None and (row.holder.node == self.me.node)"
        " and (row.epoch > self.ended)",
    ),
    Mutant(
        "R17",
        "term",
        "Term.authority_seconds",
        "max(0.0, self.authority_ends() - now)",
        "self._lease.timing.ttl",
    ),
    Mutant("R4", "lease", "Lease.row_read", "self.next_at = min(self.next_at, takeover)", "pass"),
    Mutant("I4", "lease", "Lease.takeover_at", "self.member not in row.in_sync", ""),
    Mutant(
        "R3",
        "lease",
        "Lease.acquired",
        "(self.member,)",
        "self.row.in_sync",
    ),
    Mutant("R3", "lease", "Lease.takeover_at", "row.successor in (None, self.me.node)", "True"),
    Mutant("R3", "term", "Term.commit", "limit >= self._first", ""),
    Mutant("R3", "term", "Term.epoch_committed", "self._journal.committed >= self._first", "True"),
    Mutant(
        "R4",
        "lease",
        "Lease.takeover_at",
        "max(self.unchanged_since + self.timing.ttl, self._promised_until)",
        "self._promised_until",
    ),
    Mutant("R4", "lease", "Lease._remember", "row != self.row", "self.row is None"),
    Mutant("R5", "lease", "Lease.takeover_at", "self.regressed", ""),
    Mutant(
        "R5",
        "lease",
        "Lease._remember",
        "row is not None and (not self.high_water.above(row))",
        "row",
    ),
    Mutant("R5", "lease", "Lease.must_read", "self.regressed", ""),
    Mutant("R5", "core", "Core._keep_high_water", "high_water != before", "False"),
    Mutant("R5", "lease_client", "LeaseClient.read_as_holder", "lease.regressed", ""),
    Mutant(
        "R6",
        "lease_client",
        "LeaseClient._create",
        "not new or self.lease.high_water.epoch > 0",
        "False",
    ),
    Mutant(
        "R6", "lease_client", "LeaseClient.is_foreign", "row.group_id != self.group_id", "False"
    ),
    Mutant(
        "R6", "lease_client", "LeaseClient.bind", "yield do.BindGroup(group_id)", "yield from ()"
    ),
    Mutant("R7", "lease", "Lease.takeover_at", "row.paused", ""),
    Mutant("R14", "core", "Core._on_epoch", "epoch > self.epoch", "False"),
    Mutant("R14", "core", "Core._on_epoch", "self.lease.note_epoch(epoch)", "pass"),
    Mutant("I14", "core", "Core._on_epoch", "epoch > self.epoch", ""),
    Mutant("R15", "lease_client", "LeaseClient.read_as_holder", "not lease.is_holder", "False"),
    Mutant(
        "I12",
        "lease",
        "Lease.carries_until",
        "math.inf if self.alone else self.safe_until",
        "self.safe_until",
    ),
    Mutant(
        "R15",
        "lease",
        "Lease.alone",
        "confirmed and self.own_row is not None and (self.possible == {self.member})",
        "confirmed and True",
    ),
    Mutant("history", "follower", "Follower.silent_since", "self._last_message[0] != epoch", ""),
    Mutant(
        "history",
        "follower",
        "Follower.handle",
        "self.holder, self._last_message = (peer, (message.epoch, now))",
        "self.holder, _ = (peer, 0)",
    ),
    # -- an operator forces a failover -------------------------------------------------------------
    Mutant("R26", "forced_failover", "ForcedFailover._why_not_by_row", "row.paused", "False"),
    Mutant(
        "R26", "forced_failover", "ForcedFailover._why_not_by_row", "not self._lease.regressed", ""
    ),
    Mutant(
        "R26", "forced_failover", "ForcedFailover.why_not", "self._who_lives(now, connected)", ""
    ),
    Mutant(
        "R26",
        "forced_failover",
        "ForcedFailover.why_not",
        "self._who_may_live(connected, confirmed_fenced)",
        "",
    ),
    Mutant(
        "R26",
        "forced_failover",
        "ForcedFailover._who_lives",
        "self._follower.had_message_within(now, ttl)",
        "False",
    ),
    Mutant(
        "R26",
        "forced_failover",
        "ForcedFailover._who_lives",
        "lease.row is not None and lease.row.holder is not None and (still > 0)",
        "lease.row is not None and lease.row.holder is None",
    ),
    Mutant(
        "R26", "forced_failover", "ForcedFailover._who_lives", "if answering: ...", "if False: ..."
    ),
    Mutant(
        "R26", "forced_failover", "ForcedFailover._who_may_live", "if wrong: ...", "if False: ..."
    ),
    Mutant(
        "R26",
        "forced_failover",
        "ForcedFailover.after_read",
        "self.why_not(now, connected, frozenset(asked.confirmed_fenced))",
        "False and (now, connected, frozenset(asked.confirmed_fenced))",
    ),
    Mutant("R26", "core", "Core._on_lease", "self.forced_failover.forget()", "pass"),
    Mutant(
        "R26",
        "forced_failover",
        "ForcedFailover._force_again",
        "row.epoch < tried",
        "row.epoch >= tried",
    ),
    Mutant(
        "R26",
        "forced_failover",
        "ForcedFailover._force_again",
        "self._journal.last.epoch >= tried",
        "",
    ),
    Mutant(
        "R26",
        "forced_failover",
        "ForcedFailover.acquired",
        "return epoch == self._epoch",
        "return False",
    ),
    Mutant(
        "R26", "forced_failover", "ForcedFailover._force_again", "not self._lease.is_holder", ""
    ),
    Mutant("R26", "lease", "Lease.forced", "EPOCHS_SKIPPED if self.regressed else 0", "0"),
    Mutant("R26", "follower", "Follower._make_prefix", "not message.forced", ""),
    Mutant(
        "I8",
        "follower",
        "Follower._make_prefix",
        "shared_end.sequence < self._journal.committed and (not message.forced)",
        "shared_end.sequence < 0",
    ),
    Mutant(
        "R26",
        "follower",
        "Follower._make_prefix",
        "self.giving_up = message.forced",
        "self.giving_up = False",
    ),
    Mutant(
        "R26",
        "follower",
        "Follower._replace_journal",
        "self.giving_up and incarnation is not None",
        "False",
    ),
    Mutant("R26", "marks", "QueryMarks.wake_at", "self.unanswered", ""),
    Mutant(
        "R26",
        "marks",
        "QueryMarks._lacks_given_up",
        "self.last.number < self._given_up_through",
        "False",
    ),
    Mutant("R26", "marks", "QueryMarks.published_in_given_up_history", "n > known[s]", "False"),
    Mutant("R26", "marks", "QueryMarks.ledger_answered", "self._given_up[sink] = batch", "pass"),
    # -- records -----------------------------------------------------------------------------------
    Mutant(
        "I3",
        "term",
        "Term.commit",
        "journal.commit(limit)",
        "journal.commit(journal.last.sequence)",
    ),
    Mutant("I3", "core", "Core._dispatch", "event.sequence", "event.sequence + 1"),
    Mutant("R12", "journal_state", "JournalState.next_position", "1", "2"),
    # -- a lost row, suspension --------------------------------------------------------------------
    Mutant("R5", "lease", "Lease.may_rewrite", "alone or now < authority_ends", "True"),
    Mutant(
        "R5",
        "lease",
        "Lease.rewritten",
        "max(self.own_row.epoch, self.high_water.epoch) + 1",
        "self.high_water.epoch",
    ),
    Mutant("R6", "lease_client", "LeaseClient.read_as_holder", "not stopping", ""),
    Mutant(
        "R15",
        "term",
        "Term.suspend_or_resume",
        "self.receiving == self.may_act(now)",
        "self.receiving",
    ),
    Mutant("R15", "term", "Term.suspend_or_resume", "yield do.OpenReceivers()", ""),
    # -- sinks that come and go --------------------------------------------------------------------
    Mutant(
        "R25", "marks", "QueryMarks.set_outbox_floor", "first_kept - 1", "self.published_through"
    ),
    Mutant(
        "R25",
        "marks",
        "QueryMarks.set_outbox_floor",
        "max(trimmed_through, self.initial.number)",
        "self.initial.number",
    ),
    Mutant(
        "R25",
        "marks",
        "QueryMarks.set_outbox_floor",
        "max(trimmed_through, self.initial.number)",
        "self.published_through",
    ),
    Mutant("R25", "marks", "QueryMarks.start_after", "self.recorded.get(sink, begins)", "0"),
    # -- marks -------------------------------------------------------------------------------------
    Mutant("I5", "pending_events", "PendingEvents.next_batch_end", "sequence > limit", "False"),
    Mutant("I5", "marks", "QueryMarks.answer", "self._sequences[index] > committed", ""),
    Mutant("I5", "skips", "Skips.committed", "self._uncommitted[0][0] <= committed", "True"),
    Mutant(
        "I6",
        "pending_events",
        "PendingEvents.next_batch_end",
        "total + events > self._batch_events_max",
        "total > self._batch_events_max",
    ),
    Mutant(
        "I6",
        "pending_events",
        "PendingEvents.drop_through",
        "self._runs[0][0] <= sequence",
        "self._runs[0][0] < sequence",
    ),
    Mutant(
        "I6",
        "marks",
        "QueryMarks.restart_at",
        "self._pending.drop_through(initial.through)",
        "pass",
    ),
    Mutant(
        "I6",
        "pending_events",
        "PendingEvents.next_batch_end",
        "(sequence, total + events)",
        "(sequence + 1, total + events)",
    ),
    Mutant("R18", "marks", "QueryMarks.answer", "self.wanted + 1", "self.wanted"),
    Mutant(
        "R18",
        "marks",
        "QueryMarks.wake_at",
        "self.wanted != self.last.number",
        "self.wanted is None",
    ),
    Mutant(
        "R18", "deployment", "Deployment.runs", "self.marks[name].initial", "self.marks[name].last"
    ),
    Mutant("I8", "marks", "QueryMarks.wake_at", "self.wanted != self.last.number", ""),
    Mutant("ticks", "marks", "QueryMarks._enter_outbox", "self._is_empty(number)", ""),
    Mutant("ticks", "pace", "Pace.empty_batch_at", "self.quiet", ""),
    Mutant("ticks", "pace", "Pace.empty_batch_at", "self._empty_in_a_row >= EMPTY_BATCHES_MAX", ""),
    Mutant("bounds", "marks", "QueryMarks.wake_at", "self._outbox_full()", "False"),
    Mutant(
        "bounds",
        "marks",
        "QueryMarks._outbox_full",
        "self.outbox.backlog if self.sinks else (0, 0)",
        "self.outbox.backlog",
    ),
    # -- when to be woken --------------------------------------------------------------------------
    Mutant("wake", "core", "Core.wake_at", "moments.append(self.lease.wake_at)", "pass"),
    Mutant(
        "wake",
        "core",
        "Core.wake_at",
        "self.query_control.wake_at(self.journal.committed, starts=self._starts_spark)",
        "math.inf",
    ),
    Mutant(
        "wake",
        "core",
        "Core.wake_at",
        "moments.append(self.retention.wake_at(self._retain_after))",
        "pass",
    ),
    Mutant(
        "wake",
        "term",
        "Term.wake_at",
        "self.snapshots.wake_at(now) if acts else math.inf",
        "math.inf",
    ),
    # -- batches and sinks -------------------------------------------------------------------------
    Mutant("I7", "deployment", "Deployment.published", "event.batch <= known", "False"),
    Mutant(
        "R25",
        "marks",
        "QueryMarks.published_committed",
        "self._published_uncommitted[0][0] <= committed",
        "self._published_uncommitted[0][0]",
    ),
    Mutant(
        "R25",
        "marks",
        "QueryMarks.published_committed",
        "min",
        "max",
    ),
    Mutant(
        "R25",
        "marks",
        "QueryMarks.published_committed",
        "self.kept_after.number + max(0, marks_committed - 1)",
        "self.admitted",
    ),
    Mutant(
        "R19",
        "process",
        "QueryProcessState.connect",
        "return incarnation == self.incarnation",
        "return True",
    ),
    Mutant(
        "R19",
        "process",
        "QueryProcessState.ended",
        "if incarnation != self.incarnation:\n    return False",
        "",
    ),
    # -- members -----------------------------------------------------------------------------------
    Mutant("R30", "replication", "Replication._near", "peer.headroom", ""),
    Mutant("R10", "query_control", "QueryControl.warm", "not self.digests.differing", ""),
    Mutant("I6", "digests", "Digests._note", "other.get(batch, digest) == digest", "True"),
    Mutant("R26", "digests", "Digests.history_was_given_up", "self._theirs.clear()", "pass"),
    Mutant("I6", "digests", "Digests._note", "to.get(batch) == digest", "False"),
    # -- life of queries ---------------------------------------------------------------------------
    Mutant(
        "R20",
        "process",
        "QueryProcessState.wake_at",
        "self._start_at if self.incarnation is None else math.inf",
        "self._start_at",
    ),
    Mutant(
        "R20",
        "query_control",
        "QueryControl.handle",
        "self.process.adopt(event.incarnation)",
        "pass",
    ),
    Mutant(
        "R22",
        "process",
        "QueryProcessState.ended",
        "now + self._restarts.backoff(self._deaths)",
        "0 * self._restarts.backoff(self._deaths)",
    ),
    Mutant("R22", "process", "QueryProcessState.proved_itself", "self._deaths = 0", "pass"),
    Mutant(
        "I15",
        "queries",
        "QueryLife.failed",
        "self._failures >= self.policy.attempts_per_batch",
        "False",
    ),
    Mutant(
        "I15",
        "queries",
        "QueryLife.process_died",
        "self._deaths >= self.policy.deaths_per_batch",
        "False",
    ),
    Mutant("I15", "queries", "QueryLife.process_died", "self.state is not QueryState.RUNNING", ""),
    Mutant(
        "I15", "deployment", "Deployment.admitted", "self.lives[event.query].advanced()", "pass"
    ),
    Mutant(
        "I15",
        "deployment",
        "Deployment._running",
        "self.lives[name].state is QueryState.RUNNING",
        "True",
    ),
    Mutant(
        "I15",
        "deployment",
        "Deployment.backlog_events",
        "self.lives[name].state is not QueryState.FAILED",
        "True",
    ),
    Mutant(
        "I15",
        "deployment",
        "Deployment._may_revive",
        "failed and self._is_current(query) and (not self.skips.pending(query))",
        "failed",
    ),
    Mutant("I15", "skips", "Skips.apply", "self.known.add((query, number))", "pass"),
    Mutant(
        "I15",
        "query_control",
        "QueryControl.names_removed_query",
        "query not in self.deployment.marks",
        "False",
    ),
    # -- applications ------------------------------------------------------------------------------
    Mutant(
        "R35", "deployment", "Deployment._apply_application", "self._halt([version.query])", "pass"
    ),
    Mutant("R35", "versions", "Versions.apply", "self._rescale(version, last_mark(name))", "pass"),
    Mutant("R35", "deployment", "Deployment.process_connected", "*self.versions.rescaled", ""),
    Mutant("R23", "versions", "Versions.apply", "version.reset", ""),
    Mutant(
        "R23",
        "deployment",
        "Deployment._next_version",
        "marks.reset_after(committed, self._trimmed_through)",
        "marks.last",
    ),
    Mutant(
        "R23",
        "marks",
        "QueryMarks.reset_after",
        "min(self.admitted, self.published_committed(committed))",
        "self.admitted",
    ),
    Mutant(
        "R23",
        "deployment",
        "Deployment._next_version",
        "0 if self.versions.application is None else committed",
        "0",
    ),
    Mutant("R23", "deployment", "Deployment._next_version", "plan.on_change == 'keep'", "False"),
    Mutant(
        "R23",
        "deployment",
        "Deployment._may_begin_again",
        "self._can_rebuild(query) and not has_run",
        "True",
    ),
    Mutant(
        "R23",
        "versions",
        "Versions.apply",
        "self.carried_on[name] = self._changed_after[name] = last_mark(name)",
        "pass",
    ),
    Mutant(
        "R23",
        "deployment",
        "Deployment._next_version",
        "self.lives[plan.name].refused(ON_CHANGE_MISSING)",
        "pass",
    ),
    Mutant("R23", "deployment", "Deployment._ready", "self._is_current(name)", ""),
    Mutant(
        "R23",
        "deployment",
        "Deployment._ready",
        "self.lives.items() if self.changed_at <= committed else ()",
        "self.lives.items()",
    ),
    Mutant(
        "R23",
        "deployment",
        "Deployment.change",
        "application == self.digest and in_force",
        "False",
    ),
)


if __name__ == "__main__":
    for mutant in MUTANTS:
        found = list(killers(mutant))
        more = f"; and {len(found) - 4} more" if len(found) > 4 else ""
        sys.stdout.write(f"{mutant.name}\n    {'; '.join(found[:4]) or 'SURVIVES'}{more}\n")
