"""Pin a revision, so that no cleanup removes the revision while a node reads it.

The reader of a revision renews the pin. A pin expires if its reader dies.
"""

from __future__ import annotations

import time
from typing import Protocol

from ha_engine.errors import RevisionForgotten
from ha_engine.snapshot.files import Progress

PIN_SECONDS = 60.0


class Pins(Protocol):
    """The method of ``postgres.snapshot_store`` that pins a revision."""

    def pin(self, revision_id: int, seconds: float) -> bool: ...


def pin(store: Pins, revision_id: int) -> None:
    """Pin a revision for PIN_SECONDS. Raises RevisionForgotten when the revision is gone."""
    if not store.pin(revision_id, PIN_SECONDS):
        raise RevisionForgotten(revision_id)


def pinned(store: Pins, revision_id: int, progress: Progress) -> Progress:
    """Pin a revision; return a function that calls ``progress`` and renews the pin in time.

    Both this function and the returned function raise RevisionForgotten when the revision is gone.
    """
    pin(store, revision_id)
    pinned_at = time.monotonic()

    def report(count: int) -> None:
        nonlocal pinned_at
        progress(count)
        if time.monotonic() > pinned_at + PIN_SECONDS / 3:
            pin(store, revision_id)
            pinned_at = time.monotonic()

    return report
