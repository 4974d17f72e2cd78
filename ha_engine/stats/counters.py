"""The counters of a node: role changes by reason, different digests, failures and snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ha_engine.core import inputs as on
from ha_engine.types import Role

_BY_ROLE = {
    Role.PASSIVE: "in_sync",
    Role.BACKUP: "out_of_sync",
    Role.PROMOTING: "acquired",
    Role.ACTIVE: "committed",
}
_TO_JOINING = {
    Role.STARTING: "started",
    Role.PASSIVE: "out_of_sync",
    Role.BACKUP: "out_of_sync",
    Role.DEMOTING: "demoted",
}


@dataclass
class NodeCounters:
    """The totals of a node since its process started.

    The codes of reasons never change, because alerts compare metrics with these codes.
    """

    role_changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of role changes by new role and reason."""
    digest_mismatches: int = 0
    database_failures: int = 0
    peer_rollbacks: int = 0
    """How often the disk of a peer had gone back in time when it connected."""
    executor_bytes: int = 0
    """Bytes of the journal that executors of a cluster read from this node."""
    orphans: int = 0
    """Calls by query processes other than the query process that this node runs."""
    outage_seconds: float | None = None
    """For how long no node was active before this node last became active."""
    database_asked: Callable[[float], None] = lambda seconds: None
    """A function that is called with the duration in seconds of each access to the lease row."""

    def role_changed(self, before: Role, role: Role, event: on.Input, *, stopping: bool) -> None:
        self.role_changes[role.value, _reason(before, role, event, stopping)] += 1


def _reason(before: Role, role: Role, event: on.Input, stopping: bool) -> str:
    """The code of the reason why the input ``event`` changed the role ``before`` to ``role``."""
    match role:
        case Role.JOINING:
            return _TO_JOINING[before]
        case Role.DEMOTING:
            return "stopped" if stopping else _reason_to_demote(event)
        case Role.STOPPED:
            return "stopped" if stopping else "refused"
        case _:
            return _BY_ROLE[role]


def _reason_to_demote(event: on.Input) -> str:
    match event:
        case on.LeaseWritten(row):
            return "released" if row.holder is None else "row_rewritten"
        case on.HigherEpochSeen() | on.PeerMessage():
            return "higher_epoch"
        case _:
            return "lease_lost"


@dataclass
class SnapshotCounters:
    """The totals of snapshots since the process started.

    ``seconds`` is the duration of the newest snapshot that this process took. ``skipped`` counts
    the revisions that a restore tried and could not use.
    """

    taken: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0


@dataclass
class Transfer:
    """The progress in bytes of an upload or a restore of a snapshot.

    ``total`` is 0 while no transfer runs.
    """

    total: int = 0
    done: int = 0

    @property
    def to_go(self) -> int:
        return max(0, self.total - self.done)

    def begin(self, total: int) -> None:
        self.total, self.done = total, 0

    def advance(self, count: int) -> None:
        self.done += count

    def end(self) -> None:
        self.begin(0)


@dataclass(frozen=True, slots=True)
class Restored:
    """The restore from which a node's data began.

    ``position`` is the position of the snapshot as text. ``skipped`` lists newer revisions that the
    restore could not use.
    """

    revision: int
    position: str
    bytes: int
    seconds: float
    skipped: tuple[int, ...] = ()
