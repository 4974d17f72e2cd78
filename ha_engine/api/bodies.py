"""The types of the bodies with which the HTTP routes answer, for mypy and for OpenAPI.

Every sequence is the number of a journal record, and every epoch is an epoch of the lease. A time
that is a text is in ISO 8601. The name of a field with a duration or a size contains the unit.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from ha_engine.types import Role
from ha_engine.web.route import Refusal, described

RoleName = Annotated[str, WithJsonSchema({"type": "string", "enum": [r.value for r in Role]})]


@described
class NotHere(Refusal):
    """The refusal of a request by a node that is not the active, or that cannot serve it now."""

    active: str | None
    """URL of the active, where known."""


@described
class Check(TypedDict):
    """The answer to a health check of a load balancer."""

    ok: bool
    """Whether the check succeeded; the status code says the same."""
    role: RoleName
    epoch: int
    reason: str
    """Why the node has its role, or waits for another."""


@described
class Revived(TypedDict):
    """A query runs again."""

    query: str


@described
class Handover(TypedDict):
    """A switchover has begun."""

    to: str | None
    """Node that takes over; null if it has already taken over."""


# -- lease -----------------------------------------------------------------------------------------


@described
class HistoryLine(TypedDict):
    """One change of the lease's holder."""

    at: str
    epoch: int
    version: int
    node: str | None
    """Holder since this change; null if the lease was released."""
    process: str | None
    previous_node: str | None
    previous_process: str | None
    reason: str | None
    outage_seconds: float | None
    """How long no node was active, as the new holder measured it."""


@described
class History(TypedDict):
    """Changes of the lease's holder, newest first."""

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
    """The records that a forced failover to this node may lose."""

    node: str
    refusal: str | None
    """Why the failover is refused now; null when it is allowed."""
    journal_ends: str
    epoch: int
    in_sync: list[str]
    """Other nodes that the lease row lists as in sync."""
    records_lost_min: int
    may_be_lost: str
    """The possible loss as a sentence."""


@described
class LossRefused(Loss, Refusal):
    """The records that a forced failover may lose, and why the node refuses the failover."""


# -- snapshots -------------------------------------------------------------------------------------


@described
class RevisionBody(TypedDict):
    """One snapshot in the database."""

    id: int
    epoch: int
    sequence: int
    """With the epoch, the position where a node continues after it restores the snapshot."""
    taken_by: str
    begun_at: str
    visible_at: str
    bytes_total: int
    bytes_new: int
    """Bytes that the database did not have before."""


@described
class Moving(TypedDict):
    """A snapshot that the node is uploading or downloading."""

    bytes_total: int
    bytes_done: int


@described
class RestoredBody(TypedDict):
    """The restore of a snapshot on which the node's data is based."""

    revision: int
    position: str
    bytes: int
    seconds: float
    skipped: list[int]
    """Newer revisions that could not be used."""


@described
class SnapshotBody(TypedDict):
    """The state of snapshots."""

    state: str | None
    """State on the active; null on other nodes, like why_not."""
    why_not: str | None
    """Why there is no newer snapshot."""
    revisions: int
    age_seconds: float | None
    newest: RevisionBody | None
    taken: int
    """Snapshots that this node took since its process started; failed counts the same way."""
    failed: int
    skipped: int
    """Revisions since then that a restore of the node, or of one query's state, could not use."""
    seconds: float
    """Duration of the newest snapshot that this node took."""
    taking: Moving | None
    restoring: Moving | None
    restored: RestoredBody | None


@described
class SnapshotAsked(TypedDict):
    """The answer of an active that will take a snapshot."""

    at_least: int
    """Lowest sequence that the snapshot will include."""


# -- deployed applications -------------------------------------------------------------------------


@described
class DeploymentBody(TypedDict):
    """A deployment of one or several applications."""

    number: int
    """Counts the deployments of the group from 1."""
    id: str
    """Digest of all files."""
    name: str
    """The application's name, or the names of all."""
    by: str
    at_us: int
    """Microseconds since 1970, by the clock of the active."""
    on_change: str | None
    """What happens to the state of a changed query that does not say it itself."""
    runs: NotRequired[str]
    """What a node process with this deployment runs: the files, and the shadow beside them."""
    shadow: NotRequired[dict[str, Any]]
    """The shadow that runs beside the application."""
    promoted: NotRequired[dict[str, Any]]
    """The newest shadow that took the place of its query."""


@described
class RunningApplication(TypedDict):
    """The application that a node process runs."""

    digest: str
    """Digest of its streams, queries, sinks and functions."""
    archive: str | None
    """Id of the deployment that brought it, or null if it is the file of the node's config."""
    deployment: int | None
    """Number of that deployment; null for a file, and for a deployment before the newest one."""
    is_former: bool
    """Another application is deployed, so the node process must restart."""


@described
class OriginBody(TypedDict):
    """The deployment that brought the present files of an application."""

    number: int
    by: str
    at_us: int
    """Microseconds since 1970, by the clock of the active."""


@described
class OneApplicationBody(TypedDict):
    """One of the applications of a node."""

    name: str
    streams: list[str]
    queries: list[str]
    digest: str
    """Digest of its streams, queries, sinks and functions."""
    deployment: OriginBody | None
    """The deployment that brought its present files, or null if it is in the config's file."""


@described
class ApplicationBody(TypedDict):
    """The applications of a node."""

    node: str
    name: str
    """Name of the application that the node process runs, or the names of several."""
    digest: str
    """Digest of all streams, queries, sinks and functions."""
    applications: list[OneApplicationBody]
    archive: str | None
    """Id of the deployment that the node process runs, or null if it runs the config's file."""
    deployed: DeploymentBody | None
    """The newest deployment in the node's journal, or null without one."""
    history: list[DeploymentBody]
    """The deployments whose files this node has, newest first."""


@described
class ArchiveBody(TypedDict):
    """The files of a deployment."""

    number: int
    id: str
    archive: str
    """A ZIP file in base64."""


@described
class DeployAccepted(TypedDict):
    """The deployment that every node now moves to."""

    number: int
    id: str
    name: str


# -- aggregations ----------------------------------------------------------------------------------


@described
class AggregationRows(TypedDict):
    """Rows of an aggregation, ordered by the start of their period and by their keys."""

    aggregation: str
    per: str
    time_zone: str
    """The zone in which periods begin, and whose offset ``start`` has."""
    more: bool
    """Whether there are more rows than ``limit``."""
    rows: list[dict[str, Any]]
    """Each with ``start``, the keys and the values."""
