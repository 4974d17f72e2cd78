"""Who reads a revision says again and again that it needs it; one that has died lets go of it."""

from __future__ import annotations

import time
from typing import Protocol

from ha_engine.errors import RevisionForgotten
from ha_engine.snapshot.files import Progress

PIN_SECONDS = 60.0


class Pins(Protocol):
    """What is asked of the store; see postgres.snapshot_store."""

    def pin(self, revision_id: int, seconds: float) -> bool: ...


def pin(store: Pins, revision_id: int) -> None:
    """Raises RevisionForgotten when it is gone."""
    if not store.pin(revision_id, PIN_SECONDS):
        raise RevisionForgotten(revision_id)


def pinned(store: Pins, revision_id: int, progress: Progress) -> Progress:
    """Pins the revision; what it answers tells ``progress`` and pins it again in time.

    Raises RevisionForgotten, as does what it answers.
    """
    pin(store, revision_id)
    pinned_at = time.monotonic()

    def told(count: int) -> None:
        nonlocal pinned_at
        progress(count)
        if time.monotonic() > pinned_at + PIN_SECONDS / 3:
            pin(store, revision_id)
            pinned_at = time.monotonic()

    return told
