"""What the core wants done. The driver performs actions in order; outcomes come back as inputs."""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.core.high_water import HighWater
from ha_engine.core.messages import Message
from ha_engine.types import Cut, History, LeaseRow, Mark, Position, Record, Role


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Read the group's row. Answered by LeaseRead or DatabaseUnreachable."""


@dataclass(frozen=True, slots=True)
class CreateLease:
    """Write the row of a group that has none (RULES.md#r6). Answered like WriteLease; ``why`` is
    for people, empty where the row says it."""

    row: LeaseRow
    why: str = ""


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Compare-and-set on (holder, epoch, version) of ``expected`` (RULES.md#r1).

    Answered by LeaseWritten, LeaseDenied or DatabaseUnreachable. ``why`` goes to the history when
    the holder changes.
    """

    expected: LeaseRow
    wanted: LeaseRow
    why: str


@dataclass(frozen=True, slots=True)
class KeepHighWater:
    """Keep on disk the highest (epoch, version) read, and what goes with it (RULES.md#r5,
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
class Tell:
    """Send ``message`` to ``peer``; it is dropped when there is no link."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class StreamRecords:
    """Send ``peer`` every record behind ``after``, then each one as it is appended.

    They go out as Records of ``epoch``; a stream to the same peer that was asked for before ends.
    """

    peer: str
    epoch: int
    after: Position


@dataclass(frozen=True, slots=True)
class StopStreams:
    """Send no more records to anybody."""


@dataclass(frozen=True, slots=True)
class CutJournal:
    """Remove every record behind ``match``, durably, then start the node process anew
    (RULES.md#i8).

    State is built from a prefix in one way only: as after a crash. ``set_aside``: committed records
    are among them, which a forced failover gave up (RULES.md#r26). They are kept beside the
    journal, and all that was made from them goes: the journal's id, the outbox.
    """

    match: Position
    why: str
    set_aside: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything up to ``sequence`` is committed: acks may go out."""

    sequence: int


@dataclass(frozen=True, slots=True)
class ChangeRole:
    """The node's role changed; ``why`` is for the log and the status page."""

    role: Role
    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class OpenReceivers:
    """Take events from producers."""


@dataclass(frozen=True, slots=True)
class CloseReceivers:
    """Refuse events; ``active`` is the URL of the node that takes them, when known."""

    reason: str
    active: str | None


@dataclass(frozen=True, slots=True)
class StartPublishing:
    """Claim the ledgers under ``epoch`` and publish from where they stand (RULES.md#r24)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class NoteOutage:
    """Write into the history how long nobody acted before the holder of ``epoch`` did."""

    epoch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StopPublishing:
    """Publish nothing more."""


@dataclass(frozen=True, slots=True)
class AnswerMark:
    """A committed mark is there for the query that waits for it."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class ReportDifference:
    """Batch ``number`` of ``query`` came out differently here and on the holder (RULES.md#i6)."""

    query: str
    number: int


@dataclass(frozen=True, slots=True)
class TrimOutbox:
    """Batches of ``query`` through ``through`` are published, and that is committed
    (RULES.md#r25)."""

    query: str
    through: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Store a snapshot that stands at ``cut``, as a complete draft that nobody sees yet.

    Answered by SnapshotTaken or SnapshotFailed.
    """

    cut: Cut


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
    """Look which revisions the database has. Answered by RevisionsKept, if it is reached."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Begin anew from the newest snapshot that stands in ``history``.

    It takes the place of the journal, the outbox and the checkpoints; then the node process starts
    anew. Answered by RestoreFailed when there is none that can be used. ``given_up``: a forced
    failover gave up the records behind it, which are kept beside the new journal (RULES.md#r26).
    """

    history: History
    why: str
    given_up: Position | None = None


@dataclass(frozen=True, slots=True)
class TrimJournal:
    """Let a base stand for the records up to ``position``, durably, and remove what it can of them.

    Answered by JournalTrimmed.
    """

    position: Position


@dataclass(frozen=True, slots=True)
class StartQueryProcess:
    """Start Spark under this incarnation once nothing of the one before is left (RULES.md#r20)."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class StopQueryProcess:
    """End the whole session of this incarnation."""

    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Start one query in the query process.

    ``lineage`` names the state that the checkpoint must hold; another one is set aside. ``initial``
    is the mark before the query's first batch, the same for all its sources (RULES.md#r18).
    ``must_resume``: the state began under other code, so that no replay can rebuild it. ``digest``
    is that of the definition which runs under this version, and no other (RULES.md#r23).
    ``earlier``: a checkpoint of such a lineage is one of ``lineage`` from now on.
    """

    query: str
    lineage: str
    initial: Mark
    must_resume: bool
    digest: str
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """The node process is to end, its work done."""

    reason: str


Action = (
    ReadLease
    | CreateLease
    | WriteLease
    | KeepHighWater
    | BindGroup
    | AppendRecords
    | Tell
    | StreamRecords
    | StopStreams
    | CutJournal
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
