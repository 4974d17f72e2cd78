"""The actions that the core returns. The driver performs them in order; outcomes are inputs."""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.core.high_water import HighWater
from ha_engine.core.messages import Message
from ha_engine.types import History, LeaseRow, Mark, Position, Record, Role, SnapshotPlace


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Read the group's row. Answered by LeaseRead or DatabaseUnreachable."""


@dataclass(frozen=True, slots=True)
class CreateLease:
    """Write the row of a group that has none (RULES.md#r6).

    Answered like WriteLease. ``reason`` is for people; it is empty where the row itself says why.
    """

    row: LeaseRow
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Compare-and-set on (holder, epoch, version) of ``expected`` (RULES.md#r1).

    Answered by LeaseWritten, LeaseDenied or DatabaseUnreachable. ``reason`` goes to the history
    when the holder changes.
    """

    expected: LeaseRow
    wanted: LeaseRow
    reason: str


@dataclass(frozen=True, slots=True)
class KeepHighWater:
    """Write to disk the highest (epoch, version) read, and what HighWater has with it (RULES.md#r5,
    RULES.md#r26)."""

    high_water: HighWater


@dataclass(frozen=True, slots=True)
class BindGroup:
    """Write the group's UUID into the journal's identity (RULES.md#r6)."""

    group_id: str


@dataclass(frozen=True, slots=True)
class AppendRecords:
    """Append to the journal. Answered by RecordsDurable."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` to ``peer``. Without a link, drop it."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class StreamRecords:
    """Send ``peer`` every record after ``after``, then each new one as it is appended.

    They go out as Records of ``epoch``. An earlier stream to the same peer ends.
    """

    peer: str
    epoch: int
    after: Position


@dataclass(frozen=True, slots=True)
class StopStreams:
    """Send no more records to anybody."""


@dataclass(frozen=True, slots=True)
class TruncateJournal:
    """Remove every record after ``after``, durably, then restart the node process (RULES.md#i8).

    So a node builds its state from a journal in one way only: at its start. ``set_aside``: a forced
    failover gave up committed records among these (RULES.md#r26). The node then copies them to a
    file beside the journal, takes a new journal id and empties the outbox.
    """

    after: Position
    reason: str
    set_aside: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Send the acks of records up to ``sequence``, which are committed."""

    sequence: int


@dataclass(frozen=True, slots=True)
class ChangeRole:
    """Log that the node's role changed; ``reason`` is for the log and the status page."""

    role: Role
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class OpenReceivers:
    """Take events from producers, and start the sources."""


@dataclass(frozen=True, slots=True)
class CloseReceivers:
    """Refuse events; ``active`` is the URL of the node that takes them, when known."""

    reason: str
    active: str | None


@dataclass(frozen=True, slots=True)
class StartPublishing:
    """Claim the ledgers under ``epoch`` and publish from the batch in each (RULES.md#r24)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class NoteOutage:
    """Write into the history for how long no node acted before the holder of ``epoch``."""

    epoch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StopPublishing:
    """Publish nothing more."""


@dataclass(frozen=True, slots=True)
class AnswerMark:
    """Give a committed mark to the query that waits for it."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class ReportDifference:
    """Report that batch ``number`` of ``query`` has different digests here and on the holder
    (RULES.md#i6)."""

    query: str
    number: int


@dataclass(frozen=True, slots=True)
class TrimOutbox:
    """Remove batches of ``query`` up to ``through``: committed records say that the sinks have them
    (RULES.md#r25)."""

    query: str
    through: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Store a snapshot as of ``place``, as a complete draft that is not visible yet.

    Answered by SnapshotTaken or SnapshotFailed.
    """

    place: SnapshotPlace


@dataclass(frozen=True, slots=True)
class ShowSnapshot:
    """Make a draft visible under ``epoch``, and forget the oldest revisions (RULES.md#i9,
    RULES.md#r28).

    Answered by RevisionsKept or SnapshotNotShown.
    """

    draft: int
    epoch: int


@dataclass(frozen=True, slots=True)
class FindRevisions:
    """List the database's revisions. Answered by RevisionsKept if the database is reachable."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore the newest snapshot whose position is in ``history``.

    The snapshot replaces the journal, the outbox and the checkpoints. Then the node process
    restarts. Answered by RestoreFailed when no snapshot can be used. ``given_up``: a forced
    failover gave up the records after this position. The node keeps them beside the new journal
    (RULES.md#r26).
    """

    history: History
    reason: str
    given_up: Position | None = None


@dataclass(frozen=True, slots=True)
class TrimJournal:
    """Replace the records up to ``position`` by a base, durably, and remove those that can go.

    Answered by JournalTrimmed.
    """

    position: Position


@dataclass(frozen=True, slots=True)
class StartQueryProcess:
    """Start Spark as this incarnation, once no process of the one before is left
    (RULES.md#r20)."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class StopQueryProcess:
    """End every process in the session of this incarnation."""

    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Start one query in the query process.

    ``lineage`` names the state that the checkpoint must have; the query process sets any other
    checkpoint aside. ``initial`` is the mark before the query's first batch, the same for all its
    sources (RULES.md#r18). ``must_resume``: no replay can rebuild the state, because other code
    made a part of it or its records are trimmed. ``digest`` is that of the one definition that may
    run under this version (RULES.md#r23). ``earlier`` lists lineages whose checkpoint counts as one
    of ``lineage`` from now on.
    """

    query: str
    lineage: str
    initial: Mark
    must_resume: bool
    digest: str
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """End the node process; its work is done."""

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
    | TrimOutbox
    | TakeSnapshot
    | ShowSnapshot
    | FindRevisions
    | Restore
    | TrimJournal
    | StartQueryProcess
    | StopQueryProcess
    | RunQuery
    | Exit
)
