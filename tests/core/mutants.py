"""Breakages of the core, one line each: scenarios or random histories must notice every one.

A mutant is loaded as a copy of the core's modules under a name of its own; inputs, actions and
types stay the real ones. ``python -m tests.core.mutants`` tells which test kills which.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace

import ha_engine.core
from tests.core.story import retell
from tests.core.test_every_history import run
from tests.core.test_scenarios import SCENARIOS

HOME = Path(ha_engine.core.__file__).parent
COPIED = (
    "role",
    "high_water",
    "lease",
    "verdicts",
    "lessee",
    "progress",
    "queries",
    "process",
    "uncut",
    "pace",
    "kept",
    "skips",
    "marks",
    "versions",
    "deployment",
    "base",
    "barrier",
    "digests",
    "querying",
    "own_journal",
    "retention",
    "leading",
    "following",
    "forcing",
    "snapshots",
    "tenure",
    "identity",
    "life",
    "invariants",
    "answers",
    "core",
)
"""In the order in which they import each other."""

HISTORIES, STEPS = 300, 50
_copies = count(1)


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old`` stands exactly once in ``module``; ``rule`` is what ``new`` breaks."""

    rule: str
    module: str
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.rule}: {' '.join(self.old.split())[:60]}"


def load(mutant: Mutant | None) -> SimpleNamespace:
    """The public names of a broken core; of a mere copy without ``mutant``."""
    package = f"core_copy_{next(_copies)}"
    modules = {name: _load(package, name, mutant) for name in COPIED}
    return SimpleNamespace(
        Core=modules["core"].Core,
        Identity=modules["identity"].Identity,
        Deployment=modules["deployment"].Deployment,
        QueryPlan=modules["queries"].QueryPlan,
        HighWater=modules["high_water"].HighWater,
        RestartPolicy=modules["queries"].RestartPolicy,
    )


