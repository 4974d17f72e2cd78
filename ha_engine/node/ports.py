"""The interfaces through which the driver performs the core's actions, one for each stage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ha_engine.core import HighWater
from ha_engine.core import actions as do
from ha_engine.core.messages import Message
from ha_engine.snapshot.restore import RestoredState
from ha_engine.types import (
    DatabaseIdentity,
    Deployed,
    History,
    LeaseRow,
    Mark,
    Position,
    Record,
    Revision,
    SnapshotPlace,
)


class LeaseStore(Protocol):
    """Blocking calls on the group's lease row. A call raises DatabaseUnreachable if its outcome is
    unknown."""

    def read(self) -> LeaseRow | None: ...
    def identity(self) -> DatabaseIdentity: ...
    def create(self, row: LeaseRow, *, reason: str | None = None) -> LeaseRow | None: ...
    def compare_and_set(
        self, expected: LeaseRow, wanted: LeaseRow, *, reason: str | None = None
    ) -> LeaseRow | None: ...


class Outages(Protocol):
    """A blocking call that writes an outage into the lease's history. No call of the lease store
    waits for ``note_outage``. Raises DatabaseUnreachable."""

    def note_outage(self, epoch: int, seconds: float) -> None: ...


class Appender(Protocol):
    """The journal's writer. The writer reports durable records to ``Driver.durable``."""

    def append(self, records: Sequence[Record]) -> None: ...


class Receivers(Protocol):
    def open(self) -> None: ...
    def replay(self, record: Record) -> None: ...
    def close(self, reason: str, active: str | None) -> None: ...


class Peers(Protocol):
    """The links to the other members. In a group of one node, the calls do nothing."""

    def send(self, peer: str, message: Message) -> None: ...
    def stream(self, peer: str, epoch: int, after: Position) -> None: ...
    def stop_streams(self) -> None: ...
    def appended(self, records: Sequence[Record]) -> None: ...
    def introduce(self) -> None: ...


class Publishing(Protocol):
    def start(self, epoch: int) -> None: ...
    def admitted(self, query: str, number: int) -> None: ...
    async def stop(self) -> None: ...


class Supervisor(Protocol):
    """The supervisor, which starts and ends the query process."""

    def start_process(self, incarnation: str) -> None: ...
    def stop_process(self, incarnation: str, reason: str) -> None: ...


class QueryProcessLink(Protocol):
    """The driver's calls to the query process."""

    def run_query(self, query: do.RunQuery) -> None: ...
    def halt_query(self, query: str) -> None: ...
    def answer_mark(self, mark: Mark, lineage: str) -> None: ...


class NodeStorage(Protocol):
    """The changes of the node's disk, except appends to the journal. ``keep`` and ``trim_outbox``
    block. ``bind_group`` takes effect before all later appends."""

    def keep(self, high_water: HighWater) -> None: ...
    def bind_group(self, group_id: str) -> Awaitable[None]: ...
    def trim_outbox(self, query: str, through: int) -> None: ...
    async def truncate_journal(self, after: int, *, set_aside: bool) -> None: ...
    async def keep_application(self, deployed: Deployed | None) -> None: ...
    def has_checkpoint(self, query: str) -> bool: ...


class Snapshots(Protocol):
    """Snapshots in the database, and the base on disk, which replaces trimmed records."""

    async def take(self, place: SnapshotPlace) -> int:
        """Store a snapshot as a complete draft, and return the draft's id. Raises EngineError."""

    async def show(self, draft: int, epoch: int) -> tuple[tuple[Position, Position], ...]:
        """Make the snapshot ``draft`` visible, and return the kept revisions as
        ``RevisionsKept.places``. Raises EngineError."""

    async def look(self) -> tuple[tuple[Position, Position], ...]:
        """List the visible revisions of the database as ``RevisionsKept.places``. Raises
        EngineError."""

    async def restore(self, restore: do.Restore) -> Revision:
        """Download a revision, which replaces journal, outbox and checkpoints when the node process
        restarts. Raises EngineError."""

    async def bring_state(self, run: do.RunQuery, history: History) -> RestoredState | None:
        """Restore a query's state from a snapshot of this ``history``, and its batches too if the
        outbox lacks them. If only the active runs the query, also look at the checkpoints of
        earlier actives.

        Returns None if the query can begin with what it has. Raises EngineError.
        """

    async def trim(self, position: Position) -> None:
        """Write a base that replaces the records up to ``position``. Raises DiskFailed."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports through which the driver performs the core's actions."""

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
