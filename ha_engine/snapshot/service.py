"""Takes snapshots, makes them visible, and lets go of what they made needless.

One thing at a time, in a thread of its own: what one needs, another must not let go of meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from ha_engine.core import actions as do
from ha_engine.errors import (
    DatabaseNotReady,
    DatabaseUnreachable,
    DiskFailed,
    EngineError,
    SnapshotDamaged,
    SnapshotFailed,
)
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.postgres.snapshot_store import SnapshotStore
from ha_engine.query.checkpoints import carry_on, is_whole
from ha_engine.snapshot import base_file, restored
from ha_engine.snapshot.base_builder import BaseBuilder
from ha_engine.snapshot.capture import Capture
from ha_engine.snapshot.files import Names, upload
from ha_engine.snapshot.manifest import CapturedQuery, Manifest, encode
from ha_engine.snapshot.restore import JOURNAL, Restoring
from ha_engine.stats.counters import Transfer
from ha_engine.types import Cut, History, Holder, Position, Revision

log = structlog.get_logger(__name__)
T = TypeVar("T")

Places = tuple[tuple[Position, Position], ...]
"""See inputs.RevisionsKept."""

LOOK_EVERY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What a manifest says beside its files; ``queries`` are as of the cut."""

    group_id: str
    application: str
    runtime: Mapping[str, str]
    queries: tuple[CapturedQuery, ...]


