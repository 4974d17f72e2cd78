"""Replace a query's checkpoint by one from a snapshot, or by that of an earlier active.

A state is first staged beside the checkpoints, then stamped, and then put in the place of the
query's checkpoint. The methods of CheckpointStorage are these steps, here for directories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ha_engine.errors import SnapshotUnfit
from ha_engine.query import checkpoints
from ha_engine.query.checkpoint_files import copy_as_of
from ha_engine.query.checkpoints import SharedState
from ha_engine.snapshot.files import ChunkReader, Progress, download
from ha_engine.snapshot.manifest import Manifest
from ha_engine.system.files import OS_FILES, Files

CHECKPOINTS = "checkpoints"
WHOLE = ".restored"
"""The directory of a complete download. The name of a query never starts with a dot."""


class CheckpointStorage(Protocol):
    """The checkpoints of a node. Each method may raise OSError and DiskFailed."""

    @property
    def where(self) -> str:
        """The place of the checkpoints, for messages."""

    def is_whole(self, query: str, lineage: str) -> bool:
        """Whether the checkpoint belongs to ``lineage`` and is known to be complete."""

    def carry_on(self, query: str, earlier: Sequence[str], lineage: str) -> None:
        """Change the lineage of a checkpoint from one of ``earlier`` to ``lineage``."""

    def last_mark(self, query: str) -> int | None:
        """The mark of the newest finished batch, or None. Raises SourcesDisagree."""

    def newest_shared(
        self, query: str, lineages: Sequence[str], shared: Mapping[int, int]
    ) -> SharedState | None:
        """The newest state of an earlier active; see ``checkpoints.newest_shared``."""

    def clear(self) -> None:
        """Delete what is staged."""

    def stage_shared(self, query: str, found: SharedState) -> None:
        """Stage the state of an earlier active. Raises CheckpointIncomplete."""

    def stage(self, query: str, manifest: Manifest, store: ChunkReader, progress: Progress) -> None:
        """Stage a query's state from a revision; raises what ``download`` does, SnapshotUnfit."""

    def kept_problems(self, manifest: Manifest) -> list[str]:
        """A sentence for each file of a revision that is not beside the checkpoints any more."""

    def stamp(self, query: str, lineage: str) -> None:
        """Make the staged state one of ``lineage``."""

    def sync(self) -> None:
        """Make the staged states durable."""

    def seal(self, home: Path) -> None:
        """Prepare the staged states for ``put_all``; ``home`` has the rest of the restore."""

    def put(self, query: str) -> None:
        """Replace the query's checkpoint by the staged one."""

    def put_all(self, home: Path) -> None:
        """Replace the checkpoints by those that were sealed with ``home``, perhaps once more."""


def kept_elsewhere(manifest: Manifest, here: str) -> str:
    """The reason why a node with its checkpoints at ``here`` cannot restore a revision."""
    return (
        f"the revision's state is at {manifest.kept_at}, but this node's checkpoints are at "
        f"{here}; set execution.checkpoint to the place of the state, or take a new snapshot"
    )


@dataclass(frozen=True, slots=True)
class CheckpointDirectories:
    """Checkpoints in directories below ``root``, which may be on a file system of its own.

    ``shared`` returns the directories with the checkpoints of all nodes, if these share a file
    system, and raises OSError.
    """

    root: Path
    files: Files = OS_FILES
    shared: Callable[[], Sequence[Path]] = lambda: ()

    @property
    def where(self) -> str:
        return str(self.root)

    @property
    def _staged(self) -> Path:
        """The directory of staged states, since a rename cannot cross file systems."""
        return self.root / WHOLE

    def _fresh(self, query: str) -> Path:
        return self._staged / CHECKPOINTS / query

    def is_whole(self, query: str, lineage: str) -> bool:
        return checkpoints.is_whole(self.root, query, lineage)

    def carry_on(self, query: str, earlier: Sequence[str], lineage: str) -> None:
        checkpoints.carry_on(self.root, query, earlier, lineage, self.files)

    def last_mark(self, query: str) -> int | None:
        return checkpoints.last_mark(self.root, query)

    def newest_shared(
        self, query: str, lineages: Sequence[str], shared: Mapping[int, int]
    ) -> SharedState | None:
        return checkpoints.newest_shared(self.shared(), query, lineages, shared)

    def clear(self) -> None:
        if self._staged.exists():
            self.files.rmtree(self._staged)

    def stage_shared(self, query: str, found: SharedState) -> None:
        assert isinstance(found.checkpoint, Path), "the state is in a directory"
        copy_as_of(found.checkpoint, found.batch, self._fresh(query), files=self.files)

    def stage(self, query: str, manifest: Manifest, store: ChunkReader, progress: Progress) -> None:
        if problems := self.kept_problems(manifest):
            raise SnapshotUnfit(problems[0])
        state = manifest.below(f"{CHECKPOINTS}/{query}")
        download(store, state, self._staged, progress, self.files)

    def kept_problems(self, manifest: Manifest) -> list[str]:
        return [kept_elsewhere(manifest, self.where)] if manifest.kept else []

    def stamp(self, query: str, lineage: str) -> None:
        checkpoints.stamp_restored(self._fresh(query), lineage, self.files)

    def sync(self) -> None:
        if self._staged.exists():
            self.files.sync(self._staged)

    def seal(self, home: Path) -> None:
        self.sync()

    def put(self, query: str) -> None:
        self._replace(self._fresh(query))
        self.files.rmtree(self._staged)

    def put_all(self, home: Path) -> None:
        """An old checkpoint that the snapshot lacks keeps the stamp of the old journal. The query
        process later sets a checkpoint with such a stamp aside."""
        staged_states = self._staged / CHECKPOINTS
        for fresh in list(staged_states.iterdir()) if staged_states.is_dir() else ():
            self._replace(fresh)
        self.clear()

    def _replace(self, fresh: Path) -> None:
        # Executors of an earlier driver must not change the restored checkpoint.
        checkpoints.close_paths(self.root, fresh.name)
        replace_directory(fresh, self.root / fresh.name, self.files)


def replace_directory(fresh: Path, old: Path, files: Files) -> None:
    if not fresh.exists():
        return
    if old.exists():
        files.rmtree(old)
    files.rename(fresh, old)
    files.fsync_directory(old.parent)
