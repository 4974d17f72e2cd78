"""What stands around a core in the tests: lease row, disk, Spark and sinks, all in memory.

Each part does what its real counterpart promises and nothing more; faults are asked for by name.
Not for deciding or checking: that is the core's, and ``truth``'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ha_engine.types import DatabaseIdentity, Events, LeaseRow, Mark, Record, Skip

IDENTITY = DatabaseIdentity("7000000000000000001", "00000001")


@dataclass
class LeaseTable:
    """The group's one row, changed by compare-and-set on (holder, epoch, version) (R1)."""

    row: LeaseRow | None = None
    up: bool = True
    changed_at: float = 0.0
    history: list[LeaseRow] = field(default_factory=list)

    def create(self, now: float, row: LeaseRow) -> LeaseRow | None:
        return None if self.row is not None else self.put(now, row)

    def compare_and_set(self, now: float, expected: LeaseRow, wanted: LeaseRow) -> LeaseRow | None:
        is_row, expects = self.row, expected
        same = is_row is not None and (is_row.holder, is_row.epoch, is_row.version) == (
            expects.holder,
            expects.epoch,
            expects.version,
        )
        return self.put(now, replace(wanted, version=expected.version + 1)) if same else None

    def put(self, now: float, row: LeaseRow) -> LeaseRow:
        self.row, self.changed_at = row, now
        self.history.append(row)
        return row

    @property
    def highest(self) -> tuple[int, int]:
        return max(((row.epoch, row.version) for row in self.history), default=(0, 0))


@dataclass
class Disk:
    """Journal, outbox, checkpoints, high water and identity of one node; survives its processes.

    ``records[:durable]`` survive for certain, the others as far as a crash leaves them.
    ``outbox[query][n]`` is the batch's content: the sequences of its events.
    """

    journal_id: str = "j1"
    group_id: str | None = None
    records: list[Record] = field(default_factory=list)
    durable: int = 0
    outbox: dict[str, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    outbox_rows: dict[tuple[str, int], int] = field(default_factory=dict)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    high_water: object = None

    def content(self, streams: frozenset[str], after: int, through: int) -> tuple[int, ...]:
        """The events of a batch, named by the sequences of their records."""
        return tuple(
            record.position.sequence
            for record in self.records[after:through]
            if isinstance(record.body, Events) and record.body.stream in streams
        )

    def lose_tail(self, kept: int) -> None:
        """A crash: of what was not yet fsynced, ``kept`` records happen to be there."""
        del self.records[self.durable + kept :]
        self.durable = len(self.records)

    def has_durable_skip(self, query: str, number: int) -> bool:
        return any(
            isinstance(record.body, Skip)
            and (record.body.query, record.body.number) == (query, number)
            for record in self.records[: self.durable]
        )


@dataclass
class Checkpoint:
    """Spark's checkpoint of one query: the last batch done, and the offsets of one begun."""

    lineage: str
    done: Mark
    begun: Mark | None = None


@dataclass
class RunningQuery:
    """A query of the living query process; its sources are asked one after the other (R18)."""

    lineage: str
    checkpoint: Checkpoint
    sources: int
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
    """A sink's row for one query: epoch and batch move together with the rows (R24)."""

    epoch: int = 0
    batch: int = 0

    @property
    def is_new(self) -> bool:
        return (self.epoch, self.batch) == (0, 0)
