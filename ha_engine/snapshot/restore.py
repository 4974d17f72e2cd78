"""Replace a node's journal, outbox and checkpoints by a snapshot.

A restore downloads the snapshot into a directory beside the node's data, and verifies the download.
A rename of the directory then marks the download as complete. Only after this rename, the function
``finish`` deletes the old data and moves the new data into its place. If the process is killed, the
next start of the node calls ``finish`` again. Each step may be repeated, so the node ends with
either the old state or the new state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from ha_engine.core import actions as do
from ha_engine.errors import (
    CheckpointIncomplete,
    CheckpointsFailed,
    ChunkDamaged,
    DiskFailed,
    ObjectStorageFailed,
    RevisionForgotten,
    SnapshotDamaged,
    SnapshotUnfit,
)
from ha_engine.journal import Journal
from ha_engine.journal.set_aside import SUFFIX as GIVEN_UP_SUFFIX
from ha_engine.outbox import Outbox, OutboxBatch
from ha_engine.outbox.query_outbox import batch_paths
from ha_engine.query.checkpoints import SharedState, record_in
from ha_engine.query.offsets import SourcesDisagree
from ha_engine.snapshot import base_file, restored
from ha_engine.snapshot.checkpoint_storage import (
    CHECKPOINTS,
    WHOLE,
    CheckpointStorage,
    replace_directory,
)
from ha_engine.snapshot.files import Progress, download
from ha_engine.snapshot.manifest import CapturedQuery, Manifest
from ha_engine.snapshot.pinning import pinned
from ha_engine.snapshot.verification import RevisionReader, distrust_damaged, manifest_of
from ha_engine.stats.counters import Restored, SnapshotCounters, Transfer
from ha_engine.system.disk import disk
from ha_engine.system.files import OS_FILES, Files, make_directory, read_file
from ha_engine.types import History, Revision

log = structlog.get_logger(__name__)

OUTBOX, JOURNAL = "outbox", "journal"
_COMING = ".restoring"

Bring = Callable[[Revision, Manifest, Progress], None]


class RevisionSource(RevisionReader, Protocol):
    """The methods of ``postgres.snapshot_store`` that a restore uses."""

    def revisions(self) -> list[Revision]: ...


@dataclass(frozen=True, slots=True)
class Places:
    """The directories that a restore writes to.

    The directory ``checkpoints`` may be on another file system than the directory ``home``.
    """

    home: Path
    checkpoints: Path

    @property
    def coming(self) -> Path:
        return self.home / _COMING

    @property
    def whole(self) -> Path:
        """The directory of a complete download, which exists only after the rename."""
        return self.home / WHOLE


@dataclass(frozen=True, slots=True)
class RestoredState:
    """The state of a query after batch ``number``, from ``revision``, or from the checkpoint of an
    earlier active if ``revision`` is None.

    If the outbox did not have that batch, the outbox now begins after batch ``left``, and has
    admitted ``batches``, the last of which is batch ``number``.
    """

    revision: Revision | None
    number: int
    left: int = 0
    batches: tuple[OutboxBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class Restoring:
    """Restores a revision of a snapshot; every call blocks.

    ``application`` is the digest of this node's application, and ``archive`` the id of the archive
    if it was deployed. The function ``objection`` returns the
    reason why this node cannot continue a revision's state under any application, or None.
    ``continued`` has the states of earlier actives that this node has continued.
    ``clock`` measures the duration of a restore, in seconds.
    """

    store: RevisionSource
    places: Places
    checkpoints: CheckpointStorage
    group: str
    application: str
    objection: Callable[[Manifest], str | None]
    archive: str | None = None
    transfer: Transfer = field(default_factory=Transfer)
    counts: SnapshotCounters = field(default_factory=SnapshotCounters)
    files: Files = OS_FILES
    continued: set[SharedState] = field(default_factory=set)
    clock: Callable[[], float] = time.monotonic

    def restore(
        self, history: History | None, keep: Callable[[Path], None] = lambda _: None
    ) -> Revision:
        """Download the newest undamaged revision with a position in ``history``.

        If ``history`` is None, every position is allowed. The function ``keep`` adds files to the
        directory of the new journal. Raises SnapshotUnfit when no revision can be restored
        and an undamaged revision does not fit this node, for example its application. Raises
        SnapshotDamaged when no revision can be restored for other reasons. Raises
        DatabaseUnreachable, DiskFailed.
        """
        began, skipped = self.clock(), list[int]()

        def bring(revision: Revision, manifest: Manifest, progress: Progress) -> None:
            self._require_same_application(manifest)
            self._bring(manifest, progress)
            seconds = round(self.clock() - began, 3)
            place, size = str(revision.position), manifest.size
            restored_snapshot = Restored(revision.id, place, size, seconds, tuple(skipped))
            restored.store(self.places.coming / JOURNAL, restored_snapshot, self.files)
            keep(self.places.coming / JOURNAL)
            self.checkpoints.seal(self.places.coming)
            self.files.sync(self.places.coming)
            self.files.rename(self.places.coming, self.places.whole)

        return self._newest(history, bring, skipped)

    def has_state(self, run: do.RunQuery, takeover: do.Takeover) -> bool:
        """Whether the node's own checkpoint has the newest state of a query that only the active
        runs, or the journal rebuilds that state from the first batch. Raises CheckpointsFailed."""
        return _suffices(run, takeover, *self._own_state(run))

    def _own_state(self, run: do.RunQuery) -> tuple[bool, int]:
        """Whether the node's own checkpoint is complete, and the batch after which its state is."""
        query = run.query
        with storage_of(self.checkpoints):
            try:
                whole = self.checkpoints.is_whole(query, run.lineage)
                mine = self.checkpoints.last_mark(query) if whole else None
                return whole, mine or run.initial.number
            except (ValueError, SourcesDisagree) as error:
                log.error("checkpoint cannot be read", query=query, reason=str(error))
                return False, run.initial.number

    def continue_state(
        self, run: do.RunQuery, takeover: do.Takeover, history: History, outbox: Outbox
    ) -> RestoredState | None:
        """Restore the newest state of a query that only the active runs (RULES.md#r33).

        The state is in this node's own checkpoint, in one that an earlier active has written, or in
        a snapshot. Return None if the own checkpoint has it, or if the journal can rebuild it and
        there is no other. Raises what ``restore_state`` raises.
        """
        query, lineage = run.query, run.lineage
        whole, mine = self._own_state(run)
        if _suffices(run, takeover, whole, mine):
            return None
        if (cloned := self._clone(run, dict(takeover.shared), mine, outbox)) is not None:
            return cloned
        try:
            return self.restore_state(query, lineage, history, outbox, newer_than=mine)
        except SnapshotDamaged as error:
            if run.must_resume and not whole:
                raise
            log.info("the journal rebuilds the query's state", query=query, reason=str(error))
            return None

    def _clone(
        self, run: do.RunQuery, shared: Mapping[int, int], newer_than: int, outbox: Outbox
    ) -> RestoredState | None:
        """Continue the checkpoint of an earlier active, if it is newer than batch ``newer_than``.

        The files are linked or copied, so that what its driver still writes changes nothing here. A
        state is continued once: if this node then lacks it again, Spark could not read a file of
        it.
        """
        query = run.query
        try:
            lineages = (run.lineage, *run.earlier)
            found = self.checkpoints.newest_shared(query, lineages, shared)
            if found is None or found.number <= newer_than or found in self.continued:
                return None
            self._clear()
            self.checkpoints.stage_shared(query, found)
        except (OSError, CheckpointIncomplete, ObjectStorageFailed) as error:
            log.warning(
                "no checkpoint of an earlier active is usable", query=query, reason=str(error)
            )
            return None
        left = found.number if outbox.last_admitted(query) < found.number else 0
        self._stamp_state(query, run.lineage)
        if left:
            outbox.restore(query, left, [])
        self._put_state(query)
        self.continued.add(found)
        return RestoredState(None, found.number, left)

    def restore_state(
        self, query: str, lineage: str, history: History, outbox: Outbox, newer_than: int = -1
    ) -> RestoredState | None:
        """Restore only the state of ``query``, from the newest usable revision in ``history``.

        Return None if the state of that revision is not newer than batch ``newer_than``.

        Spark must not continue after a later batch than the newest one that the outbox has or had.
        If the state is of such a batch, ``outbox`` first gets the batches of the revision. The
        journal must have their marks, so ``history`` ends with the durable records of the journal.
        """
        restored: list[RestoredState] = []

        def bring(revision: Revision, manifest: Manifest, progress: Progress) -> None:
            captured = _captured(manifest, query, lineage)
            if captured.number <= newer_than:
                return
            left, batches = self._bring_state(manifest, captured, lineage, outbox, progress)
            restored.append(RestoredState(revision, captured.number, left, tuple(batches)))

        self._newest(history, bring, [])
        return restored[-1] if restored else None

    def _newest(self, history: History | None, bring: Bring, skipped: list[int]) -> Revision:
        """Restore the newest usable revision; add damaged or unfit revisions to ``skipped``."""
        reason, unfit = "there is no snapshot", ""
        for revision in self._candidates():
            if history is not None and not history.has_all(revision.position, revision.last_mark):
                reason = f"no revision of this history is at {history.begins} or later"
                continue
            try:
                self._bring_with(bring, revision)
            except RevisionForgotten as error:
                reason = str(error)
                log.info("revision cannot be restored", revision=revision.id, reason=reason)
            except (ChunkDamaged, SnapshotDamaged) as error:
                reason = f"revision {revision.id}: {error}"
                unfit = unfit or (reason if isinstance(error, SnapshotUnfit) else "")
                skipped.append(revision.id)
                self.counts.skipped += 1
                log.error("revision cannot be restored", revision=revision.id, reason=str(error))
            else:
                return revision
        raise SnapshotUnfit(unfit) if unfit else SnapshotDamaged(reason)

    def _candidates(self) -> Iterator[Revision]:
        """The visible revisions, newest first, and then the revisions that became visible later.

        The method lists the revisions only twice, because the active may make new revisions visible
        without end. The restore must end, because the active learns of a failure only then.
        """
        tried = set[int]()
        for _ in range(2):
            for one in self.store.revisions():
                if one.id not in tried:
                    tried.add(one.id)
                    yield one

    def _manifest(self, revision: Revision) -> Manifest:
        manifest = manifest_of(self.store, revision)
        if reason := self.objection(manifest):
            raise SnapshotUnfit(reason)
        return manifest

    def _bring_with(self, bring: Bring, revision: Revision) -> None:
        progress = pinned(self.store, revision.id, self.transfer.advance)
        manifest = self._manifest(revision)
        try:
            self._clear()
            bring(revision, manifest, progress)
        except ChunkDamaged:
            # Check all chunks now, because each attempt to restore stops at one damaged chunk.
            still_pinned = pinned(self.store, revision.id, lambda _: None)
            distrust_damaged(self.store, manifest, still_pinned)
            raise
        except OSError as error:
            raise CheckpointsFailed(
                f"{self.places.home} or {self.checkpoints.where} cannot be written: "
                f"{error.strerror}"
            ) from error
        except ObjectStorageFailed as error:
            raise CheckpointsFailed(str(error)) from error
        finally:
            self.transfer.end()

    def _require_same_application(self, manifest: Manifest) -> None:
        """Refuse a revision of another application, whose queries may need other state.

        ``restore_state`` does not need this check, since the lineage identifies the state of its
        query. A group with a deployed application does not need it, since the journal brings the
        application that fits (RULES.md#r36).
        """
        deployed = manifest.archive is not None or self.archive is not None
        if manifest.application != self.application and not deployed:
            raise SnapshotUnfit(
                f"the revision was taken under the application {manifest.application[:8]}, "
                f"but this node runs {self.application[:8]}, whose queries may need other state"
            )

    def _bring(self, manifest: Manifest, progress: Progress) -> None:
        self.transfer.begin(manifest.size)
        self._download(manifest, progress)
        self._make_journal(manifest)

    def _bring_state(
        self,
        manifest: Manifest,
        captured: CapturedQuery,
        lineage: str,
        outbox: Outbox,
        progress: Progress,
    ) -> tuple[int, list[OutboxBatch]]:
        """Restore the state of one query from a revision.

        Return ``left`` and the batches of ``RestoredState``.
        """
        query, behind = captured.query, outbox.last_admitted(captured.query) < captured.number
        output = manifest.below(f"{OUTBOX}/{query}") if behind else []
        state = manifest.size_below(f"{CHECKPOINTS}/{query}")
        self.transfer.begin(state + sum(file.size for file in output))
        self.checkpoints.stage(query, manifest, self.store, progress)
        download(self.store, output, self.places.coming, progress, self.files)
        self._stamp_state(query, lineage)
        left, batches = 0, list[OutboxBatch]()
        if behind:
            self.files.sync(self.places.coming)
            files = dict(batch_paths(self.places.coming / OUTBOX / query))
            left = captured.number - len(files)
            batches = outbox.restore(query, left, [files[number] for number in sorted(files)])
            with disk(self.places.home):
                self.files.rmtree(self.places.coming)
        self._put_state(query)
        return left, batches

    def _stamp_state(self, query: str, lineage: str) -> None:
        """Complete the staged state of a query. Raises CheckpointsFailed."""
        with storage_of(self.checkpoints):
            self.checkpoints.stamp(query, lineage)
            self.checkpoints.sync()

    def _put_state(self, query: str) -> None:
        """Replace the query's checkpoint by the staged one.

        Raises DiskFailed, after which the node must restart: the outbox may begin after other
        batches than the core knows.
        """
        with disk(self.places.checkpoints):
            self.checkpoints.put(query)

    def _clear(self) -> None:
        _clear(self.places, self.checkpoints, self.files)

    def _download(self, manifest: Manifest, progress: Progress) -> None:
        """Download the files of ``manifest``. Checkpoints go where the node's checkpoints are."""
        for one in manifest.queries:
            self.checkpoints.stage(one.query, manifest, self.store, progress)
        rest = [one for one in manifest.files if not one.path.startswith(f"{CHECKPOINTS}/")]
        download(self.store, rest, self.places.coming, progress, self.files)

    def _make_journal(self, manifest: Manifest) -> None:
        """Create the new journal, which begins after the base of the snapshot.

        The new journal has a new id, so that the lease row's entry for the old journal does not
        apply to the new journal (RULES.md#r8).
        """
        coming = self.places.coming
        try:
            base = base_file.decode(read_file(coming / base_file.NAME, self.files)).base
        except ValueError as error:
            raise SnapshotDamaged(
                f"the base of the snapshot's journal cannot be read: {error}"
            ) from error
        journal_id = Journal.create_after(
            coming / JOURNAL,
            base.position,
            group=self.group,
            group_id=manifest.group_id,
            epochs=base.epochs,
            files=self.files,
        )
        self.files.rename(coming / base_file.NAME, coming / JOURNAL / base_file.NAME)
        make_directory(coming / OUTBOX, files=self.files, durable=False)
        for one in manifest.queries:
            self.checkpoints.stamp(one.query, f"{journal_id}:{one.lineage}")


