"""The actions that the core returns.

The driver performs the actions in their order. The outcome of an action returns to the core as an
input.
"""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.core.high_water import HighWater
from ha_engine.core.messages import Message
from ha_engine.types import Deployed, History, LeaseRow, Mark, Position, Record, Role, SnapshotPlace


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Read the group's lease row. The driver answers with LeaseRead or DatabaseUnreachable."""


@dataclass(frozen=True, slots=True)
class CreateLease:
    """Write the lease row of a group that has none (RULES.md#r6).

    The driver answers with LeaseWritten, LeaseDenied or DatabaseUnreachable. ``reason`` goes to the
    history of the lease, for people. An empty ``reason`` means that the row itself shows the
    reason.
    """

    row: LeaseRow
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Compare-and-set on (holder, epoch, version) of the row ``expected`` (RULES.md#r1).

    The driver answers with LeaseWritten, LeaseDenied or DatabaseUnreachable. ``reason`` goes to the
    history of the lease when the holder changes.
    """

    expected: LeaseRow
    wanted: LeaseRow
    reason: str


@dataclass(frozen=True, slots=True)
class KeepHighWater:
    """Write this node's HighWater to disk: the highest (epoch, version) that it has read, and what
    it tried to acquire (RULES.md#r5, RULES.md#r26)."""

    high_water: HighWater


@dataclass(frozen=True, slots=True)
class BindGroup:
    """Write the group's UUID into the journal's identity (RULES.md#r6)."""

    group_id: str


@dataclass(frozen=True, slots=True)
class AppendRecords:
    """Append records to the journal. The driver answers with RecordsDurable."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` to ``peer``, or drop the message if no link to that peer is open."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class StreamRecords:
    """Send ``peer`` every record after the position ``after``, and each new record once it is
    appended.

    Each Records message of the stream carries ``epoch``. An earlier stream to the same peer ends.
    """

    peer: str
    epoch: int
    after: Position


@dataclass(frozen=True, slots=True)
class StopStreams:
    """Stop the stream of records to every peer."""


@dataclass(frozen=True, slots=True)
class TruncateJournal:
    """Remove every record after ``after``, durably, then restart the node process (RULES.md#i8).

    Because of the restart, a node builds its state in one way only: by a replay of its journal.
    ``set_aside`` is True if a forced failover gave up committed records among those to remove
    (RULES.md#r26). With ``set_aside``, the node copies the removed records to a file beside the
    journal, takes a new journal id and empties the outbox.
    """

    after: Position
    reason: str
    set_aside: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Send producers the acks of their events in the records up to ``sequence``, which are
    committed."""

    sequence: int


@dataclass(frozen=True, slots=True)
class ChangeRole:
    """Log that the node's role changed; ``reason`` is for the log and the status page."""

    role: Role
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class OpenReceivers:
    """Accept events from producers, and start to pull rows from the sources."""


@dataclass(frozen=True, slots=True)
class CloseReceivers:
    """Refuse events from producers, and stop the sources.

    ``active`` is the URL of the node that accepts events, or None if this node does not know it.
    """

    reason: str
    active: str | None


@dataclass(frozen=True, slots=True)
class StartPublishing:
    """Claim the ledger of each sink under ``epoch``, then publish the batches after the one in the
    ledger (RULES.md#r24)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class NoteOutage:
    """Write into the lease history for how many seconds no node was active before ``epoch``
    began."""

    epoch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StopPublishing:
    """Publish nothing more."""


@dataclass(frozen=True, slots=True)
class AnswerMark:
    """Give a committed mark to the query that waits for it, which a RunQuery with ``lineage`` has
    started."""

    mark: Mark
    lineage: str


@dataclass(frozen=True, slots=True)
class ReportDifference:
    """Report that the digests of batch ``number`` of ``query`` differ between this node and the
    holder (RULES.md#i6)."""

    query: str
    number: int


@dataclass(frozen=True, slots=True)
class ReportDiskWentBack:
    """Report that the journal of ``peer`` shares only the records up to ``shared_end`` with this
    journal, although it has acked ``acked`` (RULES.md#r8)."""

    peer: str
    acked: int
    shared_end: int


@dataclass(frozen=True, slots=True)
class TrimOutbox:
    """Remove the batches of ``query`` up to ``through`` from the outbox (RULES.md#r25).

    Either committed records say that the sinks have these batches, or this node never runs them.
    """

    query: str
    through: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Store a snapshot of this node at ``place``, as a complete draft that is not visible yet.

    The driver answers with SnapshotTaken or SnapshotFailed.
    """

    place: SnapshotPlace


@dataclass(frozen=True, slots=True)
class ShowSnapshot:
    """Make the snapshot ``draft`` visible under ``epoch``, and remove the oldest revisions
    (RULES.md#i9, RULES.md#r28).

    The driver answers with RevisionsKept or SnapshotNotShown.
    """

    draft: int
    epoch: int


@dataclass(frozen=True, slots=True)
class FindRevisions:
    """List the visible revisions in the database.

    The driver answers with RevisionsKept if it reaches the database.
    """


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore the newest snapshot whose position is in ``history``.

    The snapshot replaces the journal, the outbox and the checkpoints. The node process restarts
    after the restore. The driver answers with RestoreFailed if no snapshot can be restored.
    ``given_up`` is the position after which a forced failover gave up the records of this journal.
    The node keeps a copy of these records beside the new journal (RULES.md#r26).
    """

    history: History
    reason: str
    given_up: Position | None = None


@dataclass(frozen=True, slots=True)
class TrimJournal:
    """Write a base that replaces the records up to ``position``, then remove the oldest segments.

    The driver answers with JournalTrimmed.
    """

    position: Position


@dataclass(frozen=True, slots=True)
class StartQueryProcess:
    """Start Spark in a query process named ``incarnation``, once no process of the previous
    incarnation is left (RULES.md#r20)."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class StopQueryProcess:
    """End every process in the operating-system session of the query process ``incarnation``."""

    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Takeover:
    """The facts with which a new active continues a query that only the active runs
    (RULES.md#r33).

    The node became the active in ``epoch``. Every sink has the batches up to ``published``. Each of
    ``shared`` is (epoch, number): a checkpoint that the active of that epoch wrote has the batches
    of this journal up to ``number``. No number is above ``published``, since the output of later
    batches may be on the disk of that active only.
    """

    epoch: int
    published: int
    shared: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Start one query in the query process.

    ``lineage`` names the state that the checkpoint must have; the query process sets any other
    checkpoint aside. ``initial`` is the mark before the query's first batch, the same for all its
    sources (RULES.md#r18). ``must_resume`` is True if no replay can rebuild the query's state:
    other code made a part of it, or its records are trimmed. ``digest`` identifies the only
    definition of the query that may run (RULES.md#r23). ``earlier`` lists further lineages whose
    checkpoint the query may continue as one of ``lineage``. ``takeover`` is None if every node runs
    the query. ``partitions`` has pairs of a batch and the number of partitions of the state in all
    batches after it (RULES.md#r35). ``shadow_of`` is the live query if this one is its shadow, and
    ``adopts`` has the name and the lineage of the shadow whose checkpoint has the state, unless the
    query has continued it before (RULES.md#r38).
    """

    query: str
    lineage: str
    initial: Mark
    must_resume: bool
    digest: str
    earlier: tuple[str, ...] = ()
    takeover: Takeover | None = None
    partitions: tuple[tuple[int, int], ...] = ()
    shadow_of: str | None = None
    adopts: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class HaltQuery:
    """Stop a query that only the active runs, since this node is no longer the active, or stop a
    query whose state gets another number of partitions.

    The driver answers with QueryHalted, once the query no longer writes to its checkpoint.
    """

    query: str


@dataclass(frozen=True, slots=True)
class ChangeApplication:
    """Keep the archive of ``deployed``, or none, for the next start of this node, and restart the
    node process, which then runs that application (RULES.md#r36)."""

    deployed: Deployed | None


@dataclass(frozen=True, slots=True)
class Exit:
    """End the node process."""

    reason: str


Action = (
    ReadLease
    | CreateLease
    | WriteLease
    | KeepHighWater
    | BindGroup
    | AppendRecords
    | Send
    | StreamRecords
    | StopStreams
    | TruncateJournal
    | Commit
    | ChangeRole
    | OpenReceivers
    | CloseReceivers
    | StartPublishing
    | NoteOutage
    | StopPublishing
    | AnswerMark
    | ReportDifference
    | ReportDiskWentBack
    | TrimOutbox
    | TakeSnapshot
    | ShowSnapshot
    | FindRevisions
    | Restore
    | TrimJournal
    | StartQueryProcess
    | StopQueryProcess
    | RunQuery
    | HaltQuery
    | ChangeApplication
    | Exit
)
