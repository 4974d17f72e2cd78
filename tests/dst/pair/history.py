"""One history of two nodes: a seed's faults, then everything heals and all must be published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ha_engine.core import QueryState
from ha_engine.core import inputs as on
from ha_engine.publish import SinkState, SinkStatus
from ha_engine.types import Member, Role
from tests.dst.history import History, Refused
from tests.dst.pair.database import Database, Row
from tests.dst.pair.faults import FAULT_SECONDS, Faults
from tests.dst.pair.group import PLANS, TIMING, Application
from tests.dst.pair.host import BATCH_SECONDS, Host
from tests.dst.pair.judge import Judge
from tests.dst.pair.network import Network
from tests.dst.pair.producers import Producers
from tests.sim.transcript import sentence

HEALED_WITHIN = 60.0
OPERATOR_AFTER = 4 * TIMING.ttl


class PairHistory(History):
    """``unpowered`` are the hosts without power."""

    first_application = Application()
    shares_checkpoints = False

    def __init__(self, seed: int, root: Path) -> None:
        super().__init__(seed, root)
        self.events: list[tuple[float, str, object]] = []
        self._names: dict[str, str] = {}
        self.unpowered: set[str] = set()
        self.sinks = [(plan.name, sink) for plan in PLANS for sink in plan.sinks]
        self.restart_within = 2.0
        # The newest application file, which each host gets sooner or later.
        self.application = self.first_application
        self.hosts: dict[str, Host] = {}
        self.judge = Judge(self)
        self.network, self.database = Network(self), Database(self)
        self.hosts |= {name: Host(self, name, peer) for name, peer in ("ab", "ba")}
        self.producers = Producers(self)
        self.faults = Faults(self)

    # -- the transcript ----------------------------------------------------------------------------

    def note(self, who: str, what: object) -> None:
        self.events.append((self.agenda.now, who, what))

    def tell(self, text: str) -> None:
        self.note("", text)

    def name_journal(self, journal_id: str, host: str) -> None:
        """Show a journal in the transcript by its host and a number."""
        if journal_id not in self._names:
            self._names[journal_id] = f"{host}-journal-{len(self._names)}"

    def transcript(self) -> str:
        lines = (
            f"{when:8.3f}  {who:<9} {text}"
            for when, who, what in self.events
            if (text := sentence(what))
        )
        story = "\n".join(lines).replace(str(self.root), "")
        for journal_id, name in self._names.items():
            story = story.replace(journal_id, name)
        return story

    # -- the history -------------------------------------------------------------------------------

    def play(self) -> None:
        try:
            for host in self.hosts.values():
                self.agenda.after(self.random.uniform(0, 1), host.start)
            self.trouble()
            self._heal()
        finally:
            self._end()

    def trouble(self) -> None:
        """Let faults happen."""
        self.faults.begin()
        self.wait(self.random.uniform(0.6, 1.2) * FAULT_SECONDS)
        self.faults.over = True

    def wait(self, seconds: float) -> None:
        """Wait in steps, so that a broken rule ends the history soon."""
        end = self.agenda.now + seconds
        while self.agenda.now < end:
            super().wait(min(0.5, end - self.agenda.now))

    def _end(self) -> None:
        for host in self.hosts.values():
            for process in (host.process, host.spark):
                if process is not None:
                    process.dead = True
                    process.loop.kill()
                    with suppress(Exception):
                        process.loop.dispose()
            if host.process is not None:
                host.process.close()

    def holder(self) -> Host | None:
        """The host of the living process that holds the lease."""
        row = self.database.table.row
        if row is None or row.holder is None:
            return None
        host = self.hosts[row.holder.node]
        return host if host.process is not None and host.process.me == row.holder else None

    # -- healing -----------------------------------------------------------------------------------

    def _heal(self) -> None:
        """End every fault; operators do what the documentation asks, and nothing more."""
        self._end_faults()
        began = self.agenda.now
        while self.agenda.now < began + HEALED_WITHIN:
            self.wait(0.5)
            self._act_as_operator(self.agenda.now - began)
            if self.agenda.now > began + 1.5:
                self.producers.sending = False
            if self._unsettled() is None:
                break
        reason = self._unsettled()
        self.require(reason is None, f"liveness: not healed: {reason}")
        self._require_events()
        self._require_equal_journals()
        self.counts["histories"] += 1

    def _end_faults(self) -> None:
        self.note("fault", "everything is healed")
        network, database = self.network, self.database
        network.delay_max, self.restart_within = 0.02, 0.5
        network.unblock()
        database.up = database.sinks_up = True
        database.slow = database.loses_replies = database.late = database.sink_failures = 0.0
        database.unreachable.clear()
        database.pause(False)
        self.producers.loses_acks = 0.0
        for host in self.hosts.values():
            host.be_full(False)
            host.resume()
            host.start_faults = 0.0
            if host.process is not None:
                host.process.files.plan_no_fault()
                host.be_slow(0.0)
            host.deploy(self.application)
            host.batch_seconds = BATCH_SECONDS
            if host.name in self.unpowered:
                host.get_power()

    def _act_as_operator(self, seconds: float) -> None:
        for host in self.hosts.values():
            if host.refused is not None and seconds > OPERATOR_AFTER:
                self._give_up(host)
        if seconds > OPERATOR_AFTER:
            self._give_up_lost_state(seconds)
            self._renew_snapshot()
        for host in self.hosts.values():
            lives = host.process.core.deployment.lives if host.process is not None else {}
            for query, life in lives.items():
                if life.state is QueryState.FAILED and host.process is not None:
                    self.counts["queries given up"] += 1
                    host.process.feed(on.RetryAsked(query))
            if host.process is not None:
                self._mend_sinks(host.process.publisher.status())
        if self.judge.regressed and seconds > OPERATOR_AFTER:
            self._repair_row()

    def _give_up(self, host: Host) -> None:
        """End a history in which the only journal with all records cannot be read.

        A disk that reorders writes may leave a hole before records that were never durable.
        """
        self.require(host.disk.has_holes, f"{host.name} refuses its data: {host.refused}")
        raise Refused(f"{host.name} has the only journal: {host.refused}")

    def _give_up_lost_state(self, seconds: float) -> None:
        """Reset a query of which a change kept a state that no snapshot has. End a history in which
        no snapshot can be restored, and the active lost another checkpoint."""
        holder = self.holder()
        lost = holder.lost_states if holder else set[str]()
        kept = {plan.name for plan in self.application.plans if plan.on_change == "keep"}
        if seconds > 2 * OPERATOR_AFTER and (queries := sorted(lost & kept)):
            self._reset(queries[0])
        revisions = self.database.revisions
        if lost - kept and all(revisions.is_damaged(number) for number in revisions.visible):
            told = f"only a snapshot has the state of {', '.join(sorted(lost - kept))}"
            snapshots_faulty = self.counts["revisions lost"] or revisions.visible
            # Only the active has the state of a warm query, so a takeover needs a snapshot of it.
            warm = {plan.name for plan in self.application.plans if plan.warm}
            checkpoints_faulty = (
                lost <= warm or self.counts["power losses"] or self.counts["fault: lose_checkpoint"]
            )
            self.require(bool(snapshots_faulty and checkpoints_faulty), told)
            raise Refused(told)

    def _renew_snapshot(self) -> None:
        """Take a snapshot on the active if the other node lacks the state of a query and a kept
        snapshot is damaged, as that node's log advises."""
        holder, revisions = self.holder(), self.database.revisions
        lacking = any(host.lost_states for host in self.hosts.values() if host is not holder)
        damaged = any(revisions.is_damaged(number) for number in revisions.visible)
        if holder is not None and holder.process is not None and lacking and damaged:
            self.counts["snapshots renewed"] += 1
            holder.process.feed(on.SnapshotAsked())

    def _reset(self, query: str) -> None:
        """Let a query begin with an empty state, as the reason of its failure advises."""
        self.counts["queries reset"] += 1
        self.application = self.application.changed(query, "reset")
        for host in self.hosts.values():
            host.deploy(self.application)

    def _mend_sinks(self, sinks: Iterable[SinkStatus]) -> None:
        """Bring back the commits of a sink whose node says that they are lost."""
        for status in sinks:
            if status.state is SinkState.REFUSED:
                self.counts["sinks restored"] += 1
                self.database.ledgers[status.query, status.sink].bring_back()

    def _repair_row(self) -> None:
        """No node may rewrite a row of a lost branch (RULES.md#r5). Stop all nodes, then write the
        newest row by hand, with a version above any that a node has read."""
        self.counts["operator repairs"] += 1
        newest, table = self.judge.newest, self.database.table
        assert newest is not None
        read = [newest.version, table.row.version if table.row else 0]
        for host in self.hosts.values():
            if host.process is not None:
                read.append(host.process.core.lease.high_water.version)
            host.kill(query_process_dies=True)
        row = replace(
            newest,
            holder=None,
            successor=None,
            version=max(read) + 1,
            identity=table.identity,
            paused=False,
        )
        self.database.put(row)
        self.judge.mended(row)

    def _unsettled(self) -> str | None:
        """The reason why the group is not settled, or None."""
        row, processes = self.database.table.row, [host.process for host in self.hosts.values()]
        cores = [process.core for process in processes if process is not None and process.serves]
        active = [core.identity.node for core in cores if core.role is Role.ACTIVE]
        if len(active) != 1 or row is None or row.holder is None or row.holder.node != active[0]:
            return f"active: {active}"
        members = {Member(core.identity.node, core.identity.journal_id) for core in cores}
        if len(members) != 2 or members != set(row.in_sync):
            return f"in sync: {row.in_sync}"
        if not self.producers.all_acked:
            return "producers wait for acks"
        return next(self._unpublished(), None)

    def _unpublished(self) -> Iterator[str]:
        for plan in self.application.plans:
            events = sum(len(self.producers.sent[stream]) for stream in plan.streams)
            for sink in plan.sinks:
                ledger = self.database.ledgers[plan.name, sink]
                rows = sum(len(rows) for _, rows in ledger.batches.values())
                if rows < events:
                    yield f"{sink} has {rows} of {events} events of {plan.name}"
                for host in self.hosts.values():
                    assert host.process is not None
                    runs = not plan.warm or host.process.core.role is Role.ACTIVE
                    if runs and host.process.outbox.last_admitted(plan.name) < ledger.batch:
                        yield f"{plan.name} is behind on {host.name}"

    def _require_events(self) -> None:
        """C1, C4, P2: each sink has each event once, in contiguous batches."""
        for plan in PLANS:
            sent = [n for stream in plan.streams for n in self.producers.sent[stream]]
            for sink in plan.sinks:
                batches = self.database.ledgers[plan.name, sink].batches
                numbers = sorted(batches)
                self.require(
                    numbers == list(range(1, len(numbers) + 1)), f"P2: {sink} has {numbers}"
                )
                rows = [row for number in numbers for row in batches[number][1]]
                found = sorted(n for n, _, _ in rows)
                self.require(found == sorted(sent), f"C1: {sink} has other events of {plan.name}")
                self._require_totals(sink, rows)
                epochs = [batches[number][0] for number in numbers]
                self.require(epochs == sorted(epochs), f"P3: {sink} has epochs {epochs}")

    def _require_totals(self, sink: str, rows: list[Row]) -> None:
        """P2: each row continues the state of the row before, unless its lineage is another."""
        lineage, total = rows[0][2] if rows else "", 0
        for n, found, made_by in rows:
            goes_on = found == total + 1 if made_by == lineage else found > 0
            self.require(goes_on, f"P2: {sink} has total {found} after {total} at event {n}")
            lineage, total = made_by, found

    def _require_equal_journals(self) -> None:
        """C8: the journals are equal up to the end of the shorter one."""
        journals = [host.process.journal for host in self.hosts.values() if host.process]
        first = max(journal.first for journal in journals)
        last = min(journal.last.sequence for journal in journals)
        contents = [
            b"".join(
                Path(one.path).read_bytes()[one.offset : one.offset + one.length]
                for one in journal.locate(first, last)
            )
            for journal in journals
        ]
        self.require(contents[0] == contents[1], "C8: the journals differ")
        self.counts["records compared"] += last - first + 1


class WarmHistory(PairHistory):
    """Only the active runs one of the queries."""

    first_application = Application(plans=(replace(PLANS[0], warm=True), PLANS[1]))


class SharedHistory(WarmHistory):
    """Only the active runs one of the queries, and each node can read the other's checkpoints.

    A loss of a node's disk loses its checkpoints too, as if it were the storage that they share.
    """

    shares_checkpoints = True
