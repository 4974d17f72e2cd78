"""The interfaces through which the driver performs the core's actions, one for each stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ha_engine.core import HighWater
from ha_engine.core import actions as do
from ha_engine.core.messages import Message
from ha_engine.types import (
    DatabaseIdentity,
    History,
    LeaseRow,
    Mark,
    Position,
    Record,
    Revision,
    SnapshotPlace,
)


class LeaseStore(Protocol):
    """Blocking calls on the group's row. Raise DatabaseUnreachable when the outcome is unknown."""

    def read(self) -> LeaseRow | None: ...
    def identity(self) -> DatabaseIdentity: ...
    def create(self, row: LeaseRow, *, reason: str | None = None) -> LeaseRow | None: ...
    def compare_and_set(
        self, expected: LeaseRow, wanted: LeaseRow, *, reason: str | None = None
    ) -> LeaseRow | None: ...


class Outages(Protocol):
    """A blocking call that raises DatabaseUnreachable. No call of the lease store waits for it."""

    def note_outage(self, epoch: int, seconds: float) -> None: ...


class Appender(Protocol):
    """The journal's writer. The writer reports durable records to ``Driver.durable``."""

    def append(self, records: Sequence[Record]) -> None: ...


class Receivers(Protocol):
    def open(self) -> None: ...
    def replay(self, record: Record) -> None: ...
    def close(self, reason: str, active: str | None) -> None: ...


class Peers(Protocol):
    """The links to the other members. In a group of one there are none, and calls do nothing."""

    def send(self, peer: str, message: Message) -> None: ...
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
    """The calls to the query process."""

    def run_query(self, query: do.RunQuery) -> None: ...
    def answer_mark(self, mark: Mark) -> None: ...


class NodeStorage(Protocol):
    """The node's disk, except appends. ``keep`` and ``trim_outbox`` block."""

    def keep(self, high_water: HighWater) -> None: ...
    def bind_group(self, group_id: str) -> None: ...
    def trim_outbox(self, query: str, through: int) -> None: ...
    async def truncate_journal(self, after: int, *, set_aside: bool) -> None: ...


class Snapshots(Protocol):
    """Snapshots in the database, and the base on disk, which replaces trimmed records."""

    async def take(self, place: SnapshotPlace) -> int:
        """Store a snapshot; return its complete draft. Raises EngineError."""

    async def show(self, draft: int, epoch: int) -> tuple[tuple[Position, Position], ...]:
        """Make ``draft`` visible; return the kept revisions as in RevisionsKept. Raises
        EngineError."""

    async def look(self) -> tuple[tuple[Position, Position], ...]:
        """List the visible revisions, in the same form. Raises EngineError."""

    async def restore(self, restore: do.Restore) -> Revision:
        """Download the revision that replaces journal, outbox and checkpoints at the next start.
        Raises EngineError."""

    async def bring_state(
        self, run: do.RunQuery, history: History, admitted: int
    ) -> Revision | None:
        """Restore a query's state from a snapshot in ``history``, as of batch ``admitted`` at most.

        Returns None if the query has its state already. Raises EngineError.
        """

    async def trim(self, position: Position) -> None:
        """Write a base that replaces the records up to ``position``. Raises DiskFailed."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that the driver sends actions to."""

    appender: Appender
    lease_store: LeaseStore
    outages: Outages
    receivers: Receivers
    publishing: Publishing
    supervisor: Supervisor
    process_link: QueryProcessLink
    storage: NodeStorage
    peers: Peers
    snapshots: Snapshots
    exit: Callable[[str], None]
