"""Histories with a story in place of random faults."""

from __future__ import annotations

from collections.abc import Callable

from tests.dst.pair.history import PairHistory

STEP_SECONDS, STEPS_MAX = 0.1, 300


class Schedule(PairHistory):
    def wait_until(self, reached: Callable[[], bool], what: str) -> None:
        for _ in range(STEPS_MAX):
            if reached():
                return
            self.wait(STEP_SECONDS)
        self.require(False, f"the schedule does not reach: {what}")

    def both_are_in_sync(self) -> bool:
        row = self.database.table.row
        return row is not None and len(row.in_sync) == 2


class RejoinWithoutDatabase(Schedule):
    """A member with an empty disk loses the database before the active tells it to restore.

    1. The member reads a lease row that does not list it. 2. Its next read has no answer. 3. The
    active names a snapshot to restore. The row may list the member by now, so it must not replace
    its journal before it reads the row again (RULES.md#r8).
    """

    def trouble(self) -> None:
        self.wait_until(self.both_are_in_sync, "both are in sync")
        self.wait_until(lambda: self.counts["snapshots"] >= 2, "two snapshots")
        holder = self.holder()
        assert holder is not None
        member = self.hosts[holder.peer]
        member.kill(query_process_dies=True)
        member.wipe()
        self.network.block("a", "b")
        self.network.block("b", "a")
        self.wait_until(lambda: self._has_read(member.name), "the member has read the row")
        self.database.unreachable.add(member.name)
        self.wait(2.0)
        self.network.unblock()
        self.wait(3.0)
        self.require(self.counts["restores"] == 0, "the member restores without a current row")

    def _has_read(self, name: str) -> bool:
        process = self.hosts[name].process
        row = None if process is None else self.judge.read.get(process.name)
        return row is not None and name not in [member.node for member in row.in_sync]


class ResetWhileASinkIsAway(Schedule):
    """The active resets a query whose output only the active has.

    1. The sink is away, and the query of the passive does not run. The active takes snapshots and
    trims its journal meanwhile. 2. Both nodes get an application that resets the query. 3. The
    active loses its disk. The passive must make the batches that the sink lacks (RULES.md#r23).
    """

    query = "delays"

    def trouble(self) -> None:
        self.wait_until(self.both_are_in_sync, "both are in sync")
        holder = self.holder()
        assert holder is not None
        passive = self.hosts[holder.peer]
        passive.runs_spark = False
        if passive.spark is not None:
            passive.spark.kill()
        self.wait_until(lambda: self._published >= 2, "two batches are published")
        self.database.sinks_up = False
        snapshots = self.counts["snapshots"]
        self.wait_until(lambda: self.counts["snapshots"] >= snapshots + 2, "two snapshots")
        self.application = self.application.changed(self.query, "reset")
        passive.deploy(self.application)
        self.wait(2.0)
        holder.deploy(self.application)
        self.wait_until(self._both_changed, "both have the new query")
        self.wait_until(lambda: self.judge.another_has(holder), "the passive has everything")
        passive.runs_spark = True
        holder.kill(query_process_dies=True)
        holder.wipe()

    @property
    def _published(self) -> int:
        return self.database.ledgers[self.query, "board"].batch

    def _both_changed(self) -> bool:
        digest = self.application.definition_of(self.query)
        return self.both_are_in_sync() and all(
            host.process is not None
            and host.process.core.deployment.versions.of[self.query].digest == digest
            for host in self.hosts.values()
        )
