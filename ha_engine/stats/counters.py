"""The counters of the driver and the snapshots: role changes by reason, differences, failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ha_engine.core import inputs as on
from ha_engine.types import Role

_BY_ROLE = {
    Role.PASSIVE: "in_sync",
    Role.PROMOTING: "acquired",
    Role.ACTIVE: "committed",
}
_TO_JOINING = {
    Role.STARTING: "started",
    Role.PASSIVE: "out_of_sync",
    Role.DEMOTING: "demoted",
}


@dataclass
class NodeCounters:
    """Totals since the process started. The codes are stable: alerts compare with them."""

    role_changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By (new role, reason)."""
    digest_mismatches: int = 0
    database_failures: int = 0
    orphans: int = 0
    """Calls of query processes other than the one that this node runs."""
    outage_seconds: float | None = None
    """For how long no node was active before this node last became active."""
    database_asked: Callable[[float], None] = lambda seconds: None
    """Called with the duration in seconds of each call on the lease row."""

    def role_changed(self, before: Role, role: Role, event: on.Input, *, stopping: bool) -> None:
        self.role_changes[role.value, _reason(before, role, event, stopping)] += 1


def _reason(before: Role, role: Role, event: on.Input, stopping: bool) -> str:
    """A code for why ``role`` followed ``before`` in the step of ``event``."""
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
    """The snapshots of this process. ``seconds`` is the duration of the newest one taken here.
    ``skipped`` counts revisions that a restore tried and could not use."""

    taken: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0


@dataclass
class Transfer:
    """Bytes of the snapshot that is being restored; ``total`` is 0 while none is."""

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
    """The restore that a node's data began with. ``position`` is text. ``skipped`` lists newer
    revisions that could not be used."""

    revision: int
    position: str
    bytes: int
    seconds: float
    skipped: tuple[int, ...] = ()
