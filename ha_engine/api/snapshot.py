"""The HTTP routes of snapshots: one shows their state, the other requests a snapshot now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse

from ha_engine.api.bodies import (
    Moving,
    NotHere,
    RestoredBody,
    RevisionBody,
    SnapshotAsked,
    SnapshotBody,
)
from ha_engine.auth import Right
from ha_engine.core import Core
from ha_engine.core import inputs as on
from ha_engine.stats.counters import Restored, SnapshotCounters, Transfer
from ha_engine.types import Revision
from ha_engine.web.route import Answer, Operation, OperationRoute

_SHOW = Operation(
    "snapshots",
    "Show the state of snapshots.",
    {200: Answer("The state of snapshots, as this node knows it.", SnapshotBody)},
    needs=Right.READ,
)
_ASK = Operation(
    "snapshot",
    "Take a snapshot of everything that is committed now.",
    {
        202: Answer("The active will take the snapshot.", SnapshotAsked),
        409: Answer("This node is not the active.", NotHere),
    },
)


class SnapshotState(Protocol):
    """The revisions that this node knows, newest first, and its own snapshots and restores."""

    counts: SnapshotCounters
    revisions: list[Revision]

    transfer: Transfer
    upload: Transfer
    restored: Restored | None

    @property
    def age_seconds(self) -> float | None: ...


def snapshot_routes(
    core: Core, snapshots: SnapshotState, handle: Callable[[on.Input], None]
) -> list[OperationRoute]:
    """``GET /v1/snapshot`` shows the state of snapshots, ``POST /v1/snapshot`` requests a
    snapshot."""

    async def show(request: Request) -> JSONResponse:
        return JSONResponse(snapshot_tree(core, snapshots))

    async def ask(request: Request) -> JSONResponse:
        if core.term is None:
            refusal = {"error": "this node is not the active", "active": core.lease.active_url}
            return JSONResponse(refusal, 409)
        handle(on.SnapshotAsked())
        return JSONResponse({"at_least": core.journal.committed}, 202)

    return [
        OperationRoute("/v1/snapshot", show, _SHOW, "GET"),
        OperationRoute("/v1/snapshot", ask, _ASK, "POST"),
    ]


def snapshot_tree(core: Core, snapshots: SnapshotState) -> SnapshotBody:
    """The body of GET /v1/snapshot."""
    own = core.term.snapshots if core.term else None
    age, revisions, counts = snapshots.age_seconds, snapshots.revisions, snapshots.counts
    return {
        "state": own.state if own else None,
        "why_not": own.why_not if own else None,
        "revisions": len(revisions),
        "age_seconds": None if age is None else round(age, 1),
        "newest": revision_tree(revisions[0]) if revisions else None,
        "taken": counts.taken,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "seconds": round(counts.seconds, 3),
        "taking": _bytes_of(snapshots.upload),
        "restoring": _bytes_of(snapshots.transfer),
        "restored": _restored(snapshots.restored) if snapshots.restored else None,
    }


def _restored(restored: Restored) -> RestoredBody:
    return {
        "revision": restored.revision,
        "position": restored.position,
        "bytes": restored.bytes,
        "seconds": restored.seconds,
        "skipped": list(restored.skipped),
    }


def _bytes_of(transfer: Transfer) -> Moving | None:
    if not transfer.total:
        return None
    return {"bytes_total": transfer.total, "bytes_done": transfer.done}


def revision_tree(revision: Revision) -> RevisionBody:
    """One revision of a snapshot, for the HTTP routes and the command line. Times are in ISO 8601,
    and sizes are in bytes."""
    return {
        "id": revision.id,
        "epoch": revision.position.epoch,
        "sequence": revision.position.sequence,
        "taken_by": revision.taken_by,
        "begun_at": revision.begun_at.isoformat(),
        "visible_at": revision.visible_at.isoformat(),
        "bytes_total": revision.bytes_total,
        "bytes_new": revision.bytes_new,
    }
