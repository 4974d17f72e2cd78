"""The lease's history, and the pause of failover, as the HTTP interface and the CLI show them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from ha_engine.api.bodies import History, HistoryLine, Pause
from ha_engine.types import HolderChange, LeaseRow


def history_tree(group: str, changes: Sequence[HolderChange]) -> History:
    """The body of GET /v1/history."""
    return {"group": group, "history": [_line(change) for change in changes]}


def _line(change: HolderChange) -> HistoryLine:
    holder, previous = change.holder, change.previous
    return {
        "at": change.at.astimezone(UTC).isoformat(),
        "epoch": change.epoch,
        "version": change.version,
        "node": holder.node if holder else None,
        "process": holder.process if holder else None,
        "previous_node": previous.node if previous else None,
        "previous_process": previous.process if previous else None,
        "reason": change.reason,
        "outage_seconds": change.outage_seconds,
    }


def pause_tree(group: str, row: LeaseRow) -> Pause:
    """The body of the answer to POST /v1/pause and /v1/resume."""
    return {
        "group": group,
        "paused": row.paused,
        "holder": row.holder.node if row.holder else None,
        "epoch": row.epoch,
        "version": row.version,
    }
