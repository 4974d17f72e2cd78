"""Where the driver takes the core's actions: what it asks of each stage, and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ha_engine.core import HighWater
from ha_engine.core import actions as do
from ha_engine.core.messages import Message
from ha_engine.types import (
    Cut,
    DatabaseIdentity,
    History,
    LeaseRow,
    Mark,
    Position,
    Record,
    Revision,
)


class LeaseStore(Protocol):
    """Blocking calls on the group's row; DatabaseUnreachable when the outcome is unknown."""

    def read(self) -> LeaseRow | None: ...
    def identity(self) -> DatabaseIdentity: ...
    def create(self, row: LeaseRow, *, why: str | None = None) -> LeaseRow | None: ...
    def compare_and_set(
        self, expected: LeaseRow, wanted: LeaseRow, *, why: str | None = None
    ) -> LeaseRow | None: ...


class Outages(Protocol):
    """A blocking call that raises DatabaseUnreachable; no call of the lease store waits for it."""

    def note_outage(self, epoch: int, seconds: float) -> None: ...


class Appender(Protocol):
    """The journal's writer. Durable records come back through ``Driver.durable``."""

    def append(self, records: Sequence[Record]) -> None: ...


class Receivers(Protocol):
    def open(self) -> None: ...
    def replay(self, record: Record) -> None: ...
    def close(self, reason: str, active: str | None) -> None: ...


class Peers(Protocol):
    """The links to the other members; a group of one has none, and every call is in vain."""

    def tell(self, peer: str, message: Message) -> None: ...
    def stream(self, peer: str, epoch: int, after: Position) -> None: ...
    def stop_streams(self) -> None: ...
    def appended(self, records: Sequence[Record]) -> None: ...
    def introduce(self) -> None: ...


class Publishing(Protocol):
    def start(self, epoch: int) -> None: ...
    async def stop(self) -> None: ...


class Supervisor(Protocol):
    """Starts and ends the query process."""

    def start_process(self, incarnation: str) -> None: ...
    def stop_process(self, incarnation: str, reason: str) -> None: ...


class QueryProcessLink(Protocol):
    """The way to the query process."""

    def run_query(self, query: do.RunQuery) -> None: ...
    def answer_mark(self, mark: Mark) -> None: ...


class NodeStorage(Protocol):
    """The node's disk, but for appending. ``keep`` and ``trim_outbox`` block."""

    def keep(self, high_water: HighWater) -> None: ...
    def bind_group(self, group_id: str) -> None: ...
    def trim_outbox(self, query: str, through: int) -> None: ...
    async def cut_journal(self, after: int, *, set_aside: bool) -> None: ...


class Archive(Protocol):
    """Snapshots in the database, and what stands for the records that they made needless."""

    async def take(self, cut: Cut) -> int:
        """A complete draft. Raises EngineError."""

    async def show(self, draft: int, epoch: int) -> tuple[tuple[Position, Position], ...]:
        """Makes it visible; what RevisionsKept tells of those that are kept. Raises EngineError."""

    async def look(self) -> tuple[tuple[Position, Position], ...]:
        """The same, of those that are visible now. Raises EngineError."""

    async def restore(self, restore: do.Restore) -> Revision:
        """What is to take the place of all else at the next start. Raises EngineError."""

    async def bring_state(
        self, run: do.RunQuery, history: History, admitted: int
    ) -> Revision | None:
        """The state of a query behind a batch up to ``admitted``, as of a snapshot in
        ``history``; None if it has it. Raises EngineError."""

    async def trim(self, position: Position) -> None:
        """A base stands for the records up to there. Raises DiskFailed."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where actions go."""

    appender: Appender
    lease_store: LeaseStore
    outages: Outages
    receivers: Receivers
    publishing: Publishing
    supervisor: Supervisor
    process_link: QueryProcessLink
    keeper: NodeStorage
    peers: Peers
    archive: Archive
    exit: Callable[[str], None]
