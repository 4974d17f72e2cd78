"""How far this node's own journal is. It holds positions, never records."""

from __future__ import annotations

from ha_engine.core import actions as do
from ha_engine.core.base import base_of
from ha_engine.core.deployment import Deployment
from ha_engine.types import ORIGIN, Base, Body, EpochStart, History, Position, Record


class JournalState:
    """RULES.md#i5, RULES.md#i8: committed <= durable <= last, and none of them ever falls within a
    process."""

    def __init__(self, deployment: Deployment, node: str = "") -> None:
        """``node``: whose it is."""
        self._deployment, self._node = deployment, node
        # Who wrote the records since the last epoch began.
        self._writer: str | None = None
        # Where each epoch in the journal begins; tells how much of it another one shares
        # (RULES.md#i8).
        self.epochs: tuple[Position, ...] = ()
        # Where an operator forced a failover: what others had committed there is given up
        # (RULES.md#r26).
        self._forced: tuple[Position, ...] = ()
        # Up to there records are no longer kept.
        self.base: Position = ORIGIN
        self.last: Position = ORIGIN
        self.durable = 0
        self.committed = 0

    def stand_on(self, base: Base) -> None:
        """What the records said that are no longer there; all of them were committed."""
        self.base = self.last = base.position
        self.epochs, self._forced = base.epochs, base.forced
        self.durable = self.committed = base.position.sequence
        self._deployment.stand_on(base)

    def as_base(self) -> Base:
        """What all records so far have said; they must be committed, and needed no more."""
        return base_of(self._deployment, Base(self.last, self.epochs, self._forced))

    def trimmed(self, position: Position) -> None:
        """The records up to ``position`` are no longer there."""
        self.base = max(self.base, position)
        self._deployment.forget_through(position.sequence)

    def restore(self, record: Record) -> None:
        """Takes in one record that was there at start, in order."""
        self.take(record)
        self.durable = record.position.sequence
        self.committed = max(self.committed, record.committed)

    def take(self, record: Record) -> None:
        """The one place where a record changes what the core knows, at start and at run time."""
        if record.position.epoch > self.last.epoch:
            self.epochs += (record.position,)
        if isinstance(record.body, EpochStart):
            self._writer = record.body.node
            self._forced += (record.position,) if record.body.forced else ()
        self.last = record.position
        self._deployment.take(record, mine=self._writer == self._node)

    def position_at(self, sequence: int) -> Position:
        """The position of the record ``sequence``, which is not before the base."""
        epoch = max((s.epoch for s in self.epochs if s.sequence <= sequence), default=0)
        return Position(epoch, sequence)

    def has(self, position: Position) -> bool:
        """Whether it is, or was before it was trimmed, a position of this journal."""
        return position <= self.last and self.position_at(position.sequence) == position

    @property
    def history(self) -> History:
        """What is here, from the base to the end."""
        return History(self.base, self.epochs, self.last)

    def is_forced(self, epoch: int) -> bool:
        return any(start.epoch == epoch for start in self._forced)

    def forced_behind(self, match: Position) -> bool:
        return any(match < start for start in self._forced)

    def append(self, epoch: int, body: Body, payload: bytes = b"") -> do.Action:
        position = Position(epoch, self.last.sequence + 1)
        record = Record(position, self.committed, body, payload)
        self.take(record)
        return do.AppendRecords((record,))

    def written(self, sequence: int) -> bool:
        """Whether more is durable than before."""
        more = sequence > self.durable
        self.durable = max(self.durable, sequence)
        return more