def _load(package: str, name: str, mutant: Mutant | None) -> ModuleType:
    source = (HOME / f"{name}.py").read_text()
    if mutant is not None and mutant.module == name:
        if source.count(mutant.old) != 1:
            raise ValueError(f"{mutant.name} stands {source.count(mutant.old)} times in {name}.py")
        source = source.replace(mutant.old, mutant.new)
    for other in COPIED:
        source = source.replace(f"from ha_engine.core.{other} ", f"from {package}.{other} ")
        source = source.replace(
            f"from ha_engine.core import {other}", f"from {package} import {other}"
        )
    module = ModuleType(f"{package}.{name}")
    sys.modules[module.__name__] = module
    sys.modules.setdefault(package, ModuleType(package)).__path__ = []
    exec(compile(source, f"{package}/{name}.py", "exec"), module.__dict__)
    return module


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
        "I1", "lease", "max(self.row.epoch, self.high_water.epoch) + 1", "self.high_water.epoch"
    ),
    Mutant(
        "R15",
        "core",
        "lease.mine and not self.lease.regressed and row.epoch > self.epoch",
        "lease.mine",
    ),
    Mutant(
        "R1",
        "lease",
        "version=self.row.version + 1,\n            in_sync=in_sync",
        "in_sync=in_sync",
    ),
    Mutant(
        "R1",
        "lease",
        "self.read_once, self.read_at, self.identity = True, self.sent_at or now, identity",
        "self.read_once, self.read_at, self.identity = True, self.sent_at or now, identity\n"
        "        self.safe_until = now + self.timing.ttl",
    ),
    Mutant(
        "R1",
        "lessee",
        "lease.again_at_once(now)\n            return None\n        if lease.may_acquire",
        "return self._write(now, row, lease.acquired(None), '')\n        if lease.may_acquire",
    ),
    Mutant(
        "R1",
        "lease",
        "self._unresolved += (self._in_flight,)\n        self.read_once = False",
        "self._unresolved += (self._in_flight,)",
    ),
    Mutant("R1", "lease", "return self.sent_at is None and now", "return now"),
    Mutant("I2", "lease", "self.safe_until = self.sent_at +", "self.safe_until = now +"),
    Mutant("I2", "lease", "self.timing.ttl - self.timing.margin", "self.timing.ttl"),
    Mutant(
        "I2",
        "tenure",
        "return self.authority_seconds(now) > 0",
        "return self.active",
    ),
    Mutant("I2", "tenure", "self.active and not self._lessee.releasing and", "self.active and"),
    Mutant("I2", "life", "or self.journal.durable < self.journal.last.sequence", ""),
    Mutant("I2", "core", "leads = None if self.stopping else self.tenure", "leads = self.tenure"),
    Mutant(
        "R2",
        "lease",
        "row.holder == self.me and row.epoch",
        "row.holder is not None and row.holder.node == self.me.node and row.epoch",
    ),
    Mutant("R17", "tenure", "max(0.0, self.authority_ends() - now)", "self._lease.timing.ttl"),
    Mutant("R4", "lease", "self.next_at = min(self.next_at, takeover)", "pass"),
    Mutant("I4", "lease", " or self.member not in row.in_sync:", ":"),
    Mutant(
        "R3",
        "lease",
        "in_sync=(self.member,),\n            advertise",
        "in_sync=self.row.in_sync,\n            advertise",
    ),
    Mutant("R3", "lease", "row.successor in (None, self.me.node)", "True"),
    Mutant("R3", "tenure", "not self.active and limit >= self._first", "not self.active"),
    Mutant("R3", "tenure", "self._journal.committed >= self._first", "True"),
    Mutant(
        "R4",
        "lease",
        "max(self.still_since + self.timing.ttl, self._promised_until)",
        "self._promised_until",
    ),
    Mutant("R4", "lease", "row is None or row != self.row:", "row is None or self.row is None:"),
    Mutant("R5", "lease", "row is None or self.regressed or", "row is None or"),
    Mutant("R5", "lease", "if row is not None and not self.high_water.above(row):", "if row:"),
    Mutant("R5", "lease", "not self.read_once or self.regressed:", "not self.read_once:"),
    Mutant("R5", "core", "if mark != before:", "if False:"),
    Mutant("R5", "lessee", "if row is None or lease.regressed or lease", "if row is None or lease"),
    Mutant("R6", "lessee", "if not new or self.lease.high_water.epoch > 0:", "if False:"),
    Mutant("R6", "lessee", "and row.group_id != self.group_id", "and False"),
    Mutant("R6", "lessee", "yield do.BindGroup(group_id)", "yield from ()"),
    Mutant("R7", "lease", "or row.paused or", "or"),
    Mutant("R14", "core", "if epoch > self.epoch and", "if False and"),
    Mutant("R14", "core", "self.lease.heard_of(epoch)", "pass"),
    Mutant("I14", "core", "if epoch > self.epoch and", "if"),
    Mutant("R15", "lessee", "        if not lease.mine:\n", "        if False:\n"),
    Mutant("I12", "lease", "math.inf if self.alone else self.safe_until", "self.safe_until"),
    Mutant("R15", "lease", "self.held is not None and self.possible == {self.member}", "True"),
    Mutant("history", "following", " or self._heard[0] != epoch:", ":"),
    Mutant("history", "following", "self._heard = peer, (message.epoch, now)", "_ = peer, 0"),
    # -- an operator forces a failover -------------------------------------------------------------
    Mutant("R26", "forcing", "        if row.paused:\n", "        if False:\n"),
    Mutant("R26", "forcing", "in row.in_sync and not self._lease.regressed:", "in row.in_sync:"),
    Mutant("R26", "forcing", "            or self._who_lives(now, connected)\n", ""),
    Mutant("R26", "forcing", "            or self._who_may_live(connected, confirmed_off)\n", ""),
    Mutant("R26", "forcing", "if self._following.heard_within(now, ttl):", "if False:"),
    Mutant("R26", "forcing", "row.holder is not None and still > 0:", "row.holder is None:"),
    Mutant("R26", "forcing", "        if answering:\n", "        if False:\n"),
    Mutant("R26", "forcing", "        if wrong:\n", "        if False:\n"),
    Mutant("R26", "forcing", "asked is None or self.why_not(", "asked is None or False and ("),
    Mutant("R26", "core", "self.forcing.forget()", "pass"),
    Mutant("R26", "forcing", "row.epoch != tried or", "row.epoch == tried or"),
    Mutant("R26", "forcing", " or self._journal.is_forced(tried):", ":"),
    Mutant("R26", "forcing", "return epoch == self._epoch", "return False"),
    Mutant("R26", "forcing", "if not self._lease.mine and row.in_sync", "if row.in_sync"),
    Mutant("R26", "lease", "EPOCHS_SKIPPED if self.regressed else 0", "0"),
    Mutant("R26", "following", " and not message.forced:", ":"),
    Mutant("I8", "following", "self._journal.committed and not message.forced:", "0:"),
    Mutant("R26", "following", "self.giving_up = message.forced", "self.giving_up = False"),
    Mutant("R26", "following", "self.giving_up and incarnation is not None:", "False:"),
    Mutant("R26", "marks", "self.last.number or self.unheard:", "self.last.number:"),
    Mutant("R26", "marks", "if self.last.number < self._given_up_through:", "if False:"),
    Mutant("R26", "marks", "if n > known[s]]", "if False]"),
    Mutant("R26", "marks", "self._given_up[sink] = batch", "pass"),
    # -- records -----------------------------------------------------------------------------------
    Mutant(
        "I3", "tenure", "journal.committed = limit\n", "journal.committed = journal.last.sequence\n"
    ),
    Mutant("I3", "core", "event.sequence)", "event.sequence + 1)"),
    Mutant("R12", "own_journal", "self.last.sequence + 1)\n", "self.last.sequence + 2)\n"),
    # -- a lost row, suspension --------------------------------------------------------------------
    Mutant("R5", "lease", "return alone or now < authority_ends", "return True"),
    Mutant(
        "R5", "lease", "max(self.held.epoch, self.high_water.epoch) + 1", "self.high_water.epoch"
    ),
    Mutant("R6", "lessee", "(authority_ends, now) and not stopping:", "(authority_ends, now):"),
    Mutant("R15", "tenure", "self.receiving == self.may_act(now):", "self.receiving:"),
    Mutant("R15", "tenure", "            yield do.OpenReceivers()\n        else", "        else"),
    # -- sinks that come and go --------------------------------------------------------------------
    Mutant("R25", "marks", "else first_kept - 1", "else self.published_through"),
    Mutant("R25", "marks", "max(left, self.initial.number) if", "self.initial.number if"),
    Mutant("R25", "marks", "max(left, self.initial.number) if", "self.published_through if"),
    Mutant("R25", "marks", "self.recorded.get(sink, begins)", "0"),
    # -- marks -------------------------------------------------------------------------------------
    Mutant("I5", "uncut", "if sequence > limit:", "if False:"),
    Mutant("I5", "marks", " or self._sequences[index] > committed:", ":"),
    Mutant("I5", "skips", "self._uncommitted[0][0] <= committed:", "True:"),
    Mutant("I6", "uncut", "total + events > self._batch", "total > self._batch"),
    Mutant("I6", "uncut", "self._runs[0][0] <= sequence:", "self._runs[0][0] < sequence:"),
    Mutant("I6", "marks", "self._uncut.drop_through(initial.through)", "pass"),
    Mutant("I6", "uncut", "through, total = sequence,", "through, total = sequence + 1,"),
    Mutant(
        "R18", "marks", "self.wanted = self.wanted + 1, None", "self.wanted = self.wanted, None"
    ),
    Mutant("R18", "marks", "if self.wanted != self.last.number or", "if self.wanted is None or"),
    Mutant(
        "R18", "deployment", "initial = self.marks[name].initial", "initial = self.marks[name].last"
    ),
    Mutant("I8", "marks", "self.wanted != self.last.number or self.unheard", "self.unheard"),
    Mutant("ticks", "marks", "rows == 0 and self._is_tick(number)", "rows == 0"),
    Mutant("ticks", "pace", "            not self.quiet\n            and ", "            "),
    Mutant("ticks", "pace", "            and self._ticks < TICKS_IN_A_ROW_MAX\n", ""),
    Mutant("bounds", "marks", "if resting or self._outbox_full():", "if resting:"),
    Mutant("bounds", "marks", "if self.sinks else (0, 0)", ""),
    # -- batches and sinks -------------------------------------------------------------------------
    Mutant("I7", "deployment", "if event.batch <= known:", "if False:"),
    Mutant("R25", "marks", "_uncommitted[0][0] <= committed:", "_uncommitted[0][0]:"),
    Mutant(
        "R25",
        "marks",
        "return min(self._published_committed.values())",
        "return max(self._published_committed.values())",
    ),
    Mutant(
        "R25",
        "marks",
        "return self.before.number + max(0, marks_committed - 1)",
        "return self.admitted",
    ),
    Mutant(
        "R19", "process", "        return incarnation == self.incarnation", "        return True"
    ),
    Mutant(
        "R19",
        "process",
        "        if incarnation != self.incarnation:\n            return False\n",
        "",
    ),
    # -- members -----------------------------------------------------------------------------------
    Mutant("R30", "leading", "self._goal and peer.room)", "self._goal)"),
    Mutant("R10", "querying", "not self.digests.differing and caught_up", "caught_up"),
    Mutant("I6", "digests", "equal = other.get(batch, digest) == digest", "equal = True"),
    Mutant("R26", "digests", "self._theirs.clear()", "pass"),
    Mutant("I6", "digests", "if to.get(batch) == digest:", "if False:"),
    # -- life of queries ---------------------------------------------------------------------------
    Mutant("R20", "process", "if self.incarnation is not None or now", "if now"),
    Mutant("R20", "querying", "self.process.adopt(event.incarnation)", "pass"),
    Mutant("R22", "process", "self._start_at = now +", "self._start_at = 0 *"),
    Mutant("R22", "process", 'no backoff."""\n        self._deaths = 0', '"""'),
    Mutant("I15", "queries", "self._failures >= self.policy.attempts_per_batch", "False"),
    Mutant("I15", "queries", "self._deaths >= self.policy.deaths_per_batch", "False"),
    Mutant("I15", "queries", " or self.state is not QueryState.RUNNING:", ":"),
    Mutant("I15", "deployment", "        self.lives[event.query].advanced()", "        pass"),
    Mutant("I15", "deployment", "if self.lives[name].state is QueryState.RUNNING:", "if True:"),
    Mutant("I15", "deployment", "if self.lives[name].state is not QueryState.FAILED", "if True"),
    Mutant(
        "I15",
        "deployment",
        "return failed and self._is_current(query) and not self.skips.pending(query)",
        "return failed",
    ),
    Mutant("I15", "skips", "self.known.add((query, number))", "pass"),
    Mutant("I15", "querying", "return query not in self.deployment.marks", "return False"),
    # -- applications ------------------------------------------------------------------------------
    Mutant("R23", "versions", "if before is None or version.reset:", "if before is None:"),
    Mutant("R23", "deployment", "marks.mark_at(marks.admitted), reset", "marks.last, reset"),
    Mutant(
        "R23",
        "deployment",
        "through = 0 if self.versions.application is None else committed",
        "through = 0",
    ),
    Mutant("R23", "deployment", 'plan.on_change == "keep":', "False:"),
    Mutant(
        "R23",
        "deployment",
        "if not marks.may_have_run(since=self.versions.lineages[plan.name]):",
        "if True:",
    ),
    Mutant(
        "R23",
        "versions",
        "self.carried_on[name] = last_mark(name)",
        "pass",
    ),
    Mutant("R23", "deployment", "self.lives[plan.name].refused(UNDECIDED)", "pass"),
    Mutant("R23", "deployment", "ready = self._is_current(name) and", "ready ="),
    Mutant("R23", "deployment", " if self.changed_at <= committed else ():", ":"),
    Mutant(
        "R23",
        "deployment",
        "if application == self.digest and in_force:",
        "if False:",
    ),
)


if __name__ == "__main__":
    for mutant in MUTANTS:
        found = list(killers(mutant))
        more = f"; and {len(found) - 4} more" if len(found) > 4 else ""
        sys.stdout.write(f"{mutant.name}\n    {'; '.join(found[:4]) or 'SURVIVES'}{more}\n")