def _suffices(run: do.RunQuery, takeover: do.Takeover, whole: bool, mine: int) -> bool:
    """Whether a query can begin with its own state, which is complete if ``whole``, and after batch
    ``mine``. Spark may not have ended the last batch that was published."""
    return (whole or not run.must_resume) and mine + 1 >= takeover.published


@contextmanager
def storage_of(checkpoints: CheckpointStorage) -> Iterator[None]:
    """Turn an error of the storage within the context into CheckpointsFailed."""
    try:
        yield
    except (OSError, DiskFailed) as error:
        raise CheckpointsFailed(
            f"the checkpoints below {checkpoints.where} failed: {error}"
        ) from error


def _captured(manifest: Manifest, query: str, lineage: str) -> CapturedQuery:
    """The state of a query in a revision. State of another lineage does not fit the query
    (RULES.md#r23). Raises SnapshotDamaged if the revision lacks state of the query's lineage."""
    for captured in manifest.queries:
        if captured.query == query and str(captured.lineage) == record_in(lineage):
            return captured
    raise SnapshotDamaged(
        f"the revision has no state of query {query} of the lineage in the journal"
    )


def _clear(places: Places, checkpoints: CheckpointStorage, files: Files) -> None:
    """Delete the files that an incomplete restore has downloaded."""
    if places.coming.exists():
        files.rmtree(places.coming)
    checkpoints.clear()


