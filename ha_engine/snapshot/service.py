"""Take snapshots, make snapshots visible, and delete the data that newer snapshots replace.

One thread does one task at a time, so that no task deletes data that another task needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from ha_engine.core import actions as do
from ha_engine.errors import (
    DatabaseNotReady,
    DatabaseUnreachable,
    DiskFailed,
    EngineError,
    ObjectStorageFailed,
    RevisionForgotten,
    SnapshotDamaged,
    SnapshotFailed,
)
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.snapshot import base_file, restored
from ha_engine.snapshot.base_builder import BaseBuilder
from ha_engine.snapshot.capture import Capture
from ha_engine.snapshot.files import ChunkWriter, Names, upload
from ha_engine.snapshot.manifest import CapturedQuery, KeptFile, Manifest, encode
from ha_engine.snapshot.restore import (
    JOURNAL,
    RestoredState,
    Restoring,
    RevisionSource,
    storage_of,
)
from ha_engine.snapshot.verification import manifest_of
from ha_engine.stats.counters import Transfer
from ha_engine.types import Collected, History, Holder, Position, Revision, SnapshotPlace

log = structlog.get_logger(__name__)
T = TypeVar("T")

Places = tuple[tuple[Position, Position], ...]
"""The places of the visible revisions, as in inputs.RevisionsKept."""

LOOK_EVERY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Facts:
    """The content of a manifest without its files.

    ``queries`` has the state of each query at the position of the snapshot.
    """

    group_id: str
    application: str
    runtime: Mapping[str, str]
    queries: tuple[CapturedQuery, ...]
    archive: str | None = None


class RevisionStore(RevisionSource, ChunkWriter, Protocol):
    """The methods of ``postgres.snapshot_store`` that the snapshot service uses."""

    def begin(self, taken_by: str) -> int: ...
    def complete(
        self,
        draft: int,
        position: Position,
        last_mark: Position,
        manifest: bytes,
        manifest_digest: bytes,
        *,
        chunks: int,
        bytes_total: int,
        bytes_new: int,
    ) -> None: ...
    def show(self, draft: int, holder: Holder, epoch: int) -> bool: ...
    def forget(self, keep: int) -> Collected: ...
    def close(self) -> None: ...


class SnapshotService:
    """Implements the driver's port ``Snapshots``.

    The service calls the function ``facts`` on the driver's event loop, with the place of a
    snapshot. The service keeps the newest ``keep`` revisions.
    """

    def __init__(
        self,
        store: RevisionStore,
        capture: Capture,
        base_builder: BaseBuilder,
        writer: JournalWriter,
        me: Holder,
        facts: Callable[[SnapshotPlace], Facts],
        restoring: Restoring,
        keep: int,
    ) -> None:
        self._store, self._capture, self._folding = store, capture, base_builder
        self._restoring = restoring
        self._writer, self._me, self._facts, self.keep = writer, me, facts, keep
        self._names = Names(restoring.files)
        self.transfer, self.upload = restoring.transfer, Transfer()
        self.restored = restored.load(restoring.places.home / JOURNAL)
        self.counts = restoring.counts
        self.revisions: list[Revision] = []
        self._looked_at = time.monotonic()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="snapshots")

    async def take(self, place: SnapshotPlace) -> int:
        """Store a draft of a snapshot at ``place``, and return the id of the draft.

        Raises SnapshotFailed, DatabaseUnreachable, DraftLost.
        """
        facts, began = self._facts(place), time.monotonic()
        try:
            draft = await self._in_thread(lambda: self._take(place, facts))
        except EngineError:
            self.counts.failed += 1
            raise
        self.counts.taken += 1
        self.counts.seconds = time.monotonic() - began
        return draft

    async def show(self, draft: int, epoch: int) -> Places:
        """Make a draft visible, remove old revisions, and return the places of visible revisions.

        Raises DraftLost, DatabaseUnreachable. Raises SnapshotFailed when this node no longer holds
        the lease.
        """
        await self._in_thread(lambda: self._show(draft, epoch))
        return await self.look()

    async def look(self) -> Places:
        """Read the places of the visible revisions, newest first. Raises DatabaseUnreachable."""
        self.revisions = await self._in_thread(self._store.revisions)
        self._looked_at = time.monotonic()
        return tuple((one.position, one.last_mark) for one in self.revisions)

    async def watch(self, on_revisions: Callable[[Places], None]) -> None:
        """Every LOOK_EVERY_SECONDS, read the visible revisions and call ``on_revisions``.

        While the database is unreachable, ``on_revisions`` is not called.
        """
        while True:
            with contextlib.suppress(DatabaseUnreachable, DatabaseNotReady):
                on_revisions(await self.look())
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    @property
    def age_seconds(self) -> float | None:
        """The age of the newest revision, or None if no visible revision is known.

        No revision is known before the node first reads the revisions from the database.
        """
        if not self.revisions:
            return None
        return self.revisions[0].age_seconds + time.monotonic() - self._looked_at

    async def restore(self, restore: do.Restore) -> Revision:
        """Download the newest usable revision.

        Raises SnapshotDamaged, DatabaseUnreachable, DiskFailed.
        """
        began = time.monotonic()
        try:
            revision = await self._in_thread(lambda: self._restore(restore))
        except SnapshotDamaged as error:
            advice = "take a new snapshot on the active: ha-engine snapshot now"
            raise SnapshotDamaged(f"{error}; {advice}") from error
        seconds = round(time.monotonic() - began, 3)
        size = revision.bytes_total
        log.info("snapshot restored", at=str(revision.position), bytes=size, seconds=seconds)
        return revision

    async def bring_state(self, run: do.RunQuery, history: History) -> RestoredState | None:
        """Restore a query's checkpoint from a snapshot in ``history``, and its batches too if the
        outbox lacks them. If only the active runs the query, also look at the checkpoints of
        earlier actives.

        Returns None if the query can begin with what it has. Raises SnapshotDamaged,
        DatabaseUnreachable, CheckpointsFailed, DiskFailed, OutboxDamaged.
        """
        restoring, query, lineage = self._restoring, run.query, run.lineage
        checkpoints = restoring.checkpoints
        with storage_of(checkpoints):
            await asyncio.to_thread(checkpoints.carry_on, query, run.earlier, lineage)
        if (takeover := run.takeover) is not None:
            # Look here first, since the thread may store a snapshot for minutes.
            if await asyncio.to_thread(restoring.has_state, run, takeover):
                return None
            outbox = self._capture.outbox
            return await self._in_thread(
                lambda: restoring.continue_state(run, takeover, history, outbox)
            )
        with storage_of(checkpoints):
            if await asyncio.to_thread(checkpoints.is_whole, query, lineage):
                return None

        def bring() -> RestoredState | None:
            # The core may request the same checkpoint twice. Spark may already use the checkpoint
            # that the first request restored.
            with storage_of(checkpoints):
                if checkpoints.is_whole(query, lineage):
                    return None
            return self._restoring.restore_state(query, lineage, history, self._capture.outbox)

        return await self._in_thread(bring)

    async def trim(self, position: Position) -> None:
        """Store the base for ``position``, then trim the journal up to ``position``.

        Raises DiskFailed, JournalDamaged.
        """
        await self._in_thread(lambda: self._store_base(position))
        journal: Journal = self._folding.journal
        await self._writer.run_exclusive(lambda: journal.trim_before(position.sequence + 1))
        log.info("journal trimmed", through=str(position), first=journal.first)

    def close(self) -> None:
        """Close the service without waiting for the running task.

        The task's draft stays incomplete, and an incomplete draft never becomes visible.
        """
        self._store.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    # -- in the thread -----------------------------------------------------------------------------

    def _take(self, place: SnapshotPlace, facts: Facts) -> int:
        try:
            files = self._capture.files(place, self._names)
            base = self._capture.add(base_file.NAME, self._folding.at(place))
            kept = self._capture.keep(place)
            stored = {base_file.NAME: base, **files}
            draft, size, new = self._store_draft(place, facts, stored, kept)
        except (OSError, ObjectStorageFailed) as error:
            raise SnapshotFailed(f"the snapshot's files cannot be read: {error}") from error
        finally:
            self.upload.end()
            self._capture.clear()
        log.info("snapshot taken", at=str(place.position), bytes=size, new=new)
        return draft

    def _store_draft(
        self,
        place: SnapshotPlace,
        facts: Facts,
        files: dict[str, Path],
        kept: tuple[KeptFile, ...],
    ) -> tuple[int, int, int]:
        draft = self._store.begin(self._me.node)
        self._forget_copies(kept)
        self.upload.begin(sum(path.stat().st_size for path in files.values()))
        stored, new = upload(self._store, draft, files, self._names, self.upload.advance)
        manifest = Manifest(
            facts.group_id,
            self._folding.journal.journal_id,
            place.position,
            facts.application,
            facts.runtime,
            facts.queries,
            stored,
            self._capture.objects.checkpoints.bucket.where if self._capture.objects else "",
            kept,
            facts.archive,
        )
        encoded, digest = encode(manifest)
        size = manifest.size
        self._store.complete(
            draft,
            place.position,
            place.last_mark,
            encoded,
            digest,
            chunks=len(manifest.digests),
            bytes_total=size,
            bytes_new=new,
        )
        self._names.stored()
        return draft, size, new

    def _forget_copies(self, kept: tuple[KeptFile, ...]) -> None:
        """Delete this node's copies that neither ``kept`` nor a visible revision names.

        The draft has begun, so no earlier draft can become visible any more. A failure costs only
        space until the next snapshot.
        """
        if (objects := self._capture.objects) is None:
            return
        try:
            named = {file.key for file in kept}
            for revision in self._store.revisions():
                named |= {file.key for file in manifest_of(self._store, revision).kept}
            objects.forget(named)
        except (SnapshotDamaged, RevisionForgotten, ObjectStorageFailed) as error:
            log.warning("files of old snapshots not deleted", reason=str(error))

    def _show(self, draft: int, epoch: int) -> None:
        if not self._store.show(draft, self._me, epoch):
            raise SnapshotFailed("this node no longer holds the lease")
        removed = self._store.forget(self.keep)
        log.info(
            "snapshot visible",
            draft=draft,
            revisions_removed=removed.revisions,
            chunks_removed=removed.chunks,
        )

    def _restore(self, restore: do.Restore) -> Revision:
        """Restore a snapshot, and copy records that an operator gave up beside the new journal.

        The history in ``restore`` allows only snapshots without the records that were given up.
        """
        journal, given_up = self._folding.journal, restore.given_up

        def keep(directory: Path) -> None:
            if given_up is not None and given_up.sequence < journal.last.sequence:
                behind = max(given_up.sequence, journal.first - 1)
                path = journal.set_aside_after(behind, directory)
                log.warning("committed records given up by a forced failover", kept_in=path.name)

        return self._restoring.restore(restore.history, keep)

    def _store_base(self, position: Position) -> None:
        path = self._folding.path
        try:
            base_file.store(path, self._folding.through(position.sequence), self._restoring.files)
        except OSError as error:
            raise DiskFailed(f"{path} cannot be written: {error.strerror}") from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
