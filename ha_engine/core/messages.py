"""The messages between the cores of two nodes.

The sync stage delivers the messages of a link in order or not at all, with one exception. Records
wait until the other messages are sent, so a later message such as Committed may arrive before
Records. The receiver therefore counts a record as committed only once the record is durable.

Every message names the epoch of the holder that sent it or receives it. A node ignores a message of
an older epoch (RULES.md#i14). A message of a higher epoch demotes the node that receives it
(RULES.md#r14). The holder asks each member where its journal ends (Probe, answered by ProbeReply).
The holder then names the position after which the member follows (Follow), and sends records. The
member acks the records that are durable (Ack).
"""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.types import ORIGIN, Position, Record, SnapshotPlace


@dataclass(frozen=True, slots=True)
class Probe:
    """The holder asks where a member's journal ends. The member answers with ProbeReply."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """A member answers a Probe with the end of its journal.

    ``epochs`` are the first positions of the epochs in the journal.
    """

    epoch: int
    journal_id: str
    last: Position
    committed: int
    epochs: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """The holder names the position after which the member's journal continues with the holder's
    records.

    ``shared_end`` is the last position that both journals share. The member must remove its records
    after ``shared_end``. ``replied_end`` is the end of the member's journal in the ProbeReply that
    the holder answers. ``forced`` is True if an operator gave up records that other nodes had
    committed after ``shared_end`` (RULES.md#r26). If ``shared_end`` is before ``begins``, the
    holder no longer has all records that the member lacks. The member then restores a snapshot at
    ``begins`` or later, in the history of ``epochs`` (RULES.md#r28).
    """

    epoch: int
    journal_id: str
    shared_end: Position
    replied_end: Position
    forced: bool = False
    begins: Position = ORIGIN
    epochs: tuple[Position, ...] = ()

    @property
    def by_snapshot(self) -> bool:
        return self.shared_end.sequence < self.begins.sequence


@dataclass(frozen=True, slots=True)
class Records:
    """The holder sends the records after ``previous``.

    ``committed`` is the highest committed sequence (RULES.md#r12).
    """

    epoch: int
    previous: Position
    records: tuple[Record, ...]
    committed: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The holder sends its new commit position as soon as more records are committed.

    Members do not answer this message.
    """

    epoch: int
    committed: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The holder sends several heartbeats within each ``sync_timeout``.

    ``request`` is not 0 if the holder cannot reach the database and asks for a promise
    (RULES.md#r16). ``oldest_revision`` is the sequence of the oldest kept snapshot revision, or 0
    (RULES.md#r29).
    """

    epoch: int
    committed: int
    request: int = 0
    oldest_revision: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """A follower sends an Ack after a Follow, after each fdatasync, and as the answer to each
    Heartbeat.

    ``headroom`` is False while the follower's disk is nearly full (RULES.md#r30). ``warm`` says
    whether the follower's queries are warm (RULES.md#r10). ``batches`` has (query, newest batch)
    for each query that runs. ``leaves`` says that the follower stops, and asks the holder to
    continue without it (RULES.md#r9).
    """

    epoch: int
    journal_id: str
    durable: int
    headroom: bool
    warm: bool
    batches: tuple[tuple[str, int], ...] = ()
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Promise:
    """A follower promises to acquire nothing for a ttl, except on a release of ``epoch``
    (RULES.md#r16).

    The promise binds the node with the journal ``journal_id``. A node of the same name with another
    journal does not know of the promise.
    """

    epoch: int
    request: int
    journal_id: str


@dataclass(frozen=True, slots=True)
class Released:
    """The former holder has released the lease of ``epoch``.

    The message is a hint to read the lease row.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class BatchDigest:
    """The holder sends the digest of its batch ``number`` of ``query`` (RULES.md#i6)."""

    epoch: int
    query: str
    number: int
    digest: str


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """The holder asks one warm in-sync member to store a snapshot at ``place``."""

    epoch: int
    place: SnapshotPlace


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A member answers a TakeSnapshot: its snapshot is complete as the revision ``draft``.

    ``batches`` has (query, number, digest) for the last batch of each query in the snapshot.
    """

    epoch: int
    request: int
    draft: int
    batches: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """A member answers a TakeSnapshot: it could not take the snapshot."""

    epoch: int
    request: int
    reason: str


HolderMessage = (
    Probe | Follow | Records | Committed | Heartbeat | Released | BatchDigest | TakeSnapshot
)
"""The messages that a holder sends."""


@dataclass(frozen=True, slots=True)
class SnapshotLacking:
    """A member must restore a snapshot, and has found none that it can use."""

    epoch: int
    reason: str


SnapshotAnswer = SnapshotTaken | SnapshotFailed

MemberMessage = ProbeReply | Ack | Promise | SnapshotAnswer | SnapshotLacking
"""The messages that the other members send."""

Message = HolderMessage | MemberMessage
