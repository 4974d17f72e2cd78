"""What the cores of two nodes say to each other; the sync stage carries it in order or not at all.

Every message names the epoch of the holder that it came from or goes to; one of an older epoch is
not heard (RULES.md#i14), one of a higher epoch demotes (RULES.md#r14). The holder asks each member
where it stands (Probe, Standing), tells it where to go on (Follow), sends records, and hears how
far they are durable (Ack).
"""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.types import ORIGIN, Cut, Position, Record


@dataclass(frozen=True, slots=True)
class Probe:
    """From the holder: where do you stand?"""

    epoch: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The answer to a Probe. ``epochs`` are the first positions of the epochs in the journal."""

    epoch: int
    journal_id: str
    last: Position
    committed: int
    epochs: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """From the holder: ``match`` is where our journals part; what you have behind it is to go.

    ``stood`` is the end of the journal in the Standing that this answers. ``forced``: an operator
    gave up, behind ``match``, whatever the others had committed there (RULES.md#r26). Where
    ``match`` is not as far as ``begins``, the holder has no longer all that you lack: begin from a
    snapshot that stands there or later, in the history of ``epochs`` (RULES.md#r28).
    """

    epoch: int
    journal_id: str
    match: Position
    stood: Position
    forced: bool = False
    begins: Position = ORIGIN
    epochs: tuple[Position, ...] = ()

    @property
    def by_snapshot(self) -> bool:
        return self.match.sequence < self.begins.sequence


@dataclass(frozen=True, slots=True)
class Records:
    """The records behind ``previous``; ``committed`` is the highest committed sequence
    (RULES.md#r12)."""

    epoch: int
    previous: Position
    records: tuple[Record, ...]
    committed: int


@dataclass(frozen=True, slots=True)
class Committed:
    """From the holder, as soon as more is committed: up to that sequence. Nothing answers it."""

    epoch: int
    committed: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """From the holder, several within ``sync_timeout``.

    ``request`` is not 0 when the holder cannot reach the database and asks for a promise
    (RULES.md#r16). ``kept`` is the position of the oldest revision that is kept, 0 without one
    (RULES.md#r29).
    """

    epoch: int
    committed: int
    request: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """From a follower, after each fdatasync and to each Heartbeat.

    ``room`` is False while its disk is nearly full (RULES.md#r30); ``warm`` tells of its queries
    (RULES.md#r10), and ``batches`` how far each one that runs has come, as (query, batch number).
    """

    epoch: int
    journal_id: str
    durable: int
    room: bool
    warm: bool
    batches: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Promise:
    """From a follower: it acquires nothing for a ttl, except on release of ``epoch``
    (RULES.md#r16).

    It binds who has that journal: another node of the name knows nothing of it.
    """

    epoch: int
    request: int
    journal_id: str


@dataclass(frozen=True, slots=True)
class Released:
    """From the holder: the lease of ``epoch`` was given up, read the row. Only a hint."""

    epoch: int


@dataclass(frozen=True, slots=True)
class BatchDigest:
    """From the holder: what its batch ``number`` of ``query`` came to (RULES.md#i6)."""

    epoch: int
    query: str
    number: int
    digest: str


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """From the holder, to one warm in-sync member: store a snapshot that stands at ``cut``."""

    epoch: int
    cut: Cut


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The answer: it is complete as ``draft``.

    ``batches`` are those that it stands on, and what they came to: (query, number, digest).
    """

    epoch: int
    request: int
    draft: int
    batches: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The other answer."""

    epoch: int
    request: int
    reason: str


Word = Probe | Follow | Records | Committed | Heartbeat | Released | BatchDigest | TakeSnapshot
"""What a holder says."""


@dataclass(frozen=True, slots=True)
class SnapshotLacking:
    """From a member that is to begin from a snapshot and found none that it can use."""

    epoch: int
    reason: str


SnapshotAnswer = SnapshotTaken | SnapshotFailed

Answer = Standing | Ack | Promise | SnapshotAnswer | SnapshotLacking
"""What the others say."""

Message = Word | Answer
