"""The checkpoints of a node on object storage, for snapshots and restores.

A snapshot names objects instead of storing them in the database. These are copies of Spark's files,
which Spark never deletes. The storage makes the copies, and a file of one run is copied once for
all snapshots that name it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ha_engine.errors import CheckpointIncomplete, SnapshotDamaged, SnapshotUnfit
from ha_engine.query.checkpoint_files import files_as_of
from ha_engine.query.checkpoints import SharedState, batch_of_mark
from ha_engine.query.object_checkpoints import KEPT, ObjectCheckpoints, Stamp
from ha_engine.query.object_path import ObjectPath
from ha_engine.snapshot.checkpoint_storage import CHECKPOINTS, kept_elsewhere
from ha_engine.snapshot.files import ChunkReader, Progress, download
from ha_engine.snapshot.manifest import KeptFile, Manifest
from ha_engine.system.files import OS_FILES, Files, make_directory, replace_file

_STAMPS = "stamps"
_DOWNLOADED = ".states"
_COPIED_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class ObjectStates:
    """Implements CheckpointStorage. A state is staged in a run that no stamp names yet.

    ``home`` is a directory for states that come from the database.
    """

    checkpoints: ObjectCheckpoints
    home: Path
    files: Files = OS_FILES
    staged: dict[str, Stamp] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.checkpoints.bucket.where}/{self.checkpoints.node}"

    def is_whole(self, query: str, lineage: str) -> bool:
        return self.checkpoints.is_whole(query, lineage)

    def carry_on(self, query: str, earlier: Sequence[str], lineage: str) -> None:
        self.checkpoints.carry_on(query, earlier, lineage)

    def last_mark(self, query: str) -> int | None:
        return self.checkpoints.last_mark(query)

    def newest_shared(
        self, query: str, lineages: Sequence[str], shared: Mapping[int, int]
    ) -> SharedState | None:
        return self.checkpoints.newest_shared(query, lineages, shared)

    # -- restore -----------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget what is staged. The next restore of a query deletes the objects."""
        self.staged.clear()

    def stage_shared(self, query: str, found: SharedState) -> None:
        assert isinstance(found.checkpoint, ObjectPath), "the state is on this storage"
        self.checkpoints.copy_as_of(found.checkpoint, found.batch, self._new_run(query))

    def stage(self, query: str, manifest: Manifest, store: ChunkReader, progress: Progress) -> None:
        run, directory = self._new_run(query), f"{CHECKPOINTS}/{query}"
        if kept := manifest.kept_below(directory):
            self._stage_kept(manifest, kept, f"{run}/", progress)
            return
        # The revision is of a time when the checkpoints were in directories.
        there = self.home / _DOWNLOADED
        if there.exists():
            self.files.rmtree(there)
        state = manifest.below(directory)
        download(store, state, there, progress, self.files)
        for file in state:
            path = there / file.path
            self.checkpoints.bucket.put(f"{run}/{path.relative_to(there / directory)}", path)
        if there.exists():
            self.files.rmtree(there)

    def _stage_kept(
        self, manifest: Manifest, kept: list[KeptFile], run: str, progress: Progress
    ) -> None:
        bucket = self.checkpoints.bucket
        if manifest.kept_at != bucket.where:
            raise SnapshotUnfit(kept_elsewhere(manifest, bucket.where))
        if problems := self._problems(kept):
            raise SnapshotDamaged(problems[0])
        for at in range(0, len(kept), _COPIED_TOGETHER):
            portion = kept[at : at + _COPIED_TOGETHER]
            try:
                bucket.copy({one.key: f"{run}{_within_run(one.key)}" for one in portion})
            except CheckpointIncomplete as error:
                raise SnapshotDamaged(str(error)) from error
            progress(sum(file.size for file in portion))

    def stamp(self, query: str, lineage: str) -> None:
        self.staged[query] = Stamp(lineage, self.staged[query].run)

    def sync(self) -> None:
        """The storage has made every object durable already."""

    def seal(self, home: Path) -> None:
        make_directory(home / _STAMPS, files=self.files)
        for query, stamp in self.staged.items():
            replace_file(home / _STAMPS / query, [bytes(stamp)], self.files)

    def put(self, query: str) -> None:
        self.checkpoints.put_stamp(query, self.staged.pop(query))

    def put_all(self, home: Path) -> None:
        for file in (home / _STAMPS).glob("*"):
            stamp = Stamp.parse(file.read_bytes())
            assert stamp is not None, "a sealed stamp is whole"
            self.checkpoints.put_stamp(file.name, stamp)

    def _new_run(self, query: str) -> str:
        run = self.checkpoints.restored_run(query)
        self.staged[query] = Stamp("", run)
        return run

    # -- snapshots ---------------------------------------------------------------------------------

    def keep(self, query: str, number: int) -> list[KeptFile]:
        """Copy the files of the state after batch ``number``, and name the copies.

        Raises CheckpointIncomplete, also while Spark deletes old files.
        """
        bucket, stamp = self.checkpoints.bucket, self.checkpoints.stamp_of(query)
        if stamp is None:
            raise CheckpointIncomplete(f"{self.where}/{query} has no checkpoint")
        checkpoint = ObjectPath.of(bucket, stamp.run)
        kept = f"{KEPT}/{stamp.run}"
        there = {one.key.removeprefix(f"{kept}/") for one in bucket.below(kept)}
        try:
            batch = batch_of_mark(checkpoint, number)
            files = [one.relative_to(checkpoint) for one in files_as_of(checkpoint, batch, there)]
        except FileNotFoundError as error:
            raise CheckpointIncomplete(
                f"{error.filename} was deleted before it was read"
            ) from error
        fresh = [one for one in files if str(one) not in there]
        bucket.copy({f"{stamp.run}/{one}": f"{kept}/{one}" for one in fresh})
        copies = {one.key: one for one in bucket.below(kept)}
        return [
            KeptFile(f"{CHECKPOINTS}/{query}/{one}", copy.size, copy.key, copy.version)
            for one in files
            for copy in (copies[f"{kept}/{one}"],)
        ]

    def forget(self, named: Container[str]) -> None:
        """Delete the copies of this node that are not ``named``.

        The caller ensures that no snapshot that may still become visible names others.
        """
        bucket = self.checkpoints.bucket
        below = bucket.below(f"{KEPT}/{self.checkpoints.node}")
        bucket.delete(one.key for one in below if one.key not in named)

    def kept_problems(self, manifest: Manifest) -> list[str]:
        if manifest.kept and manifest.kept_at != self.checkpoints.bucket.where:
            return [kept_elsewhere(manifest, self.checkpoints.bucket.where)]
        return self._problems(manifest.kept)

    def _problems(self, kept: Sequence[KeptFile]) -> list[str]:
        runs = {one.key.removesuffix(f"/{_within_run(one.key)}") for one in kept}
        found = {one.key: one.version for run in runs for one in self.checkpoints.bucket.below(run)}
        return [
            f"{one.path}: the object {one.key} "
            + ("has changed" if one.key in found else "is missing")
            for one in kept
            if found.get(one.key) != one.version
        ]


def _within_run(key: str) -> str:
    """The path of a kept file within its run, which is the fourth part of the key."""
    return key.split("/", 4)[4]
