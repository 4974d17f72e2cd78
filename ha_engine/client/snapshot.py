"""Request a snapshot from the active, and wait until the snapshot is visible."""

from __future__ import annotations

from typing import Any

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from ha_engine.client.admin import ask_snapshot, fetch_snapshot
from ha_engine.errors import SnapshotFailed


def await_snapshot(url: str, patience: float) -> dict[str, Any]:
    """Return the first visible revision that includes all records committed at the time of the
    call.

    Raises SnapshotFailed with the active's reason, or after ``patience`` seconds. Raises
    NodeUnreachable, EngineError.
    """
    asked, at_least = ask_snapshot(url)

    def look() -> dict[str, Any] | None:
        snapshots = fetch_snapshot(asked)
        newest: dict[str, Any] | None = snapshots["newest"]
        if newest is not None and newest["sequence"] >= at_least:
            return newest
        if snapshots["state"] == "waiting" and snapshots["why_not"]:
            raise SnapshotFailed(f"no snapshot was taken: {snapshots['why_not']}")
        return None

    ask = Retrying(
        retry=retry_if_result(lambda found: found is None),
        wait=wait_fixed(0.1),
        stop=stop_after_delay(patience),
        retry_error_callback=lambda state: None,
    )
    found: dict[str, Any] | None = ask(look)
    if found is None:
        raise SnapshotFailed(
            f"no snapshot became visible within {patience:g} s; run 'ha-engine status' and "
            "'ha-engine snapshot list'"
        )
    return found
