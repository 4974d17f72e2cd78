"""What the routes answer, as types: mypy holds the code to them, and OpenAPI is made from them.

Sequences are those of journal records, epochs those of the lease. Times are ISO 8601 where they
are text; durations and sizes have their unit in the name.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from ha_engine.types import Role
from ha_engine.web.route import Refusal, described

RoleName = Annotated[str, WithJsonSchema({"type": "string", "enum": [r.value for r in Role]})]


@described
class NotHere(Refusal):
    """Refused by a node that is not the active, or by the active for now."""

    active: str | None
    """URL of the active, where known."""


@described
class Check(TypedDict):
    """The answer to a load balancer."""

    ok: bool
    """Whether the node is what was asked for; the status code says the same."""
    role: RoleName
    epoch: int
    why: str
    """Why it has this role, or waits for another."""


@described
class Revived(TypedDict):
    """A query goes on."""

    query: str


@described
class Handover(TypedDict):
    """A switchover has begun."""

    to: str | None
    """Node that takes over; null when it has by now."""


# -- lease -----------------------------------------------------------------------------------------


@described
class HistoryLine(TypedDict):
    """One change of the lease's holder."""

    at: str
    epoch: int
    version: int
    node: str | None
    """Holder from then on; null where the lease was released."""
    process: str | None
    previous_node: str | None
    previous_process: str | None
    why: str | None
    outage_seconds: float | None
    """How long nobody was active, as the new holder measured it."""


@described
class History(TypedDict):
    """Who held the lease, newest first."""

    group: str
    history: list[HistoryLine]


@described
class Pause(TypedDict):
    """Whether automatic failover is paused."""

    group: str
    paused: bool
    holder: str | None
    epoch: int
    version: int


@described
class Loss(TypedDict):
    """What a forced failover of this node would give up."""

    node: str
    refusal: str | None
    """Why it must not be forced now; null when it may."""
    journal_ends: str
    epoch: int
    in_sync: list[str]
    """Other nodes that the lease row lists as in sync."""
    records_lost_min: int
    may_be_lost: str
    """The same as a sentence."""


@described
class LossRefused(Loss, Refusal):
    """What it would give up, and why it must not."""


# -- snapshots -------------------------------------------------------------------------------------


@described
class RevisionBody(TypedDict):
    """One snapshot in the database."""

    id: int
    epoch: int
    sequence: int
    """With the epoch, the position from which a node that restores it goes on."""
    taken_by: str
    begun_at: str
    visible_at: str
    bytes_total: int
    bytes_new: int
    """What of it was not stored before."""


@described
class Moving(TypedDict):
    """A snapshot on its way."""

    bytes_total: int
    bytes_done: int


@described
class RestoredBody(TypedDict):
    """The restore that the node's data began with."""

    revision: int
    position: str
    bytes: int
    seconds: float
    skipped: list[int]
    """Newer revisions that could not be used."""


@described
class SnapshotBody(TypedDict):
    """How snapshots are going."""

    state: str | None
    """On the active only, null elsewhere; so is why_not."""
    why_not: str | None
    """Why there is no newer one."""
    revisions: int
    age_seconds: float | None
    newest: RevisionBody | None
    taken: int
    """By this node since its process started; so is failed."""
    failed: int
    skipped: int
    """Tried since then, for a node or for the state of one query, and could not be used."""
    seconds: float
    """What the newest one took that was taken here."""
    taking: Moving | None
    restoring: Moving | None
    restored: RestoredBody | None


@described
class SnapshotAsked(TypedDict):
    """A snapshot will be taken."""

    at_least: int
    """Sequence that it will hold."""
