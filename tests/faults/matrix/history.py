"""What happened in a world: requests, output, leases, roles and journals, as frozen values.

Times are seconds of CLOCK_MONOTONIC, which is one clock for all nodes, since one host runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    """One event of a producer; ``acked_at`` and ``epoch`` are None while its outcome is unknown.

    ``sent_at`` is the time of its first attempt, ``epoch`` that of the ack's position. ``node`` is
    the only node that the producer asks, or None.
    """

    producer: str
    event: int
    sent_at: float
    acked_at: float | None = None
    epoch: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class SinkRow:
    """A row in the sink, and the batch in whose transaction it was written; 0 if in none."""

    event: int
    text: str
    batch: int


@dataclass(frozen=True, slots=True)
class LedgerMove:
    """An update of the sink's ledger by ``node``, in the order of their commits.

    The update either publishes ``batch``, or raises the epoch and leaves the batch.
    """

    at: float
    epoch: int
    batch: int
    node: str


@dataclass(frozen=True, slots=True)
class LeaseVersion:
    """A version of the lease row; ``in_sync`` has pairs of a node and a journal id."""

    at: float
    version: int
    epoch: int
    holder: tuple[str, str] | None
    in_sync: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RoleSeen:
    """The role in a node's status. ``started_at`` tells two processes of the node apart."""

    at: float
    node: str
    started_at: float
    role: str


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which no node reached the database."""

    began: float
    ended: float


@dataclass(frozen=True)
class History:
    """All that happened since the start of a world, observed while it was at rest.

    ``batches`` has the rows of each batch, as a run of the query over the journal of the active
    gives them. ``frames`` has the frames of each node's journal.
    """

    requests: tuple[Request, ...] = ()
    rows: tuple[SinkRow, ...] = ()
    moves: tuple[LedgerMove, ...] = ()
    leases: tuple[LeaseVersion, ...] = ()
    roles: tuple[RoleSeen, ...] = ()
    outages: tuple[Outage, ...] = ()
    batches: Mapping[int, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    frames: Mapping[str, bytes] = field(default_factory=dict)

    def published(self) -> list[LedgerMove]:
        """Return the moves that published a batch."""
        before = [0, *(move.batch for move in self.moves)]
        return [move for move, last in zip(self.moves, before, strict=False) if move.batch != last]
