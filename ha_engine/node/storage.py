"""Replay the node's disk into the core at a start, and perform the core's changes to the disk."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from pathlib import Path

import structlog

from ha_engine.core import Core, HighWater
from ha_engine.deploy import DeployedApplications
from ha_engine.errors import DiskFailed, JournalDamaged
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.node.data_dir import DataDirectory
from ha_engine.outbox import Outbox
from ha_engine.outbox.published import PublishedBatches
from ha_engine.receive.gate import Gate
from ha_engine.snapshot import base_file
from ha_engine.types import Deployed, Events

log = structlog.get_logger(__name__)


def replay(base: Path, journal: Journal, outbox: Outbox, core: Core, gate: Gate) -> None:
    """Replay the file ``base``, the journal and the outbox into the core and the gate.

    The base replaces the trimmed records. Raises JournalDamaged.
    """
    began, deployment = time.monotonic(), core.deployment
    if found := base_file.load(base):
        core.load_base(found.base)
        gate.load_base(found.producers, found.offsets)
    first = core.journal.last.sequence + 1
    if journal.first > first:
        reason = f"the journal begins at {journal.first}, but this base ends before {first}"
        raise JournalDamaged(str(base), 0, reason)
    for record in journal.read(first, payloads=False) if first <= journal.last.sequence else ():
        core.replay(record)
        if isinstance(record.body, Events):
            gate.replay(record)
    for name, marks in deployment.marks.items():
        floor = marks.set_outbox_floor(outbox.first(name), outbox.trimmed_through(name))
        outbox.set_outbox_floor(name, floor)
        for number in range(outbox.floor(name) + 1, outbox.last_admitted(name) + 1):
            batch = outbox.batch(name, number)
            if batch is not None:
                deployment.restore_admitted(name, number, batch.rows, batch.bytes)
        for number, digest in outbox.digests(name):
            core.query_control.digests.note_mine(name, number, digest)
    if journal.torn:
        log.warning("torn tail of the journal truncated", what=journal.torn)
    seconds = round(time.monotonic() - began, 3)
    log.info("journal read", last=str(core.journal.last), seconds=seconds)


def give_up() -> None:
    """End the process at once, because the disk of the journal or of the outbox hangs.

    A thread that waits for the disk would block the node process, its lease and every producer.
    This process cannot finish any work, but the other node has a disk that answers.
    """
    log.critical("the disk does not answer; the node process ends")
    os._exit(DiskFailed.exit_code)


class NodeStorage:
    """The driver's ``NodeStorage``. The methods that are not asynchronous block. All methods raise
    DiskFailed."""

    def __init__(
        self,
        data: DataDirectory,
        journal: Journal,
        writer: JournalWriter,
        outbox: Outbox,
        published: PublishedBatches,
    ) -> None:
        self._data, self._journal, self._writer = data, journal, writer
        self._outbox, self._published = outbox, published

    def keep(self, high_water: HighWater) -> None:
        self._data.keep(high_water)

    def bind_group(self, group_id: str) -> Awaitable[None]:
        return self._writer.run_exclusive(lambda: self._journal.bind_group(group_id))

    def trim_outbox(self, query: str, through: int) -> None:
        first = max(self._outbox.floor(query), through - self._published.batches_max) + 1
        for number in range(first, through + 1):
            self._keep_for_observers(query, number)
        self._outbox.trim(query, through)

    async def keep_application(self, deployed: Deployed | None) -> None:
        await asyncio.to_thread(DeployedApplications(self._data.path).keep, deployed)

    def _keep_for_observers(self, query: str, number: int) -> None:
        """Keep a published batch. A failure costs observers the batch, and the node nothing."""
        try:
            if (batch := self._outbox.batch(query, number)) is not None:
                self._published.keep(query, number, batch)
        except OSError as error:
            log.warning(
                "batch not kept for observers", query=query, batch=number, reason=str(error)
            )

    async def truncate_journal(self, after: int, *, set_aside: bool) -> None:
        if not set_aside:
            await self._writer.run_exclusive(lambda: self._journal.truncate_after(after))
            return
        # The outbox is emptied before the truncation, because its batches come from the removed
        # records. After a crash before the truncation, the node makes the outbox again from the
        # journal.
        await asyncio.to_thread(self._outbox.drop_all)
        kept = await self._writer.run_exclusive(
            lambda: self._journal.give_up_after(after), copies=True
        )
        log.warning("committed records given up by a forced failover", kept_in=str(kept))
