"""A snapshot takes the place of a node's journal, outbox and checkpoints.

It is downloaded beside them, verified on the way; a rename says that it is whole. Only then, and at
the next start of the process if this one is killed, what was there is deleted and what came is
moved into its place. Each step may be done again, so a kill at any point leaves the old state or
the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from ha_engine import base_file
from ha_engine.errors import ChunkDamaged, DiskFailed, SnapshotDamaged
from ha_engine.journal import Journal
from ha_engine.journal.set_aside import SUFFIX as GIVEN_UP_SUFFIX
from ha_engine.postgres.snapshot_store import SnapshotStore
from ha_engine.query.checkpoints import stamp_restored
from ha_engine.snapshot.files import Progress, download
from ha_engine.snapshot.manifest import Manifest
from ha_engine.snapshot.verification import manifest_of
from ha_engine.types import Position, Revision

log = structlog.get_logger(__name__)

CHECKPOINTS, OUTBOX, JOURNAL, BASE = "checkpoints", "outbox", "journal", "base.arrow"
_COMING, _WHOLE = ".restoring", ".restored"


@dataclass(frozen=True, slots=True)
class Places:
    """``checkpoints`` may lie on another file system than the rest."""

    home: Path
    checkpoints: Path

    @property
    def coming(self) -> Path:
        return self.home / _COMING

    @property
    def whole(self) -> Path:
        """Is there once everything has come."""
        return self.home / _WHOLE

    @property
    def staged_checkpoints(self) -> Path:
        return self.checkpoints / _WHOLE


@dataclass(frozen=True, slots=True)
class Restoring:
    """Blocking. ``objection`` says why a revision's manifest does not fit this node, or None."""

    store: SnapshotStore
    places: Places
    group: str
    objection: Callable[[Manifest], str | None]
    progress: Progress

    def restore(
        self,
        begins: Position,
        epochs: tuple[Position, ...],
        keep: Callable[[Path], None] = lambda directory: None,
    ) -> Revision:
        """Brings the newest revision that stands at ``begins`` or later in the history of
        ``epochs``, and is whole; ``keep`` adds to the directory of its journal.

        Raises SnapshotDamaged when there is none, DatabaseUnreachable, DiskFailed.
        """
        why = f"no revision stands at {begins} or later"
        for revision in self.store.revisions():
            places = revision.position, revision.written
            if revision.position < begins or not all(_stands_on(p, epochs) for p in places):
                continue
            try:
                self._bring(revision, keep)
            except (ChunkDamaged, SnapshotDamaged) as error:
                why = f"revision {revision.id}: {error}"
                log.error("a revision cannot be restored", revision=revision.id, why=str(error))
            else:
                return revision
        raise SnapshotDamaged(f"{why}; take one on the active: ha-engine snapshot now")

    def _bring(self, revision: Revision, keep: Callable[[Path], None]) -> None:
        manifest = manifest_of(self.store, revision.id)
        if why := self.objection(manifest):
            raise SnapshotDamaged(why)
        try:
            self._clear()
            self._download(manifest)
            self._make_journal(manifest)
            keep(self.places.coming / JOURNAL)
            os.sync()
            self.places.coming.rename(self.places.whole)
        except OSError as error:
            raise DiskFailed(f"{self.places.home} cannot be written: {error.strerror}") from error

    def _clear(self) -> None:
        for place in (self.places.coming, self.places.staged_checkpoints):
            if place.exists():
                shutil.rmtree(place)

    def _download(self, manifest: Manifest) -> None:
        """Checkpoints go to their own root, whose file system they are to be renamed on."""
        mine = [file for file in manifest.files if file.path.startswith(f"{CHECKPOINTS}/")]
        rest = [file for file in manifest.files if file not in mine]
        staged = self.places.staged_checkpoints
        download(self.store, mine, staged, self.progress)
        download(self.store, rest, self.places.coming, self.progress)

    def _make_journal(self, manifest: Manifest) -> None:
        """Of a new id, since no word on the old one holds (R8); it begins behind the base."""
        coming = self.places.coming
        base, _ = base_file.decode((coming / BASE).read_bytes())
        journal_id = Journal.create_behind(
            coming / JOURNAL,
            base.position,
            group=self.group,
            group_id=manifest.group_id,
            epochs=base.epochs,
        )
        (coming / BASE).rename(coming / JOURNAL / BASE)
        (coming / OUTBOX).mkdir(exist_ok=True)
        for one in manifest.queries:
            checkpoint = self.places.staged_checkpoints / CHECKPOINTS / one.query
            stamp_restored(checkpoint, f"{journal_id}:{one.lineage}")


def _stands_on(position: Position, epochs: tuple[Position, ...]) -> bool:
    before = [start.epoch for start in epochs if start.sequence <= position.sequence]
    return max(before, default=0) == position.epoch


def finish(places: Places) -> bool:
    """Puts what has come into its place; False when nothing has. For before anything is opened.

    Raises DiskFailed.
    """
    try:
        if not places.whole.is_dir():
            return False
        _replace_checkpoints(places)
        _keep_what_was_given_up(places)
        for part in (OUTBOX, JOURNAL):
            _replace(places.whole / part, places.home / part)
        places.whole.rmdir()
    except OSError as error:
        raise DiskFailed(f"{places.home} cannot be written: {error.strerror}") from error
    return True


def _keep_what_was_given_up(places: Places) -> None:
    """R26: set aside, not deleted; also what earlier failovers gave up."""
    for file in (places.home / JOURNAL).glob(f"*{GIVEN_UP_SUFFIX}"):
        if (places.whole / JOURNAL).is_dir():
            file.rename(places.whole / JOURNAL / file.name)


def _replace_checkpoints(places: Places) -> None:
    """One that the snapshot does not have bears the stamp of the old journal, and goes by that."""
    come = places.staged_checkpoints / CHECKPOINTS
    for fresh in list(come.iterdir()) if come.is_dir() else ():
        _replace(fresh, places.checkpoints / fresh.name)
    shutil.rmtree(places.staged_checkpoints, ignore_errors=True)


def _replace(fresh: Path, old: Path) -> None:
    if not fresh.exists():
        return
    if old.exists():
        shutil.rmtree(old)
    fresh.rename(old)
    descriptor = os.open(old.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
