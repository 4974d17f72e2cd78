"""The state of this node's own journal: its positions, never its records."""

from __future__ import annotations

from ha_engine.core import actions as do
from ha_engine.core.base import base_of
from ha_engine.core.deployment import Deployment
from ha_engine.types import ORIGIN, Base, Body, EpochStart, History, Position, Record


class JournalState:
    """The positions of the journal, for which committed <= durable <= last (RULES.md#i5,
    RULES.md#i8).

    No position of the journal ever falls while the process runs.
    """

    def __init__(self, deployment: Deployment, node: str = "") -> None:
        """``node`` is the name of the node that owns the journal."""
        self._deployment, self._node = deployment, node
        # The node that wrote the records of the last epoch.
        self._writer: str | None = None
        # The first position of each epoch in the journal, from which the common prefix with another
        # journal follows (RULES.md#i8).
        self.epochs: tuple[Position, ...] = ()
        # The positions of the epoch records of forced failovers. Each forced failover gave up the
        # records that other nodes had committed from that position on (RULES.md#r26).
        self._forced: tuple[Position, ...] = ()
        # The position of the base, up to which the records are trimmed.
        self.base: Position = ORIGIN
        self.last: Position = ORIGIN
        self.durable = 0
        self.committed = 0

    def load_base(self, base: Base) -> None:
        """Load the base, which replaces the trimmed records. All trimmed records were committed."""
        self.base = self.last = base.position
        self.epochs, self._forced = base.epochs, base.forced
        self.durable = self.committed = base.position.sequence
        self._deployment.load_base(base)

    def as_base(self) -> Base:
        """A base that can replace all records so far, which must be committed and needed by no
        query."""
        return base_of(self._deployment, Base(self.last, self.epochs, self._forced))

    def trimmed(self, position: Position) -> None:
        """Note that the records up to ``position`` are trimmed."""
        self.base = max(self.base, position)
        self._deployment.forget_through(position.sequence)

    def replay(self, record: Record) -> None:
        """Replay one record that the journal has when the node starts.

        The caller replays the records in their order.
        """
        self.apply(record)
        self.durable = record.position.sequence
        self.committed = max(self.committed, record.committed)

    def apply(self, record: Record) -> None:
        """Apply one record. No other method changes the core's state from a record, at start or at
        run time."""
        if record.position.epoch > self.last.epoch:
            self.epochs += (record.position,)
        if isinstance(record.body, EpochStart):
            self._writer = record.body.node
            self._forced += (record.position,) if record.body.forced else ()
        self.last = record.position
        self._deployment.apply(record, mine=self._writer == self._node)

    def position_at(self, sequence: int) -> Position:
        """The position of the record ``sequence``, which must not be before the base."""
        epoch = max((s.epoch for s in self.epochs if s.sequence <= sequence), default=0)
        return Position(epoch, sequence)

    @property
    def committed_position(self) -> Position:
        """The position of the last committed record."""
        return self.position_at(self.committed)

    def has(self, position: Position) -> bool:
        """Whether the record at ``position`` belongs to this journal, even if it is trimmed."""
        return position <= self.last and self.position_at(position.sequence) == position

    @property
    def history(self) -> History:
        """The history of this journal, from the base to the end."""
        return History(self.base, self.epochs, self.last)

    def is_forced(self, epoch: int) -> bool:
        return any(start.epoch == epoch for start in self._forced)

    def forced_after(self, position: Position) -> bool:
        return any(position < start for start in self._forced)

    def next_position(self, epoch: int) -> Position:
        """The position of the next record that ``append`` writes under ``epoch``."""
        return Position(epoch, self.last.sequence + 1)

    def append(self, epoch: int, body: Body, payload: bytes = b"") -> do.Action:
        record = Record(self.next_position(epoch), self.committed, body, payload)
        self.apply(record)
        return do.AppendRecords((record,))

    def commit(self, sequence: int) -> None:
        """Note that the records up to ``sequence`` are committed; ``committed`` never falls."""
        self.committed = max(self.committed, sequence)

    def note_durable(self, sequence: int) -> bool:
        """Note that the records up to ``sequence`` are durable.

        Return True if more records are durable than before.
        """
        more = sequence > self.durable
        self.durable = max(self.durable, sequence)
        return more