class Archive:
    """The driver's ``Archive``. ``facts(cut)`` is asked on its loop; ``keep`` revisions stay."""

    def __init__(
        self,
        store: SnapshotStore,
        capture: Capture,
        folding: BaseBuilder,
        writer: JournalWriter,
        me: Holder,
        facts: Callable[[Cut], Facts],
        restoring: Restoring,
        keep: int,
    ) -> None:
        self._store, self._capture, self._folding = store, capture, folding
        self._restoring = restoring
        self._writer, self._me, self._facts, self.keep = writer, me, facts, keep
        self._names, self.transfer, self.upload = Names(), restoring.transfer, Transfer()
        self.restored = restored.load(restoring.places.home / JOURNAL)
        self.counts = restoring.counts
        self.revisions: list[Revision] = []
        self._looked_at = time.monotonic()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")

    async def take(self, cut: Cut) -> int:
        """Raises SnapshotFailed, DatabaseUnreachable, DraftLost."""
        facts, began = self._facts(cut), time.monotonic()
        try:
            draft = await self._in_thread(lambda: self._take(cut, facts))
        except EngineError:
            self.counts.failed += 1
            raise
        self.counts.taken += 1
        self.counts.seconds = time.monotonic() - began
        return draft

    async def show(self, draft: int, epoch: int) -> Places:
        """Raises DraftLost, DatabaseUnreachable, SnapshotFailed when the lease is another's."""
        await self._in_thread(lambda: self._show(draft, epoch))
        return await self.look()

    async def look(self) -> Places:
        """Where the visible revisions stand, newest first. Raises DatabaseUnreachable."""
        self.revisions = await self._in_thread(self._store.revisions)
        self._looked_at = time.monotonic()
        return tuple((one.position, one.written) for one in self.revisions)

    async def watch(self, seen: Callable[[Places], None]) -> None:
        """Looks again and again; a database that is away says nothing."""
        while True:
            with contextlib.suppress(DatabaseUnreachable, DatabaseNotReady):
                seen(await self.look())
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    @property
    def age_seconds(self) -> float | None:
        """Of the newest revision; None while there is none, or nobody has looked."""
        if not self.revisions:
            return None
        return self.revisions[0].age_seconds + time.monotonic() - self._looked_at

    async def restore(self, restore: do.Restore) -> Revision:
        """Raises SnapshotDamaged, DatabaseUnreachable, DiskFailed."""
        began = time.monotonic()
        try:
            revision = await self._in_thread(lambda: self._restore(restore))
        except SnapshotDamaged as error:
            advice = "take one on the active: ha-engine snapshot now"
            raise SnapshotDamaged(f"{error}; {advice}") from error
        seconds = round(time.monotonic() - began, 3)
        size = revision.bytes_total
        log.info("snapshot restored", at=str(revision.position), bytes=size, seconds=seconds)
        return revision

    async def bring_state(
        self, run: do.RunQuery, history: History, admitted: int
    ) -> Revision | None:
        """The checkpoint of a query as of a snapshot in ``history``; None if it is whole here.

        ``admitted`` is the newest batch that the outbox had: Spark must go on behind none later.
        Raises SnapshotDamaged, DatabaseUnreachable, DiskFailed.
        """
        root, query, stamp = self._restoring.places.checkpoints, run.query, run.lineage
        await asyncio.to_thread(carry_on, root, query, run.earlier, stamp)
        if await asyncio.to_thread(is_whole, root, query, stamp):
            return None

        def bring() -> Revision | None:
            # It may have been asked for twice, and Spark run on what came first.
            if is_whole(root, query, stamp):
                return None
            return self._restoring.restore_state(query, stamp, history, admitted)

        return await self._in_thread(bring)

    async def trim(self, position: Position) -> None:
        """Raises DiskFailed, JournalDamaged."""
        await self._in_thread(lambda: self._store_base(position))
        journal: Journal = self._folding.journal
        await self._writer.run_exclusive(lambda: journal.trim_before(position.sequence + 1))
        log.info("journal trimmed", through=str(position), first=journal.first)

    def close(self) -> None:
        """What is under way is not waited for: a draft that is not complete is nothing."""
        self._store.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    # -- in the thread -----------------------------------------------------------------------------

    def _take(self, cut: Cut, facts: Facts) -> int:
        try:
            files = self._capture.files(cut, self._names)
            base = self._capture.add(base_file.NAME, self._folding.at(cut))
            draft, size, new = self._store_draft(cut, facts, {base_file.NAME: base, **files})
        except OSError as error:
            raise SnapshotFailed(f"its files cannot be read: {error}") from error
        finally:
            self.upload.end()
            self._capture.clear()
        log.info("snapshot taken", at=str(cut.position), bytes=size, new=new)
        return draft

    def _store_draft(self, cut: Cut, facts: Facts, files: dict[str, Path]) -> tuple[int, int, int]:
        draft = self._store.begin(self._me.node)
        self.upload.begin(sum(path.stat().st_size for path in files.values()))
        stored, new = upload(self._store, draft, files, self._names, self.upload.advance)
        manifest = Manifest(
            facts.group_id,
            self._folding.journal.journal_id,
            cut.position,
            facts.application,
            facts.runtime,
            facts.queries,
            stored,
        )
        encoded, digest = encode(manifest)
        size = manifest.size
        self._store.complete(
            draft,
            cut.position,
            cut.written,
            encoded,
            digest,
            chunks=len(manifest.digests),
            bytes_total=size,
            bytes_new=new,
        )
        self._names.stored()
        return draft, size, new

    def _show(self, draft: int, epoch: int) -> None:
        if not self._store.show(draft, self._me, epoch):
            raise SnapshotFailed("this node does not hold the lease any more")
        gone = self._store.forget(self.keep)
        log.info("snapshot visible", draft=draft, gone=gone.revisions, chunks_gone=gone.chunks)

    def _restore(self, restore: do.Restore) -> Revision:
        """What an operator gave up goes with the new journal; nothing of it may be the snapshot."""
        journal, given_up = self._folding.journal, restore.given_up

        def keep(directory: Path) -> None:
            if given_up is not None and given_up.sequence < journal.last.sequence:
                behind = max(given_up.sequence, journal.first - 1)
                path = journal.set_aside_after(behind, directory)
                log.warning("committed records were given up", kept_in=path.name)

        return self._restoring.restore(restore.history, keep)

    def _store_base(self, position: Position) -> None:
        path = self._folding.path
        try:
            base_file.store(path, self._folding.through(position.sequence))
        except OSError as error:
            raise DiskFailed(f"{path} cannot be written: {error.strerror}") from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
