"""Perform the core's snapshot actions with the snapshot service, and give the outcomes to the
core."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from ha_engine.core import Core
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.errors import (
    CheckpointsFailed,
    DatabaseNotReady,
    DatabaseUnreachable,
    EngineError,
    JournalReplaced,
    SnapshotDamaged,
)
from ha_engine.node.ports import Snapshots
from ha_engine.snapshot.manifest import CapturedQuery
from ha_engine.snapshot.restore import RestoredState
from ha_engine.snapshot.service import Facts
from ha_engine.types import History, SnapshotPlace

log = structlog.get_logger(__name__)

SnapshotAction = do.TakeSnapshot | do.ShowSnapshot | do.FindRevisions | do.TrimJournal | do.Restore


def facts_of(
    core: Core,
    application: str,
    runtime: Mapping[str, str],
    place: SnapshotPlace,
    archive: str | None = None,
) -> Facts:
    """Return the content of the manifest of a snapshot at ``place``, without its files.

    ``application`` is the digest of this node's application, and ``archive`` the id of its archive
    if it was deployed. ``runtime`` has the versions of the software that writes checkpoints.
    """
    lineages, mine = core.deployment.versions.lineages, core.query_control.digests.mine
    queries = tuple(
        CapturedQuery(query, number, lineages[query], mine(query, number) or "")
        for query, number in place.batches
    )
    return Facts(core.group_id or "", application, runtime, queries, archive)


@dataclass(frozen=True, slots=True)
class SnapshotActions:
    """Performs the core's snapshot actions. ``handle`` gives the outcome of an action to the
    core, and ``admitted`` tells the publish stage of a batch."""

    snapshots: Snapshots
    handle: Callable[[on.Input], None]
    admitted: Callable[[str, int], None]

    async def perform(self, action: SnapshotAction) -> None:
        """Perform one snapshot action. Raises JournalReplaced after a restore, because the node
        process must restart."""
        match action:
            case do.TakeSnapshot(place):
                await self._take(place)
            case do.ShowSnapshot(draft, epoch):
                await self._show(draft, epoch)
            case do.FindRevisions():
                # The snapshot service lists the revisions twice a minute, so one failed call does
                # not matter.
                with contextlib.suppress(EngineError):
                    self.handle(on.RevisionsKept(await self.snapshots.look()))
            case do.TrimJournal(position):
                await self.snapshots.trim(position)
                self.handle(on.JournalTrimmed(position))
            case do.Restore():
                await self._restore(action)

    async def bring_state(self, run: do.RunQuery, history: History) -> bool:
        """Restore a query's state that the journal cannot rebuild, or that the active before this
        node has made, before Spark starts the query.

        Returns False if the database or the storage of the checkpoints fails, because the core
        retries the query later.
        """
        try:
            restored = await self.snapshots.bring_state(run, history)
        except (DatabaseUnreachable, DatabaseNotReady) as error:
            reason = f"its state is not on this node, and no snapshot can be read: {error}"
            self.handle(on.QueryFailed(run.query, 0, reason, run.lineage, by_host=True))
            return False
        except CheckpointsFailed as error:
            log.error("state of a query not brought", query=run.query, reason=str(error))
            self.handle(on.QueryFailed(run.query, 0, str(error), run.lineage, by_host=True))
            return False
        except SnapshotDamaged as error:
            log.error("no snapshot has the query's state", query=run.query, reason=str(error))
            return True
        if restored is not None:
            self._note(run.query, restored)
        return True

    def _note(self, query: str, restored: RestoredState) -> None:
        if restored.revision is None:
            log.info(
                "query continues the checkpoint of an earlier active",
                query=query,
                at=restored.number,
            )
        else:
            log.warning(
                "lost query state restored from a snapshot",
                query=query,
                at=str(restored.revision.position),
                batches=len(restored.batches),
            )
        self.handle(on.OutboxRestored(query, restored.left))
        first = restored.number - len(restored.batches) + 1
        for number, batch in enumerate(restored.batches, first):
            self.handle(on.BatchAdmitted(query, number, batch.rows, batch.bytes))
            self.admitted(query, number)

    async def _take(self, place: SnapshotPlace) -> None:
        try:
            draft = await self.snapshots.take(place)
        except EngineError as error:
            log.warning("snapshot not taken", reason=str(error))
            self.handle(on.SnapshotFailed(place, str(error)))
        else:
            self.handle(on.SnapshotTaken(place, draft))

    async def _show(self, draft: int, epoch: int) -> None:
        """Make a draft visible. After a failure, the draft remains in the database until the next
        snapshot begins."""
        try:
            self.handle(on.RevisionsKept(await self.snapshots.show(draft, epoch)))
        except EngineError as error:
            log.warning("snapshot not made visible", reason=str(error))
            self.handle(on.SnapshotNotShown(str(error)))

    async def _restore(self, restore: do.Restore) -> None:
        log.info("restoring a snapshot in place of the journal", reason=restore.reason)
        try:
            revision = await self.snapshots.restore(restore)
        except (SnapshotDamaged, DatabaseUnreachable, DatabaseNotReady) as error:
            log.error("snapshot not restored", reason=str(error))
            self.handle(on.RestoreFailed(str(error)))
        else:
            raise JournalReplaced(
                f"the snapshot at {revision.position} replaces the journal, since "
                f"{restore.reason}; the node process restarts"
            )
