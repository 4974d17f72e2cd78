"""The snapshots of one node process: the engine's own service, whose outcomes a history counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ha_engine.core import actions as do
from ha_engine.node.snapshot_actions import facts_of
from ha_engine.snapshot.base_builder import BaseBuilder
from ha_engine.snapshot.capture import Capture
from ha_engine.snapshot.checkpoint_storage import CheckpointDirectories
from ha_engine.snapshot.restore import Places, RestoredState, Restoring
from ha_engine.snapshot.service import Places as RevisionPlaces
from ha_engine.snapshot.service import SnapshotService
from ha_engine.types import History, Position
from tests.dst.pair.group import GROUP, REVISIONS_KEPT, producer_table

if TYPE_CHECKING:
    from tests.dst.pair.process import NodeProcess

T = TypeVar("T")


class NodeSnapshots(SnapshotService):
    def __init__(self, process: NodeProcess) -> None:
        host, files, database = process.host, process.files, process.host.history.database
        self._counts, application = host.history.counts, process.application

        def call(work: Callable[[], T], length: int) -> T:
            return database.call(process, work, row=None)

        def sleep(seconds: float) -> None:
            """Spark stands still while this thread runs, so that a pause would not help."""

        store = database.revisions.called_by(call)
        places = Places(host.home, host.checkpoints)
        super().__init__(
            store,
            Capture(host.checkpoints, host.home, process.outbox, files, sleep),
            BaseBuilder(
                process.data.base, process.journal, application.deployment, producer_table, files
            ),
            process.writer,
            process.me,
            lambda place: facts_of(process.core, application.digest, {}, place),
            Restoring(
                store,
                places,
                CheckpointDirectories(host.checkpoints, files, lambda: _shared(process)),
                GROUP,
                application.digest,
                lambda manifest: None,
                files=files,
                clock=process.loop.time,
            ),
            REVISIONS_KEPT,
        )

    async def show(self, draft: int, epoch: int) -> RevisionPlaces:
        places = await super().show(draft, epoch)
        self._counts["snapshots"] += 1
        return places

    async def bring_state(self, run: do.RunQuery, history: History) -> RestoredState | None:
        restored = await super().bring_state(run, history)
        if restored is not None:
            kind = "states restored" if restored.revision else "checkpoints of others continued"
            self._counts[kind] += 1
            self._counts["batches restored"] += len(restored.batches)
        return restored

    async def trim(self, position: Position) -> None:
        await super().trim(position)
        self._counts["trims"] += 1


def _shared(process: NodeProcess) -> list[Path]:
    history = process.host.history
    if not history.shares_checkpoints:
        return []
    return [host.checkpoints for host in history.hosts.values()]
