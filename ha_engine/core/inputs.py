"""The inputs of the core. Each one is a fact that the driver observed, in the past tense."""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.core.messages import Message
from ha_engine.types import DatabaseIdentity, Events, LeaseRow, Position, SnapshotPlace


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; arrives at the moment that ``Core.wake_at`` named, or later."""


@dataclass(frozen=True, slots=True)
class LeaseRead:
    """The database answered a ReadLease. ``row`` is None when the group has no row yet."""

    row: LeaseRow | None
    identity: DatabaseIdentity


@dataclass(frozen=True, slots=True)
class LeaseWritten:
    """A compare-and-set or the creation of the row succeeded; ``row`` is the row as written.

    ``identity`` shows whether the database failed over around the write (RULES.md#r5).
    """

    row: LeaseRow
    identity: DatabaseIdentity


@dataclass(frozen=True, slots=True)
class LeaseDenied:
    """A compare-and-set found another row than expected, or another node created the row first."""


@dataclass(frozen=True, slots=True)
class DatabaseUnreachable:
    """A lease request failed or was late. The outcome of a write is then unknown (RULES.md#r1)."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """A notification says that the row has changed. It is only a hint to read the row."""


@dataclass(frozen=True, slots=True)
class EventsOffered:
    """The gate has validated events. It offers them only while receivers are open."""

    events: Events
    payload: bytes


@dataclass(frozen=True, slots=True)
class RecordsDurable:
    """Every record up to ``sequence`` is on this node's disk."""

    sequence: int


@dataclass(frozen=True, slots=True)
class HigherEpochSeen:
    """The node read an epoch above ours at ``where``, for example in a sink's ledger
    (RULES.md#r14)."""

    epoch: int
    where: str


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """A link to ``peer`` is open. The sync stage has checked its name, group and application."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The link to ``peer`` is gone. Messages in flight may have arrived or not."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class PeerSaid:
    """A message arrived over the link to ``peer``."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class QueryProcessGone:
    """No process of the incarnation's session is left (RULES.md#r20).

    ``by_host``: the host ended it, for instance because memory ran out, and no batch did
    (RULES.md#i15).
    """

    incarnation: str
    reason: str
    by_host: bool = False


@dataclass(frozen=True, slots=True)
class QueryProcessAdopted:
    """The supervisor still runs a query process that an earlier node process started."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class QueryProcessAttended:
    """The query process has started Spark and asks which queries to run."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class MarkWanted:
    """Spark finished batch ``after`` of the query and waits for the next mark."""

    query: str
    after: int


@dataclass(frozen=True, slots=True)
class BatchAdmitted:
    """The outbox holds the output of batch ``number`` durably."""

    query: str
    number: int
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class BatchDigested:
    """The digest of an admitted batch is known (RULES.md#i6)."""

    query: str
    number: int
    digest: str


@dataclass(frozen=True, slots=True)
class HeadroomChanged:
    """The disk has become nearly full (``headroom`` is False), or has room again (RULES.md#r30)."""

    headroom: bool


@dataclass(frozen=True, slots=True)
class SinkPublished:
    """The sink's ledger says that ``batch`` is delivered."""

    query: str
    sink: str
    batch: int


@dataclass(frozen=True, slots=True)
class SnapshotAsked:
    """An operator asked for a snapshot now."""


@dataclass(frozen=True, slots=True)
class SnapshotEvery:
    """The config was read again: the snapshot interval in seconds; 0: only on request."""

    interval: float


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The snapshot of ``place`` is complete as ``draft``."""

    place: SnapshotPlace
    draft: int


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The snapshot of ``place`` could not be taken here."""

    place: SnapshotPlace
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """No snapshot could be restored. Journal, outbox and checkpoints are unchanged."""

    reason: str


@dataclass(frozen=True, slots=True)
class RevisionsKept:
    """The database keeps these visible revisions.

    Each is a pair: its position, and the position of the newest mark that ends its batches.
    """

    places: tuple[tuple[Position, Position], ...]


@dataclass(frozen=True, slots=True)
class SnapshotNotShown:
    """A complete draft did not become visible."""

    reason: str


@dataclass(frozen=True, slots=True)
class JournalTrimmed:
    """A base on disk replaces the records up to ``position``."""

    position: Position


@dataclass(frozen=True, slots=True)
class QueryFailed:
    """A query ended with an error while it ran batch ``number`` (0: before any).

    ``by_host``: the host caused the failure, for instance by slowness, and the batch did not
    (RULES.md#i15).
    """

    query: str
    number: int
    reason: str
    by_host: bool = False


@dataclass(frozen=True, slots=True)
class QueryRefused:
    """A query must not start, and a retry would not change that."""

    query: str
    reason: str


@dataclass(frozen=True, slots=True)
class SkipAsked:
    """An operator asked to give up the batch at which the query failed."""

    query: str
    by: str


@dataclass(frozen=True, slots=True)
class RetryAsked:
    """An operator asked to run the same batch of a failed query again, with its cause repaired."""

    query: str


@dataclass(frozen=True, slots=True)
class SwitchoverAsked:
    """An operator asked that ``to`` become the active; None: any member that can."""

    to: str | None
    by: str


@dataclass(frozen=True, slots=True)
class FailoverForced:
    """An operator gives up what this journal lacks, and confirms which nodes are off
    (RULES.md#r26)."""

    by: str
    confirmed_fenced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The node must end. It releases its lease first."""


Input = (
    Tick
    | LeaseRead
    | LeaseWritten
    | LeaseDenied
    | DatabaseUnreachable
    | LeaseChanged
    | EventsOffered
    | RecordsDurable
    | HigherEpochSeen
    | PeerConnected
    | PeerLost
    | PeerSaid
    | QueryProcessGone
    | QueryProcessAdopted
    | QueryProcessAttended
    | MarkWanted
    | BatchAdmitted
    | BatchDigested
    | HeadroomChanged
    | SinkPublished
    | SnapshotAsked
    | SnapshotEvery
    | SnapshotTaken
    | SnapshotFailed
    | RestoreFailed
    | RevisionsKept
    | SnapshotNotShown
    | JournalTrimmed
    | QueryFailed
    | QueryRefused
    | SkipAsked
    | RetryAsked
    | SwitchoverAsked
    | FailoverForced
    | StopAsked
)
