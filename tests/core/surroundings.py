"""The surroundings of a core in the tests: lease row, disk, Spark and sinks, all in memory.

Each part does what its real counterpart guarantees and nothing more; a test requests faults by
name. It neither decides, as the core does, nor checks, as ``truth`` does.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from ha_engine.errors import DatabaseUnreachable, InvariantBroken
from ha_engine.types import (
    Base,
    DatabaseIdentity,
    Deployed,
    Events,
    Holder,
    HolderChange,
    LeaseRow,
    Mark,
    Position,
    Record,
    Skip,
)

IDENTITY = DatabaseIdentity("7000000000000000001", "00000001")
Content = tuple[Position, ...]
QuerySink = tuple[str, str]


@dataclass
class LeaseTable:
    """The group's one row, changed by compare-and-set on (holder, epoch, version) (RULES.md#r1).

    It refuses what the real table's constraints and trigger refuse. ``history`` holds every row
    that was written, ``lines`` the changes of holder or epoch among them.
    """

    row: LeaseRow | None = None
    up: bool = True
    identity: DatabaseIdentity = IDENTITY
    changed_at: float = 0.0
    history: list[LeaseRow] = field(default_factory=list)
    lines: list[HolderChange] = field(default_factory=list)

    def create(self, now: float, row: LeaseRow) -> LeaseRow | None:
        reason = "first row of the group" if row.epoch <= 1 else "the database had lost the row"
        if self.row is not None or row.identity not in (None, self.identity):
            return None
        return self.put(now, row, reason)

    def compare_and_set(
        self, now: float, expected: LeaseRow, wanted: LeaseRow, reason: str | None = None
    ) -> LeaseRow | None:
        is_row, expects = self.row, expected
        same = is_row is not None and (is_row.holder, is_row.epoch, is_row.version) == (
            expects.holder,
            expects.epoch,
            expects.version,
        )
        if not same or wanted.identity not in (None, self.identity):
            return None
        _require_legal(expected, wanted)
        return self.put(now, replace(wanted, version=expected.version + 1), reason)

    def put(self, now: float, row: LeaseRow, reason: str | None = None) -> LeaseRow:
        before, self.row, self.changed_at = self.row, row, now
        self.history.append(row)
        previous, epoch = (before.holder, before.epoch) if before else (None, row.epoch)
        if (row.holder, row.epoch) != (previous, epoch):
            at = datetime.fromtimestamp(now, UTC)
            line = HolderChange(at, row.epoch, row.version, row.holder, previous, reason)
            self.lines.append(line)
        return row

    @property
    def highest(self) -> tuple[int, int]:
        return max(((row.epoch, row.version) for row in self.history), default=(0, 0))


def _require_legal(before: LeaseRow, after: LeaseRow) -> None:
    if after.epoch < before.epoch:
        raise InvariantBroken(f"the lease would fall from epoch {before.epoch} to {after.epoch}")
    if after.epoch == before.epoch and after.holder not in (None, before.holder):
        raise InvariantBroken(f"epoch {after.epoch} would have a second holder")
    if after.holder and after.holder.node not in {member.node for member in after.in_sync}:
        raise InvariantBroken("lease_holder_is_in_sync")


class TableStore:
    """A LeaseTable behind the calls of the real store; stores that share ``turn`` share it."""

    def __init__(
        self, table: LeaseTable, turn: threading.Lock, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._table, self._turn, self._clock = table, turn, clock

    def read(self) -> LeaseRow | None:
        with self._reached() as table:
            return table.row

    def identity(self) -> DatabaseIdentity:
        with self._reached():
            return IDENTITY

    def create(self, row: LeaseRow) -> LeaseRow | None:
        with self._reached() as table:
            return table.create(self._clock(), row)

    def compare_and_set(
        self, expected: LeaseRow, wanted: LeaseRow, *, reason: str | None = None
    ) -> LeaseRow | None:
        with self._reached() as table:
            return table.compare_and_set(self._clock(), expected, wanted, reason)

    def history(self, limit: int = 20) -> list[HolderChange]:
        with self._reached() as table:
            return table.lines[::-1][:limit]

    def note_outage(self, epoch: int, seconds: float) -> None:
        with self._reached() as table:
            mine = [n for n, line in enumerate(table.lines) if line.epoch == epoch and line.holder]
            for number in mine[-1:]:
                table.lines[number] = replace(table.lines[number], outage_seconds=seconds)

    @contextmanager
    def _reached(self) -> Iterator[LeaseTable]:
        with self._turn:
            if not self._table.up:
                raise DatabaseUnreachable("the database is down")
            yield self._table


@dataclass
class Disk:
    """Journal, outbox, checkpoints, high water and identity of one node; survives its processes.

    ``records[:durable]`` survive for certain, the others as far as a crash leaves them.
    ``outbox[query][n]`` is the batch's content: the positions of its events; ``admitted[query]`` is
    the highest number that was ever in it, ``trimmed[query]`` the highest that left it. Only the
    tests see the records up to ``base``: the node has trimmed them. If this is an earlier image of
    a disk, ``once_had`` is how many records the disk had before the image came back, and
    ``seen_by`` are the holders that have been told where its journal ends. ``deployed`` is the
    deployment with which the next process starts. ``made_by[query, n]`` says which code made the
    batch in the outbox, and from which state. ``published`` has the newest batches that left the
    outbox, for observers.
    """

    journal_id: str = "j1"
    group_id: str | None = None
    records: list[Record] = field(default_factory=list)
    durable: int = 0
    base: Base = field(default_factory=Base)
    outbox: dict[str, dict[int, Content]] = field(default_factory=dict)
    admitted: dict[str, int] = field(default_factory=dict)
    trimmed: dict[str, int] = field(default_factory=dict)
    outbox_rows: dict[tuple[str, int], int] = field(default_factory=dict)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    high_water: object = None
    once_had: int = 0
    seen_by: set[Holder] = field(default_factory=set)
    deployed: Deployed | None = None
    made_by: dict[tuple[str, int], str] = field(default_factory=dict)
    published: dict[str, dict[int, Content]] = field(default_factory=dict)

    @property
    def last(self) -> Position:
        return self.records[-1].position if self.records else self.base.position

    def content(self, streams: frozenset[str], after: int, through: int) -> Content:
        """Return the events of a batch, named by the positions of their records."""
        return tuple(
            record.position
            for record in self.records[after:through]
            if isinstance(record.body, Events) and record.body.stream in streams
        )

    def lose_tail(self, kept: int) -> None:
        """Crash; of the records without fsync, ``kept`` happen to survive."""
        del self.records[self.durable + kept :]
        self.durable = len(self.records)

    def has_durable_skip(self, query: str, number: int) -> bool:
        return any(
            isinstance(record.body, Skip)
            and (record.body.query, record.body.number) == (query, number)
            for record in self.records[: self.durable]
        )


PAST_KEPT = 50


@dataclass
class Checkpoint:
    """Spark's checkpoint of one query: the last batch done, and the offsets of one begun.

    ``epoch`` is that of the active for which Spark writes it, if only the active runs the query.
    ``past`` has the last batches done, each with the position of its mark's record in the journal
    of the node that ran it. ``made_by`` names the code that made the state, and the mark
    after which it began.
    """

    lineage: str
    done: Mark
    begun: Mark | None = None
    epoch: int = 0
    past: dict[int, tuple[Mark, Position]] = field(default_factory=dict)
    made_by: str = ""

    def end_batch(self, position: Position) -> None:
        """End the batch that was begun, whose mark is at ``position``."""
        assert self.begun is not None
        self.done, self.begun = self.begun, None
        self.past[self.done.number] = self.done, position
        self.past.pop(self.done.number - PAST_KEPT, None)


@dataclass
class RunningQuery:
    """A query of the living query process; its sources poll one after the other (RULES.md#r18)."""

    lineage: str
    checkpoint: Checkpoint
    sources: int
    partitions: tuple[tuple[int, int], ...] = ()
    answers: list[Mark] = field(default_factory=list)

    @property
    def polls(self) -> bool:
        return self.checkpoint.begun is None


@dataclass
class Spark:
    """One incarnation of the query process."""

    incarnation: str
    attended: bool = False
    running: dict[str, RunningQuery] = field(default_factory=dict)


@dataclass
class Ledger:
    """A sink's row for one query: epoch and batch move together with the rows (RULES.md#r24)."""

    epoch: int = 0
    batch: int = 0

    @property
    def is_new(self) -> bool:
        return (self.epoch, self.batch) == (0, 0)


@dataclass
class Surroundings:
    """The state that the nodes of one group share: lease row, sinks, and content of each batch.

    ``batches[query][n]`` is the content of batch n on whichever node ran it first (RULES.md#i6).
    ``partitions[query][n]`` is the number of state partitions with which that node ran it.
    """

    table: LeaseTable = field(default_factory=LeaseTable)
    ledgers: dict[QuerySink, Ledger] = field(default_factory=lambda: defaultdict(Ledger))
    batches: dict[str, dict[int, Content]] = field(default_factory=dict)
    partitions: dict[str, dict[int, int]] = field(default_factory=dict)
    given_up: dict[str, set[Position]] = field(default_factory=dict)
