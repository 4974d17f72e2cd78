"""What can happen to a node. Each is a fact that the driver observed, in the past tense."""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.core.messages import Message
from ha_engine.types import Cut, DatabaseIdentity, Events, LeaseRow, Position


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by; arrives several times within the shortest timer."""


@dataclass(frozen=True, slots=True)
class LeaseRead:
    """The database answered a ReadLease. ``row`` is None when the group has no row yet."""

    row: LeaseRow | None
    identity: DatabaseIdentity


@dataclass(frozen=True, slots=True)
class LeaseWritten:
    """A compare-and-set or the creation of the row succeeded; ``row`` is what now stands there.

    ``identity`` was asked for behind the write: a failover of the database is noticed by it
    (RULES.md#r5).
    """

    row: LeaseRow
    identity: DatabaseIdentity


@dataclass(frozen=True, slots=True)
class LeaseDenied:
    """A compare-and-set found another row than expected, or a creation came second."""


@dataclass(frozen=True, slots=True)
class DatabaseUnreachable:
    """A lease request failed or was late: if it was a write, its outcome is unknown
    (RULES.md#r1)."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """Somebody says that the row has changed: a hint to read it, nothing more."""


@dataclass(frozen=True, slots=True)
class EventsOffered:
    """The gate has validated events; only offered while receivers are open."""

    events: Events
    payload: bytes


@dataclass(frozen=True, slots=True)
class RecordsDurable:
    """Every record up to ``sequence`` is on this node's disk."""

    sequence: int


@dataclass(frozen=True, slots=True)
class HigherEpochSeen:
    """An authenticated message, a ledger or a row carries an epoch above ours (RULES.md#r14)."""

    epoch: int
    where: str


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """A link to ``peer`` is open: who it says it is, of our group, with the same application."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The link to ``peer`` is gone; what was on its way may have arrived or not."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class PeerSaid:
    """A message came over the link to ``peer``."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class QueryProcessGone:
    """No process of the incarnation's session is left (RULES.md#r20).

    ``by_host``: the host ended it, for instance for want of memory, and no batch did
    (RULES.md#i15).
    """

    incarnation: str
    reason: str
    by_host: bool = False


@dataclass(frozen=True, slots=True)
class QueryProcessAdopted:
    """The supervisor still runs a query process that an earlier node process asked for."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class QueryProcessAttended:
    """The query process has started Spark and asks what to run."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class MarkWanted:
    """Spark finished batch ``after`` of the query and waits for the mark that follows."""

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
class RoomChanged:
    """The disk is nearly full, or no longer (RULES.md#r30)."""

    room: bool


@dataclass(frozen=True, slots=True)
class SinkPublished:
    """The sink's ledger says that ``batch`` is delivered."""

    query: str
    sink: str
    batch: int


@dataclass(frozen=True, slots=True)
class SnapshotAsked:
    """An operator wants a snapshot now."""


@dataclass(frozen=True, slots=True)
class SnapshotEvery:
    """The config was read again: an interval in seconds, 0 for only those that are asked for."""

    interval: float


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The snapshot of ``cut`` is complete as ``draft``."""

    cut: Cut
    draft: int


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The snapshot of ``cut`` could not be taken here."""

    cut: Cut
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """No snapshot could be restored; everything is as it was."""

    reason: str


@dataclass(frozen=True, slots=True)
class RevisionsKept:
    """These visible revisions are kept: where each stands, and the newest mark that says so."""

    places: tuple[tuple[Position, Position], ...]


@dataclass(frozen=True, slots=True)
class SnapshotNotShown:
    """A draft was complete, and did not become visible."""

    reason: str


@dataclass(frozen=True, slots=True)
class JournalTrimmed:
    """A base stands for the records up to ``position``."""

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
    """A query must not start, and trying again changes nothing."""

    query: str
    reason: str


@dataclass(frozen=True, slots=True)
class SkipAsked:
    """An operator gives up the batch at which the query failed."""

    query: str
    by: str


@dataclass(frozen=True, slots=True)
class RetryAsked:
    """An operator has mended what made the query fail; it is to try the same batch again."""

    query: str


@dataclass(frozen=True, slots=True)
class SwitchoverAsked:
    """An operator wants ``to``, or any member that can, to be the active."""

    to: str | None
    by: str


@dataclass(frozen=True, slots=True)
class FailoverForced:
    """An operator gives up what this journal lacks, and says which nodes are surely off
    (RULES.md#r26)."""

    by: str
    confirmed_fenced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The node shall end; the lease is to be given up first."""


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
    | RoomChanged
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
