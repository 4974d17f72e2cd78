"""The messages between the cores of two nodes. The sync stage delivers them in order or not at all.

Every message names the epoch of the holder that sent it or receives it. A node ignores a message of
an older epoch (RULES.md#i14), and one of a higher epoch demotes it (RULES.md#r14). The holder asks
each member where its journal ends (Probe, answered by ProbeReply). It names the position to follow
from (Follow) and sends records. The member acks those that are durable (Ack).
"""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.types import ORIGIN, Position, Record, SnapshotPlace


@dataclass(frozen=True, slots=True)
class Probe:
    """From the holder: asks where the member's journal ends. Answered by ProbeReply."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """From a member: where its journal ends. Answers a Probe.

    ``epochs`` are the first positions of the epochs in the journal.
    """

    epoch: int
    journal_id: str
    last: Position
    committed: int
    epochs: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """From the holder: ``shared_end`` is the last position that both journals share.

    The member must remove the records that it has after ``shared_end``. ``replied_end`` is the end
    of its journal in the ProbeReply that this answers. ``forced``: an operator gave up what others
    had committed after ``shared_end`` (RULES.md#r26). If ``shared_end`` is before ``begins``, the
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
    """From the holder: the records after ``previous``. ``committed`` is the highest committed
    sequence (RULES.md#r12)."""

    epoch: int
    previous: Position
    records: tuple[Record, ...]
    committed: int


@dataclass(frozen=True, slots=True)
class Committed:
    """From the holder, as soon as more is committed: the new commit position. Not answered."""

    epoch: int
    committed: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """From the holder, several within ``sync_timeout``.

    ``request`` is not 0 when the holder asks for a promise, since it cannot reach the database
    (RULES.md#r16). ``oldest_revision`` is the sequence of the oldest kept revision, 0 without one
    (RULES.md#r29).
    """

    epoch: int
    committed: int
    request: int = 0
    oldest_revision: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """From a follower: after a Follow, after each fdatasync, and as the answer to each Heartbeat.

    ``headroom`` is False while its disk is nearly full (RULES.md#r30). ``warm`` says whether its
    queries are (RULES.md#r10). ``batches`` has (query, newest batch) for each query that runs.
    """

    epoch: int
    journal_id: str
    durable: int
    headroom: bool
    warm: bool
    batches: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Promise:
    """From a follower: it acquires nothing for a ttl, except on a release of ``epoch``
    (RULES.md#r16).

    The promise binds the node with that journal. A node of the same name with another journal does
    not know of the promise.
    """

    epoch: int
    request: int
    journal_id: str


@dataclass(frozen=True, slots=True)
class Released:
    """From the holder: it released the lease of ``epoch``. A hint to read the row."""

    epoch: int


@dataclass(frozen=True, slots=True)
class BatchDigest:
    """From the holder: the digest of its batch ``number`` of ``query`` (RULES.md#i6)."""

    epoch: int
    query: str
    number: int
    digest: str


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """From the holder, to one warm in-sync member: store a snapshot as of ``place``."""

    epoch: int
    place: SnapshotPlace


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """From the member: the snapshot is complete as ``draft``. Answers TakeSnapshot.

    ``batches`` are the last ones that it contains, as (query, number, digest).
    """

    epoch: int
    request: int
    draft: int
    batches: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """From the member: it could not take the snapshot. Answers TakeSnapshot."""

    epoch: int
    request: int
    reason: str


Word = Probe | Follow | Records | Committed | Heartbeat | Released | BatchDigest | TakeSnapshot
"""The messages from a holder."""


@dataclass(frozen=True, slots=True)
class SnapshotLacking:
    """From a member that has to restore a snapshot and found none that it can use."""

    epoch: int
    reason: str


SnapshotAnswer = SnapshotTaken | SnapshotFailed

Answer = ProbeReply | Ack | Promise | SnapshotAnswer | SnapshotLacking
"""The messages from the other members."""

Message = Word | Answer
