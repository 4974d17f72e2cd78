"""Replay the node's disk into the core at a start, and perform the core's changes to the disk."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable
from pathlib import Path

import structlog

from ha_engine.core import Core, Deployment, HighWater
from ha_engine.deploy import DeployedApplications
from ha_engine.errors import DiskFailed, JournalDamaged
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.node.data_dir import DataDirectory
from ha_engine.outbox import Outbox
from ha_engine.outbox.published import PublishedBatches
from ha_engine.receive.gate import Gate
from ha_engine.snapshot import base_file
from ha_engine.types import SHADOW_SIGN, Deployed, Events

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
    prepare_shadows(outbox, core)
    for name, marks in deployment.marks.items():
        floor = marks.set_outbox_floor(outbox.first(name), outbox.trimmed_through(name))
        outbox.set_outbox_floor(name, floor)
        for number in range(outbox.floor(name) + 1, outbox.last_admitted(name) + 1):
            batch = outbox.batch(name, number)
            if batch is not None:
                deployment.restore_admitted(name, number, batch.rows, batch.bytes)
        # The other node may still have digests of the code before (RULES.md#r38).
        known = () if deployment.awaits_promotion(name) else outbox.digests(name)
        for number, digest in known:
            core.query_control.digests.note_mine(name, number, digest)
    if journal.torn:
        log.warning("torn tail of the journal truncated", what=journal.torn)
    seconds = round(time.monotonic() - began, 3)
    log.info("journal read", last=str(core.journal.last), seconds=seconds)


def prepare_shadows(outbox: Outbox, core: Core) -> None:
    """Let the outbox of a query continue with that of its promoted shadow, restore the running
    shadow, and delete what others left (RULES.md#r38)."""
    deployment, deployed = core.deployment, core.deployment.versions.deployed
    if not deployment.runs_newest or deployed is None:
        return
    promoted, running = deployed.promoted, deployment.shadow
    if promoted is not None and promoted.query in deployment.marks:
        published = deployment.marks[promoted.query].published_committed(core.journal.committed)
        outbox.continue_with(promoted.query, promoted.name, published)
    for name in outbox.shadows():
        if running is None or name != running.name:
            outbox.drop(name)
    if running is not None:
        name = running.name
        floor = running.set_outbox_floor(outbox.first(name), outbox.trimmed_through(name))
        outbox.begin_shadow(name)
        outbox.set_outbox_floor(name, floor)
        for number in range(floor + 1, outbox.last_admitted(name) + 1):
            if (batch := outbox.batch(name, number)) is not None:
                running.restore_admitted(number, batch.bytes)


def remove_old_shadows(checkpoints: Path, deployment: Deployment) -> None:
    """Delete the checkpoints of shadows that ended. A query process may still write to one of
    them: that shadow only fails earlier."""
    deployed, running = deployment.versions.deployed, deployment.shadow
    if not deployment.runs_newest and deployed is not None:
        return
    kept = {running.name} if running is not None else set()
    if deployed is not None and deployed.promoted is not None:
        kept.add(deployed.promoted.name)
    for place in checkpoints.glob(f"*{SHADOW_SIGN}*"):
        if place.name not in kept:
            shutil.rmtree(place, ignore_errors=True)


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
        checkpoints: Path,
    ) -> None:
        self._data, self._journal, self._writer = data, journal, writer
        self._checkpoints = checkpoints
        self._outbox, self._published = outbox, published

    def keep(self, high_water: HighWater) -> None:
        self._data.keep(high_water)

    def bind_group(self, group_id: str) -> Awaitable[None]:
        return self._writer.run_exclusive(lambda: self._journal.bind_group(group_id))

    def trim_outbox(self, query: str, through: int) -> None:
        if SHADOW_SIGN not in query:  # no sink has the batches of a shadow
            first = max(self._outbox.floor(query), through - self._published.batches_max) + 1
            for number in range(first, through + 1):
                self._keep_for_observers(query, number)
        self._outbox.trim(query, through)

    async def keep_application(self, deployed: Deployed | None) -> None:
        await asyncio.to_thread(DeployedApplications(self._data.path).keep, deployed)

    def has_checkpoint(self, query: str) -> bool:
        return (self._checkpoints / query).is_dir()

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
