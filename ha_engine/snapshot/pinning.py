"""Keeps a revision while it is read. The reader renews a pin; if the reader dies, it expires."""

from __future__ import annotations

import time
from typing import Protocol

from ha_engine.errors import RevisionForgotten
from ha_engine.snapshot.files import Progress

PIN_SECONDS = 60.0


class Pins(Protocol):
    """The part of the store that pinning uses; see postgres.snapshot_store."""

    def pin(self, revision_id: int, seconds: float) -> bool: ...


def pin(store: Pins, revision_id: int) -> None:
    """Pin the revision for PIN_SECONDS. Raises RevisionForgotten when it is gone."""
    if not store.pin(revision_id, PIN_SECONDS):
        raise RevisionForgotten(revision_id)


def pinned(store: Pins, revision_id: int, progress: Progress) -> Progress:
    """Pin the revision; return a function that calls ``progress`` and renews the pin in time.

    Raises RevisionForgotten, and so does the returned function.
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
