"""The values that the stages exchange: positions, records and the bodies of records.

Each type in this module is a frozen value, and none does I/O. docs/GLOSSARY.md defines the words in
the names of these types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import Enum, IntEnum
from typing import Any


class Role(Enum):
    """The role of a node in its group. core/role.py lists the legal changes of the role."""

    STARTING = "starting"
    JOINING = "joining"
    PASSIVE = "passive"
    BACKUP = "backup"
    PROMOTING = "promoting"
    ACTIVE = "active"
    DEMOTING = "demoting"
    STOPPED = "stopped"


class RecordKind(IntEnum):
    """Kind byte of a journal record. Never renumber the kinds, since journals on disk have them."""

    EVENTS = 1
    MARK = 2
    PUBLISHED = 3
    EPOCH = 4
    APPLICATION = 5


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """The place of a record in a journal.

    The sequence orders the records of one journal. The epoch distinguishes records of two journals
    that have the same sequence.
    """

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sequence}"


ORIGIN = Position(0, 0)
"""The position before the first record."""
STATE_PARTITIONS_MAX = 10_000
"""The maximum for a query's state. Each partition is a task and some files in every batch."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One idempotent request inside an events record (RULES.md#r27).

    ``digest`` is the hex digest of the request's payload. ``rows`` is the number of rows of the
    record that came from the request. The submissions of a record have the order of its rows.
    """

    producer: str
    sequence: int
    digest: str
    rows: int


LOG = "log"
"""The name that the log of a stream has among the sources of the stream."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """Rows that the active read from a source in one step, and that are part of an events record.

    ``offset`` is where the source continues after these rows, in the source's own format. ``rows``
    counts the rows that are in the record. ``rejected`` counts the rows that became dead letters
    instead.
    """

    source: str
    offset: str
    rows: int
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Events:
    """Body of an events record; its payload is one Arrow IPC batch of the stream's schema."""

    stream: str
    rows: int
    received_at_us: int
    submissions: tuple[Submission, ...] = ()
    pulled: tuple[Pulled, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """Body of a mark: micro-batch ``number`` of ``query`` ends after sequence ``through``."""

    query: str
    number: int
    through: int


@dataclass(frozen=True, slots=True)
class Published:
    """Body of a record: ``sink`` has every batch of ``query`` up to and including ``batch``."""

    query: str
    sink: str
    batch: int


@dataclass(frozen=True, slots=True)
class EpochStart:
    """Body of the first record of an epoch. The commit of this record commits every record before
    it (RULES.md#r3)."""

    node: str
    process: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class QueryVersion:
    """The version of one query that an application record starts.

    ``first`` is the mark after which this version starts. With ``reset`` the version starts with an
    empty state instead of the query's checkpoint. ``partitions`` is the number of partitions of the
    state, or None for the number in the config (RULES.md#r35). ``promoted`` is the number of the
    newest shadow that took the query's place, or None (RULES.md#r38).
    """

    query: str
    digest: str
    first: Mark
    reset: bool = False
    partitions: int | None = None
    promoted: int | None = None


@dataclass(frozen=True, slots=True)
class Application:
    """Body of an application record, at which every node switches to this application
    (RULES.md#r23)."""

    digest: str
    queries: tuple[QueryVersion, ...]


SHADOW_SIGN = "~"
"""The name of a shadow has this sign, which no query of an application may have in its name."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A changed query that runs beside the live ``query`` (RULES.md#r38).

    ``number`` is that of the deployment that began it, and ``first`` is the mark of the live query
    after which its empty state begins. ``id`` and ``archive`` are those of its application; both
    are empty in a promotion, whose application is the deployed one.
    """

    query: str
    number: int
    first: Mark
    id: str = ""
    archive: str = ""

    @property
    def name(self) -> str:
        """The name of the shadow among the queries of a node, and of its directories."""
        return f"{self.query}{SHADOW_SIGN}{self.number}"

    @property
    def lineage(self) -> str:
        """The part of the lineage of its checkpoint after the journal's id."""
        return f"{self.number}{SHADOW_SIGN}"


_SHADOWS = ("shadow", "promoted")
"""The fields of a deployment that only a group with shadows has."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """Body of a record that deploys an application to every node (RULES.md#r36).

    ``number`` counts the deployments of the group from 1. ``archive`` is a ZIP file with the files
    of the application, in base64, and ``id`` is the archive's digest. ``name`` is the
    application's name. ``by`` names the operator, and ``at_us`` is the time in microseconds since
    1970, by the clock of the active. ``on_change`` is ``keep``, ``reset``, ``backfill`` or None,
    and holds for each changed query that does not say itself what happens to its state. ``name``,
    ``by`` and ``at_us`` are for people only. ``shadow`` is the shadow that runs beside the
    application, and ``promoted`` is the newest shadow that took the place of its query
    (RULES.md#r38).
    """

    number: int
    id: str
    name: str
    by: str
    at_us: int
    archive: str
    on_change: str | None = None
    shadow: Shadow | None = None
    promoted: Shadow | None = None

    @property
    def runs(self) -> str:
        """The id of what a process runs with this deployment: the archive, and the shadow.

        A forced failover may give up a shadow, and another one may get its number.
        """
        if (shadow := self.shadow) is None:
            return self.id
        began = f"{shadow.number}.{shadow.first.number}.{shadow.first.through}"
        return f"{self.id}{SHADOW_SIGN}{began}.{shadow.id}"

    @property
    def has_shadows(self) -> bool:
        """Whether an engine that knows no shadows must not read this deployment."""
        return self.shadow is not None or self.promoted is not None

    @property
    def tree(self) -> dict[str, Any]:
        """The fields as values of JSON, without those of shadows if there are none."""
        tree = asdict(self)
        return {name: value for name, value in tree.items() if name not in _SHADOWS or value}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Deployed:
        """The deployment with this ``tree``. Raises KeyError, TypeError."""
        values: dict[str, Any] = {
            one.name: tree[one.name] for one in fields(cls) if one.name not in _SHADOWS
        }
        values |= {name: shadow_of_tree(tree[name]) for name in _SHADOWS if name in tree}
        return cls(**values)


def shadow_of_tree(tree: Mapping[str, Any]) -> Shadow:
    """The shadow with these fields. Raises KeyError, TypeError."""
    return Shadow(**{**tree, "first": Mark(**tree["first"])})


@dataclass(frozen=True, slots=True)
class Skip:
    """Body of a skip: batch ``number`` of ``query`` reads no rows, since an operator skipped it
    (RULES.md#i15)."""

    query: str
    number: int
    by: str
    reason: str


Body = Events | Mark | Published | EpochStart | Application | Skip | Deployed
"""The body of a record. A Skip and a Deployed have the kind APPLICATION too, since all three change
the work of queries."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of the journal.

    ``committed`` is the highest sequence that the writer knew to be committed when it wrote the
    record (RULES.md#r12). Only an events record has a ``payload``.
    """

    position: Position
    committed: int
    body: Body
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes of one segment file that contains only whole frames."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a snapshot's file as the database stores it.

    ``digest`` is the BLAKE2b digest of the chunk's content, and names the chunk. ``size`` is the
    size of the content. ``stored`` is the compressed content.
    """

    digest: bytes
    size: int
    stored: bytes


# -- trimmed records -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueryBase:
    """The state of one query in a base. Base files on disk have the names of the fields as keys.

    ``lineage`` is the sequence of the record that began the query's state, or that continued the
    state under changed code. ``carried_on`` is the number of the last mark before the change of the
    code, or None if the state began under the present code. ``initial`` is the mark before the
    query's first batch. ``last`` is the query's newest mark. ``published`` has pairs of a sink and
    its last published batch. ``unheard`` lists the sinks whose ledgers have not answered since a
    forced failover gave up records (RULES.md#r26). ``ahead`` lists marks whose records come after
    the base; if there are such marks, ``last`` is the last of them.
    """

    version: QueryVersion
    lineage: int
    carried_on: int | None
    initial: Mark
    last: Mark
    published: tuple[tuple[str, int], ...] = ()
    unheard: tuple[str, ...] = ()
    ahead: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Base:
    """The state that results from the trimmed records of a journal, up to ``position``.

    ``epochs`` has the first position of each epoch. ``forced`` has the first position of each epoch
    that began with a forced failover. ``application`` is the digest of the application at
    ``position``. ``skips`` has the (query, batch) of each skipped batch that a node may still run.
    ``deployed`` is the newest deployment, or None if each node has its application in a file.
    """

    position: Position = ORIGIN
    epochs: tuple[Position, ...] = ()
    forced: tuple[Position, ...] = ()
    application: str | None = None
    queries: tuple[QueryBase, ...] = ()
    skips: tuple[tuple[str, int], ...] = ()
    deployed: Deployed | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """A visible revision: the draft of this snapshot is complete in the database.

    ``bytes_new`` counts the bytes in the chunks that this revision added to the database.
    ``bytes_total`` and ``bytes_new`` are sizes before compression. ``age_seconds`` counts from the
    moment when the revision became visible, by the database's clock.
    """

    id: int
    taken_by: str
    position: Position
    last_mark: Position
    begun_at: datetime
    visible_at: datetime
    bytes_total: int
    bytes_new: int
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Collected:
    """How many revisions and chunks a cleanup removed."""

    revisions: int
    chunks: int


@dataclass(frozen=True, slots=True)
class History:
    """The positions of a journal from ``begins`` to ``ends``, or to its end if ``ends`` is None.

    ``epochs`` has the first position of each epoch.
    """

    begins: Position
    epochs: tuple[Position, ...]
    ends: Position | None = None

    def has(self, position: Position) -> bool:
        if position < self.begins or (self.ends is not None and position > self.ends):
            return False
        before = [start.epoch for start in self.epochs if start.sequence <= position.sequence]
        return max(before, default=0) == position.epoch

    def has_all(self, *positions: Position) -> bool:
        return all(map(self.has, positions))


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """The place of a snapshot: each of ``batches``, (query, number), ends at ``position``.

    ``last_mark`` is the position of the newest mark that ends one of these batches. A journal
    without a record at ``last_mark`` has other marks.
    """

    request: int
    position: Position
    batches: tuple[tuple[str, int], ...]
    last_mark: Position


# -- the lease row ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of the lease: a node, and its process that acquired the lease (RULES.md#r2)."""

    node: str
    process: str


@dataclass(frozen=True, slots=True)
class Member:
    """A node with one particular journal, which is in sync or not (RULES.md#r8)."""

    node: str
    journal_id: str


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """The system identifier and the timeline of the PostgreSQL that answered (RULES.md#r5)."""

    system_identifier: str
    timeline: str


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """The lease row of a group, as one read saw it.

    Every write of the row adds one to ``version`` (RULES.md#r1). ``holder`` is None after a
    release. If a release names a ``successor``, only this node may acquire the lease at once. If
    ``successor`` is None after a release, any in-sync member may acquire the lease at once.
    ``advertise`` is the holder's URL for producers. ``committed`` is the position of a record that
    was committed before the row was written, so every listed member has it (RULES.md#r8).
    """

    group_id: str
    holder: Holder | None
    epoch: int
    version: int
    in_sync: tuple[Member, ...]
    advertise: str | None = None
    successor: str | None = None
    paused: bool = False
    identity: DatabaseIdentity | None = None
    committed: Position = ORIGIN


@dataclass(frozen=True, slots=True)
class HolderChange:
    """One line of the lease's history: from ``at`` on, ``holder`` replaces ``previous``.

    ``outage_seconds`` is how long no node took events before the new holder did, as the new holder
    measured it.
    """

    at: datetime
    epoch: int
    version: int
    holder: Holder | None
    previous: Holder | None
    reason: str | None
    outage_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LogHeadroom:
    """The records that retention may still delete from the log of a stream, before those that this
    node may need.

    ``partition`` is the one in which that is least of what Kafka has.

    ``events`` are the offsets from the first record to the first one that is needed. They are
    negative if records that are needed are gone. ``retained`` are all offsets of the partition.
    """

    partition: int
    events: int
    retained: int

    @property
    def share(self) -> float:
        return self.events / max(1, self.retained)
