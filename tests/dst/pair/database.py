"""The database of the group: the lease row, the sinks with their ledgers, and the snapshots.

Calls are lost, answered late, or take effect after their caller has given up. A failover of the
database loses the newest commits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from ha_engine.errors import DatabaseUnreachable, Fenced, SinkRefused, SinkUnavailable
from ha_engine.outbox import OutboxBatch
from ha_engine.outbox.batch_file import read_batch_file
from ha_engine.postgres.ledger import require_has
from ha_engine.publish import Deadline
from ha_engine.types import DatabaseIdentity, Holder, LeaseRow
from tests.core.surroundings import LeaseTable
from tests.dst.revisions import Revisions

if TYPE_CHECKING:
    from tests.dst.pair.history import PairHistory
    from tests.dst.pair.host import Host
    from tests.dst.pair.process import NodeProcess

T = TypeVar("T")
DB_TIMEOUT = 0.6
LATE_SECONDS = (0.6, 5.0)
SINK_SECONDS_MAX = 1.0

Row = tuple[int, int, str]
"""An output row: the number of an event, how many events its query has had with it, and the lineage
of the state that made it."""


@dataclass
class Ledger:
    """The ledger row of one sink, with the epoch and the rows of each batch in the sink.

    ``commits`` are the ledger rows that were committed, the newest last. ``lost`` is the
    longest content before a loss of commits.
    """

    epoch: int = 0
    batch: int = 0
    exists: bool = False
    batches: dict[int, tuple[int, list[Row]]] = field(default_factory=dict)
    commits: list[tuple[int, int, bool]] = field(default_factory=lambda: [(0, 0, False)])
    lost: tuple[int, int, dict[int, tuple[int, list[Row]]]] | None = None

    def commit(self) -> None:
        self.commits.append((self.epoch, self.batch, self.exists))

    def lose(self, count: int) -> None:
        """Lose the last commits, but not the creation of the ledger row. An operator can bring them
        back."""
        if self.lost is None or self.lost[1] < self.batch:
            self.lost = self.epoch, self.batch, dict(self.batches)
        del self.commits[max(2, len(self.commits) - count) :]
        self.epoch, self.batch, self.exists = self.commits[-1]
        for number in [one for one in self.batches if one > self.batch]:
            del self.batches[number]

    def bring_back(self) -> None:
        """Restore the ledger and its rows as they were before the loss."""
        if self.lost is None:
            return
        epoch, batch, batches = self.lost
        self.lost = None
        if batch > self.batch:
            self.epoch, self.batch, self.batches = max(epoch, self.epoch), batch, batches
            self.exists = True
            self.commit()


class Caller(Protocol):
    """A process that calls the database. ``by_node`` is true for a node process."""

    @property
    def host(self) -> Host: ...
    @property
    def by_node(self) -> bool: ...
    def charge(self, seconds: float) -> None:
        """Let the present call take ``seconds``."""


class Database:
    def __init__(self, history: PairHistory) -> None:
        self.history, self.random = history, Random(history.random.random())
        self.table = LeaseTable()
        self.ledgers = {key: Ledger() for key in history.sinks}
        self.revisions = Revisions(self.random, self._group_id, self._holds)
        self.up = self.sinks_up = True
        self.unreachable: set[str] = set()
        self.loses_replies = self.late = self.slow = self.sink_failures = 0.0
        self._generation = 0
        # The rows that writes may still make, whose callers have given up.
        self.pending: list[LeaseRow] = []
        # The rows of the database's present timeline.
        self.branch: list[LeaseRow] = []

    def reaches(self, host: str) -> bool:
        return self.up and host not in self.unreachable

    def call(self, caller: Caller, effect: Callable[[], T], *, row: LeaseRow | None) -> T:
        """Carry out a call of a node. ``row`` is what a write of the lease row would leave."""
        random, timeout = self.random, DB_TIMEOUT * 1.1
        if not self.reaches(caller.host.name):
            caller.charge(timeout if random.random() < 0.7 else 0.0)
            raise DatabaseUnreachable("the database does not answer")
        if row is not None and random.random() < self.late:
            self._later(effect, row)
            caller.charge(timeout)
            raise DatabaseUnreachable("no answer in time")
        answer = effect()
        if random.random() < self.loses_replies:
            self.history.counts["lost replies of the database"] += 1
            caller.charge(timeout if random.random() < 0.5 else 0.0)
            raise DatabaseUnreachable("the connection broke")
        if random.random() < self.slow:
            caller.charge(random.uniform(0.1, 1.2))
        return answer

    def _later(self, effect: Callable[[], object], row: LeaseRow) -> None:
        generation = self._generation
        self.pending.append(row)

        def land() -> None:
            self.pending.remove(row)
            if generation == self._generation and self.up:
                self.history.counts["late writes of the lease"] += 1
                effect()

        self.history.agenda.after(self.random.uniform(*LATE_SECONDS), land)

    # -- the lease row -----------------------------------------------------------------------------

    def write(self, write: Callable[[], T], *, by_node: bool = False) -> T:
        """Run a write of the lease row, and show the judge its effect."""
        before = self.table.row
        written = write()
        after = self.table.row
        if after is not None and after is not before:
            self.branch.append(after)
            self.history.judge.row_written(before, after, by_node=by_node)
        return written

    def put(self, row: LeaseRow) -> None:
        """Write the row as an operator or a supervisor does."""
        self.write(lambda: self.table.put(self.history.agenda.now, row))

    def pause(self, paused: bool) -> None:
        row = self.table.row
        if row is not None and self.up and row.paused != paused:
            self.put(replace(row, version=row.version + 1, paused=paused))

    def fail_over(self, writes_lost: int, commits_lost: int) -> None:
        """Continue on a standby that lacks the newest commits, on a new timeline."""
        self._generation += 1
        system, timeline = self.table.identity.system_identifier, self.table.identity.timeline
        self.table.identity = DatabaseIdentity(system, f"{int(timeline, 16) + 1:08X}")
        del self.branch[max(1, len(self.branch) - writes_lost) :]
        if self.branch:
            self.table.row = self.branch[-1]
        self.history.counts["revisions lost"] += self.revisions.lose(commits_lost)
        for ledger in self.ledgers.values() if commits_lost else ():
            ledger.lose(commits_lost)
            self.history.counts["ledgers that lost commits"] += 1
        self.history.judge.failed_over()

    # -- snapshots ---------------------------------------------------------------------------------

    def _group_id(self) -> str | None:
        return self.table.row.group_id if self.table.row else None

    def _holds(self, process: Holder, epoch: int) -> bool:
        row = self.table.row
        return row is not None and row.holder == process and row.epoch == epoch


class NodeLeaseStore:
    """The lease store of one node process, or of a supervisor."""

    def __init__(self, database: Database, caller: Caller) -> None:
        self._database, self._caller = database, caller

    def read(self) -> LeaseRow | None:
        table = self._database.table
        return self._database.call(self._caller, lambda: table.row, row=None)

    def identity(self) -> DatabaseIdentity:
        return self._database.table.identity

    def create(self, row: LeaseRow, *, reason: str | None = None) -> LeaseRow | None:
        table = self._database.table
        return self._write(lambda: table.create(self._database.history.agenda.now, row), row)

    def compare_and_set(
        self, expected: LeaseRow, wanted: LeaseRow, *, reason: str | None = None
    ) -> LeaseRow | None:
        table, agenda = self._database.table, self._database.history.agenda
        return self._write(lambda: table.compare_and_set(agenda.now, expected, wanted), wanted)

    def note_outage(self, epoch: int, seconds: float) -> None:
        self._database.call(self._caller, lambda: None, row=None)

    def _write(self, write: Callable[[], LeaseRow | None], row: LeaseRow) -> LeaseRow | None:
        database, caller = self._database, self._caller
        by_node = caller.by_node
        return database.call(caller, lambda: database.write(write, by_node=by_node), row=row)


class NodeSink:
    """A transactional sink, as one node process calls it."""

    dead_letters = 0

    def __init__(self, database: Database, process: NodeProcess, query: str, name: str) -> None:
        self.name, self._query = name, query
        self._database, self._process = database, process
        self._ledger = database.ledgers[query, name]

    def prepare(self, schema: pa.Schema) -> None:
        """Accept every schema."""

    def close(self) -> None:
        """Keep no connection."""

    def claim(self, epoch: int, start_after: int, group_id: str, deadline: Deadline) -> int:
        self._call(epoch, deadline, lambda: self._claim(epoch, start_after))
        return self._ledger.batch

    def publish(self, number: int, batch: OutboxBatch, epoch: int, deadline: Deadline) -> None:
        table = read_batch_file(batch.path)
        rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        self._call(epoch, deadline, lambda: self._take(number, rows, epoch))

    def _call(self, epoch: int, deadline: Deadline, effect: Callable[[], None]) -> None:
        database, random = self._database, self._database.random
        database.history.judge.calls_sink(self._process, epoch)
        reaches = database.sinks_up and database.reaches(self._process.host.name)
        if not reaches or deadline.remaining_seconds() <= 0:
            raise SinkUnavailable("the sink does not answer")
        if random.random() < 0.1:
            self._process.charge(random.uniform(0, SINK_SECONDS_MAX))
        if random.random() < database.sink_failures:
            database.history.counts["calls of a sink without an answer"] += 1
            if random.random() < 0.5:
                delay = random.uniform(0, 4.0)
                database.history.agenda.after(delay, lambda: self._land(effect))
            raise SinkUnavailable("the connection broke")
        effect()

    def _land(self, effect: Callable[[], None]) -> None:
        """Carry out a call whose caller no longer waits."""
        self._database.history.counts["late calls of a sink"] += 1
        try:
            effect()
        except (Fenced, SinkRefused, SinkUnavailable):
            self._database.history.counts["late calls of a sink refused"] += 1

    def _claim(self, epoch: int, start_after: int) -> None:
        ledger = self._ledger
        if epoch < ledger.epoch:
            raise Fenced(ledger.epoch, self.name)
        if not ledger.exists:
            ledger.exists, ledger.batch = True, start_after
        ledger.epoch = epoch
        ledger.commit()

    def _take(self, number: int, rows: list[Row], epoch: int) -> None:
        ledger, history = self._ledger, self._database.history
        if (ledger.epoch, ledger.batch) != (epoch, number - 1):
            if ledger.epoch == epoch and ledger.batch < number - 1:
                history.counts["gaps in a ledger"] += 1
            require_has(ledger.epoch, ledger.batch, epoch, number, self.name)
            history.counts["batches sent again"] += 1
            return
        history.judge.published(self._query, number, epoch, rows)
        ledger.batch = number
        ledger.batches[number] = epoch, rows
        ledger.commit()
