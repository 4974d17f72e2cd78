"""The inputs of the core.

Each input is a fact that the driver has observed, so its name is in the past tense.
"""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.core.messages import Message
from ha_engine.types import DatabaseIdentity, Events, LeaseRow, Position, SnapshotPlace


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed.

    The driver sends a Tick at the moment that ``Core.wake_at`` names, or later.
    """


@dataclass(frozen=True, slots=True)
class LeaseRead:
    """The database answered a ReadLease. ``row`` is None when the group has no lease row yet."""

    row: LeaseRow | None
    identity: DatabaseIdentity


@dataclass(frozen=True, slots=True)
class LeaseWritten:
    """The database has written the lease row, by a compare-and-set or by its creation.

    ``row`` is the row as written. ``identity`` shows whether the database failed over around the
    write (RULES.md#r5).
    """

    row: LeaseRow
    identity: DatabaseIdentity


@dataclass(frozen=True, slots=True)
class LeaseDenied:
    """A compare-and-set found another lease row than expected, or another node created the row
    first."""


@dataclass(frozen=True, slots=True)
class DatabaseUnreachable:
    """A request for the lease row failed or was late.

    If the request was a write, its outcome is unknown (RULES.md#r1).
    """

    reason: str


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """The database notified this node that the lease row has changed.

    The notification is only a hint to read the row.
    """


@dataclass(frozen=True, slots=True)
class EventsOffered:
    """The gate has validated events. The gate offers events only while the receivers are open."""

    events: Events
    payload: bytes


@dataclass(frozen=True, slots=True)
class RecordsDurable:
    """Every record up to ``sequence`` is on this node's disk."""

    sequence: int


@dataclass(frozen=True, slots=True)
class HigherEpochSeen:
    """The node read a higher epoch than its own at ``where``, for example in a sink's ledger
    (RULES.md#r14)."""

    epoch: int
    where: str


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """A link to ``peer`` is open.

    The sync stage has checked the peer's name, group and application. ``archive`` is the id of the
    deployed archive whose application the peer runs, or None if it runs that of its file.
    """

    peer: str
    archive: str | None = None


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The link to ``peer`` is closed. Messages that were in flight may or may not have arrived."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class PeerMessage:
    """A message arrived over the link to ``peer``."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class QueryProcessGone:
    """No process is left in the operating-system session of the query process (RULES.md#r20).

    ``by_host`` is True if the host ended the process, for instance because memory ran out, and no
    batch did (RULES.md#i15).
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
    """Spark finished batch ``after`` of the query and waits for the next mark.

    ``lineage`` is that of the RunQuery that started the query. After a change of the application,
    Spark may not have stopped the former query yet.
    """

    query: str
    after: int
    lineage: str


@dataclass(frozen=True, slots=True)
class BatchAdmitted:
    """The outbox holds the output of batch ``number`` durably.

    ``lineage`` is as in MarkWanted, and None for a batch from a snapshot.
    """

    query: str
    number: int
    rows: int
    size: int
    lineage: str | None = None


@dataclass(frozen=True, slots=True)
class BatchDigested:
    """This node knows its own digest of an admitted batch (RULES.md#i6)."""

    query: str
    number: int
    digest: str


@dataclass(frozen=True, slots=True)
class HeadroomChanged:
    """The disk has become nearly full (``headroom`` is False), or has enough free space again
    (RULES.md#r30)."""

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
    """The node has read its config again.

    ``interval`` is the time between snapshots in seconds; 0 means only on request.
    """

    interval: float


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """This node has stored the snapshot of ``place`` as the complete revision ``draft``."""

    place: SnapshotPlace
    draft: int


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """This node could not take the snapshot of ``place``."""

    place: SnapshotPlace
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """The node could restore no snapshot.

    The journal, the outbox and the checkpoints are unchanged.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class RevisionsKept:
    """The database has listed the visible revisions that it keeps.

    Each of ``places`` is a pair: the position of a revision, and that of the newest mark that ends
    its batches.
    """

    places: tuple[tuple[Position, Position], ...]


@dataclass(frozen=True, slots=True)
class SnapshotNotShown:
    """The complete draft of a snapshot did not become visible."""

    reason: str


@dataclass(frozen=True, slots=True)
class JournalTrimmed:
    """A base on disk replaces the records up to ``position``."""

    position: Position


@dataclass(frozen=True, slots=True)
class OutboxRestored:
    """The outbox of a query begins after batch ``left`` now, because the state of the query came
    from a snapshot (RULES.md#r21). A BatchAdmitted follows for each batch of the snapshot."""

    query: str
    left: int


@dataclass(frozen=True, slots=True)
class QueryFailed:
    """A query ended with an error in batch ``number``, or before any batch if ``number`` is 0.

    ``by_host`` is True if the host caused the failure, for instance by slowness, and the batch did
    not (RULES.md#i15). ``lineage`` is as in MarkWanted.
    """

    query: str
    number: int
    reason: str
    lineage: str
    by_host: bool = False


@dataclass(frozen=True, slots=True)
class QueryRefused:
    """The node refused to start a query, since a sink refuses the schema of the query's output.

    ``lineage`` is as in MarkWanted.
    """

    query: str
    reason: str
    lineage: str


@dataclass(frozen=True, slots=True)
class QueryHalted:
    """The query process does not run the query any more, as HaltQuery asked."""

    query: str


@dataclass(frozen=True, slots=True)
class SkipAsked:
    """An operator asked to skip the batch at which the query failed."""

    query: str
    by: str


@dataclass(frozen=True, slots=True)
class RetryAsked:
    """An operator asked that a failed query run the same batch again, after a repair of the
    cause."""

    query: str


@dataclass(frozen=True, slots=True)
class RescaleAsked:
    """An operator asked that a query's state get ``partitions`` partitions (RULES.md#r35)."""

    query: str
    partitions: int


@dataclass(frozen=True, slots=True)
class DeployAsked:
    """An operator asked to deploy an application, which this node has checked. The fields are those
    of ``types.Deployed``.

    ``shadow`` is the live query of a shadow that begins, with the id and the archive of the
    shadow's application. ``promotes`` is the name of the shadow that takes the place of its query.
    """

    id: str
    name: str
    by: str
    at_us: int
    archive: str
    on_change: str | None = None
    shadow: tuple[str, str, str] | None = None
    promotes: str | None = None


@dataclass(frozen=True, slots=True)
class SwitchoverAsked:
    """An operator asked for a switchover to ``to``, or to any member that can take over if ``to``
    is None."""

    to: str | None
    by: str


@dataclass(frozen=True, slots=True)
class FailoverForced:
    """An operator forces a failover to this node, and confirms that the nodes ``confirmed_fenced``
    are off (RULES.md#r26)."""

    by: str
    confirmed_fenced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The node must end. A node that holds the lease releases it first."""


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
    | PeerMessage
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
    | OutboxRestored
    | QueryFailed
    | QueryRefused
    | QueryHalted
    | SkipAsked
    | RetryAsked
    | RescaleAsked
    | DeployAsked
    | SwitchoverAsked
    | FailoverForced
    | StopAsked
)
