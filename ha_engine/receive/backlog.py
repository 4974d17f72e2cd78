"""Decide when the gate must refuse events, because the queries are slow or a disk is full."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from ha_engine.config.quantities import format_size
from ha_engine.errors import Backpressure

log = structlog.get_logger(__name__)

LOOK_EVERY_SECONDS = 0.2
REST_SECONDS = 1.0
"""Interval of checks while the journal does not grow, since only other programs may then fill the
disk."""
DISK_RETRY_SECONDS = 5.0


@dataclass
class Disk:
    """The disk that contains ``directory``, with the space that events must leave free.

    The last ``min_free`` bytes of the disk are reserved for the processing of accepted events, such
    as marks and batches (RULES.md#r30). The journal's space beyond ``journal_max`` bytes is also
    reserved for accepted events. A ``journal_max`` of 0 means that the journal has no limit.
    """

    directory: Path
    min_free: int
    journal_size: Callable[[], int] = lambda: 0
    journal_max: int = 0
    _looked_at: float = field(default=float("-inf"), init=False)
    _free: int = field(default=0, init=False)

    @property
    def has_room(self) -> bool:
        """Whether the disk has space for more events."""
        return self.lack is None

    @property
    def lack(self) -> str | None:
        """Say which space is lacking, or return None when the disk has space for more events."""
        if self._free_bytes() < self.min_free:
            least = format_size(self.min_free)
            return f"the disk of {self.directory} has less than {least} left"
        if 0 < self.journal_max <= self.journal_size():
            most = format_size(self.journal_max)
            return f"the journal has reached its max_size of {most}; a snapshot makes room"
        return None

    async def watch(self, changed: Callable[[bool], None]) -> None:
        """Call ``changed`` when the disk becomes full (False) and when it has space again
        (True)."""
        had_room, size = True, -1
        while True:
            before, size = size, self.journal_size()
            lack = self.lack
            has_room = lack is None
            if has_room != had_room:
                had_room = has_room
                if has_room:
                    log.info("the disk has room for events")
                else:
                    log.warning("the disk has no room for events", reason=lack)
                changed(has_room)
            await asyncio.sleep(LOOK_EVERY_SECONDS if size != before else REST_SECONDS)

    def _free_bytes(self) -> int:
        now = time.monotonic()
        if now >= self._looked_at + LOOK_EVERY_SECONDS:
            found = os.statvfs(self.directory)
            self._free, self._looked_at = found.f_bavail * found.f_frsize, now
        return self._free


@dataclass(frozen=True)
class NodeBacklog:
    """Decides whether this node must refuse new events for now.

    ``waiting`` returns the number of events that no micro-batch of a query contains yet which reads
    a stream. So a slow query stops no stream of another application. ``full_member`` names an
    in-sync member whose disk is full. One full disk stops all events, because every in-sync member
    must store each event.
    """

    waiting: Callable[[str], int]
    waiting_max: int
    disk: Disk
    full_member: Callable[[], str | None]

    def refusal(self, stream: str) -> Backpressure | None:
        """The Backpressure that the gate must raise, or None when the gate may accept events of
        ``stream``."""
        waiting = self.waiting(stream)
        if waiting >= self.waiting_max:
            return Backpressure(
                f"{waiting} events wait for a batch, the limit is {self.waiting_max}; send again "
                "later"
            )
        if (lack := self.disk.lack) is not None:
            return Backpressure(lack, DISK_RETRY_SECONDS)
        member = self.full_member()
        if member is not None:
            reason = f"the disk of {member}, which is in sync, has no room for events"
            return Backpressure(reason, DISK_RETRY_SECONDS)
        return None