def finish(places: Places, checkpoints: CheckpointStorage, files: Files = OS_FILES) -> bool:
    """Move a complete download into the node's data directory and return True.

    If no download is complete, return False. The function deletes an incomplete download, which may
    be as large as the node's state. Call this function before the node opens any of its data.
    Raises DiskFailed.
    """
    try:
        if not (places.whole / JOURNAL).is_dir():
            # The journal moves last. A download without a journal is in place already, or a reinit
            # has deleted the journal of the download.
            if places.whole.exists():
                files.rmtree(places.whole)
            _clear(places, checkpoints, files)
            return False
        # Else a loss of power could bring back the former name of the download, which is deleted at
        # the next start, after the old data is gone.
        files.fsync_directory(places.home)
        checkpoints.put_all(places.whole)
        _keep_what_was_given_up(places, files)
        for part in (OUTBOX, JOURNAL):
            replace_directory(places.whole / part, places.home / part, files)
        files.rmtree(places.whole)
    except OSError as error:
        raise DiskFailed(f"{places.home} cannot be written: {error.strerror}") from error
    return True


def _keep_what_was_given_up(places: Places, files: Files) -> None:
    """Move the files with given-up records from the old journal to the new journal.

    The node never deletes the records that a forced failover gave up, but sets them aside in files
    (RULES.md#r26).
    """
    fresh = places.whole / JOURNAL
    if not fresh.is_dir():
        return
    for file in (places.home / JOURNAL).glob(f"*{GIVEN_UP_SUFFIX}"):
        files.rename(file, fresh / file.name)
    files.fsync_directory(fresh)
