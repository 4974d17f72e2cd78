"""The database for a node: calls are lost, slow, answered late or never."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ha_engine.core import HighWater
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.types import DatabaseIdentity, Holder, LeaseRow
from tests.core.truth import is_forced

if TYPE_CHECKING:
    from tests.sim.group import Group
    from tests.sim.node import SimNode

Request = do.ReadLease | do.CreateLease | do.WriteLease
TIMEOUT = 0.8


class Database:
    """One lease table, reachable or not; a failover begins a new *generation*."""

    def __init__(self, group: Group) -> None:
        self.group, self.random = group, group.random
        self.table = group.around.table
        # ``hangs``: reads get answers, and writes wait for ever, perhaps for a lock.
        self.up, self.hangs = True, False
        self.unreachable: set[str] = set()
        self.generation = 0
        # The rows that pending writes would make.
        self.pending: dict[object, LeaseRow] = {}
        self.late_after = (TIMEOUT, 7.0)
        self.slow = self.loses_replies = self.late = 0.0

    def reaches(self, name: str) -> bool:
        return self.up and name not in self.unreachable

    def ask(self, node: SimNode, request: Request) -> None:
        """Answer within TIMEOUT of the node's clock, or report a timeout to the node."""
        token = object()
        node.waits_for = token
        if not isinstance(request, do.ReadLease):
            row = request.row if isinstance(request, do.CreateLease) else request.wanted
            self.pending[token] = row
        self.group.agenda.after(self._way(), lambda: self._reach(node, request, token))
        node.later(TIMEOUT / node.rate, lambda: self._time_out(node, token))

    def _way(self) -> float:
        slow = self.random.random() < self.slow
        return self.random.uniform(0.3, 1.5) if slow else self.random.uniform(0.001, 0.02)

    def _reach(self, node: SimNode, request: Request, token: object) -> None:
        generation = self.generation
        late = not isinstance(request, do.ReadLease) and self.random.random() < self.late
        if late:
            self.group.count("late writes")
            delay = self.random.uniform(*self.late_after)
            self.group.agenda.after(delay, lambda: self._land(node, request, token, generation))
            return
        self.pending.pop(token, None)
        if self.hangs and not isinstance(request, do.ReadLease):
            return
        if self.reaches(node.node):
            self._effect(node, request, token)

    def _land(self, node: SimNode, request: Request, token: object, generation: int) -> None:
        """Apply a request whose caller no longer waits, unless its server is lost."""
        self.pending.pop(token, None)
        if generation == self.generation and self.up:
            self._carry_out(node, request)

    def _effect(self, node: SimNode, request: Request, token: object) -> None:
        answer = self._carry_out(node, request)
        if self.random.random() < self.loses_replies:
            return
        self.group.agenda.after(
            self._way(), lambda: self._answer(node, token, self._as_now(answer))
        )

    def _as_now(self, answer: on.Input) -> on.Input:
        """Return the answer with the present identity, which is read after the write; a failover
        may come between."""
        if isinstance(answer, on.LeaseWritten):
            return replace(answer, identity=self.table.identity)
        return answer

    def _carry_out(self, node: SimNode, request: Request) -> on.Input:
        before = self.table.row
        answer = node.carry_out(request)
        after = self.table.row
        if after is not before and after is not None:
            self.group.facts.row_written(node, before, after, forced=is_forced(request))
        return answer

    def _answer(self, node: SimNode, token: object, answer: on.Input) -> None:
        if self.reaches(node.node) and node.alive:
            node.now_or_run(lambda: self._give(node, token, answer))

    def _time_out(self, node: SimNode, token: object) -> None:
        self._give(node, token, on.DatabaseUnreachable("no answer in time"))

    def _give(self, node: SimNode, token: object, answer: on.Input) -> None:
        if node.waits_for is token:
            node.waits_for = None
            node.answered(answer)

    # -- faults ------------------------------------------------------------------------------------

    def fail_over(self, writes_lost: int) -> None:
        """Fail over to a standby that lacks the newest writes, on a new timeline (RULES.md#i13)."""
        self.generation += 1
        system, timeline = self.table.identity.system_identifier, self.table.identity.timeline
        self.table.identity = DatabaseIdentity(system, f"{int(timeline, 16) + 1:08X}")
        branch = self.group.facts.branch
        del branch[max(1, len(branch) - writes_lost) :]
        self.group.archive.lose(min(writes_lost, 2))
        if branch:
            self.table.row, self.table.changed_at = branch[-1], self.group.now
        self.group.facts.failed_over()

    def release(self, dead: tuple[str, str]) -> None:
        """Release the lease as the supervisor of a certainly dead node process (RULES.md#r3)."""
        kept = self.group.nodes[dead[0]].disk.high_water or HighWater()
        free = kept.released_row(self.table.row, Holder(*dead), self.table.identity)
        if free is not None and self.reaches(dead[0]):
            self.put(free)
            self.group.count("supervisor releases")

    def pause(self, paused: bool) -> None:
        row = self.table.row
        if row is not None and self.up and row.paused != paused:
            self.put(replace(row, version=row.version + 1, paused=paused))

    def put(self, row: LeaseRow) -> None:
        before = self.table.row
        self.table.put(self.group.now, row)
        self.group.facts.row_written(None, before, row)
        self.group.tell("database", row)
