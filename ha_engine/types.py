"""The values that stages hand to each other: positions, records and the bodies of records.

Everything here is a frozen value without behaviour that touches the world. The words are those of
docs/GLOSSARY.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, IntEnum


class Role(Enum):
    """The role of a node in its group. Legal transitions are data in core/role.py."""

    STARTING = "starting"
    JOINING = "joining"
    PASSIVE = "passive"
    PROMOTING = "promoting"
    ACTIVE = "active"
    DEMOTING = "demoting"
    STOPPED = "stopped"


class RecordKind(IntEnum):
    """Kind byte of a journal record. Values are on disk: never renumber."""

    EVENTS = 1
    MARK = 2
    PUBLISHED = 3
    EPOCH = 4
    APPLICATION = 5


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """A place in the journal: sequence orders its records, epoch distinguishes histories."""

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sequence}"


ORIGIN = Position(0, 0)
"""The position before the first record."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One idempotent request inside an events record (RULES.md#r27).

    ``digest`` is the hex digest of the request's payload. ``rows`` is the number of the record's
    rows, in order, that came from it.
    """

    producer: str
    sequence: int
    digest: str
    rows: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """One batch of a source inside an events record.

    ``offset`` is where the source continues after it, in the source's own format. ``rows`` are in
    the record; ``rejected`` were put aside.
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
    """Micro-batch ``number`` of ``query`` ends after the record with sequence ``through``."""

    query: str
    number: int
    through: int


@dataclass(frozen=True, slots=True)
class Published:
    """The sink ``sink`` has every batch of ``query`` up to and including ``batch``."""

    query: str
    sink: str
    batch: int


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The first record of an epoch. The commit of this record commits every record before it
    (RULES.md#r3)."""

    node: str
    process: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class QueryVersion:
    """The version of one query from an application record on.

    ``first`` is the mark after which this version starts. With ``reset`` it starts with an empty
    state instead of its checkpoint.
    """

    query: str
    digest: str
    first: Mark
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Application:
    """Every node switches to this application at this record (RULES.md#r23)."""

    digest: str
    queries: tuple[QueryVersion, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """Batch ``number`` of ``query`` reads no rows: an operator gave it up (RULES.md#i15)."""

    query: str
    number: int
    by: str
    reason: str


Body = Events | Mark | Published | EpochStart | Application | Skip
"""The body of a record. Skip shares RecordKind.APPLICATION: both change what a query does."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of the journal.

    ``committed`` is the highest sequence that the writer knew to be committed when it wrote the
    record (RULES.md#r12); ``payload`` is empty for everything but events.
    """

    position: Position
    committed: int
    body: Body
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of bytes of one segment file, made of whole frames."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a snapshot's file as the database stores it.

    It is compressed and named by its content's BLAKE2b. ``size`` is that of the content.
    """

    digest: bytes
    size: int
    stored: bytes


# -- trimmed records -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueryBase:
    """The part of a base about one query. Base files on disk have the names of the fields as keys.

    ``lineage`` is the sequence of the record that began the state, or that continued it under
    changed code. ``carried_on`` is the last mark before that change. ``initial`` is the mark before
    the first batch, ``last`` the newest mark. ``published`` has (sink, batch). ``unheard`` lists
    the sinks whose ledgers have not answered since a history was given up (RULES.md#r26). The
    records of the marks ``ahead`` come after the base; the last of these marks is ``last``.
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
    """The state that the trimmed records of a journal, up to ``position``, left behind.

    ``epochs`` and ``forced`` are first positions of epochs. ``application`` is the digest that was
    in force. ``skips`` has (query, batch) for batches that a node may still run.
    """

    position: Position = ORIGIN
    epochs: tuple[Position, ...] = ()
    forced: tuple[Position, ...] = ()
    application: str | None = None
    queries: tuple[QueryBase, ...] = ()
    skips: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Revision:
    """A visible revision. ``bytes_new`` counts the bytes in chunks that it added to the database.

    Both sizes are uncompressed. ``age_seconds`` counts from the moment when the revision became
    visible, by the database's clock.
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
class History:
    """The positions from ``begins`` to ``ends`` (None: open) of a journal with these epochs."""

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

    ``last_mark`` is the newest record of the marks that end them. A history without that record has
    other marks.
    """

    request: int
    position: Position
    batches: tuple[tuple[str, int], ...]
    last_mark: Position


# -- the lease row ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of the lease: a node and the one process of it that acquired (RULES.md#r2)."""

    node: str
    process: str


@dataclass(frozen=True, slots=True)
class Member:
    """A node together with the journal that makes it in-sync (RULES.md#r8)."""

    node: str
    journal_id: str


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """The PostgreSQL that answered: its system identifier and timeline (RULES.md#r5)."""

    system_identifier: str
    timeline: str


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """The group's row as one read saw it. Every write adds one to ``version`` (RULES.md#r1).

    ``holder`` is None after a release. ``successor`` then names the node that may acquire at once;
    None: any in-sync member may. ``advertise`` is the holder's URL for producers.
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


@dataclass(frozen=True, slots=True)
class HolderChange:
    """One line of the lease's history: from ``at`` on, ``holder`` replaces ``previous``.

    ``outage_seconds`` is for how long no node acted, as the new holder measured it.
    """

    at: datetime
    epoch: int
    version: int
    holder: Holder | None
    previous: Holder | None
    reason: str | None
    outage_seconds: float | None = None
