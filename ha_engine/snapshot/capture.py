"""Link the files of a snapshot into another directory, so that Spark cannot delete these files.

Each linked file has the relative path that a restored file has in a node's data directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from ha_engine.errors import CheckpointIncomplete
from ha_engine.outbox import Outbox
from ha_engine.outbox.batch_file import read_batch_file
from ha_engine.query.checkpoint_files import copy_as_of
from ha_engine.query.checkpoints import batch_of_mark
from ha_engine.snapshot.files import Names
from ha_engine.snapshot.manifest import KeptFile
from ha_engine.snapshot.object_storage import ObjectStates
from ha_engine.system.files import CREATE, OS_FILES, Files, make_directory, write_all
from ha_engine.types import SnapshotPlace

_ATTEMPTS, _PAUSE_SECONDS = 5, 0.2
STAGED = ".snapshot"
"""The directory for the links, on the same file system as the linked files."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Links and deletes the files of a snapshot.

    ``checkpoints`` is the root of Spark's checkpoints, and ``home`` is the node's data directory.
    ``sleep`` waits between two attempts to link a checkpoint that Spark changes meanwhile. If the
    checkpoints are ``objects``, a snapshot names copies of their files instead.
    """

    checkpoints: Path
    home: Path
    outbox: Outbox
    disk: Files = OS_FILES
    sleep: Callable[[float], None] = time.sleep
    objects: ObjectStates | None = None

    def files(self, place: SnapshotPlace, names: Names) -> dict[str, Path]:
        """Link the snapshot's files and return the links by name. ``clear`` deletes the links.

        Raises CheckpointIncomplete, OSError.
        """
        self.clear()
        found: dict[str, Path] = {}
        for query, number in place.batches:
            if self.objects is None:
                self._link_checkpoint(query, number, names)
                found |= _below(self._staged_checkpoints / query, f"checkpoints/{query}")
            found |= self._link_outbox(query, number)
        return found

    def keep(self, place: SnapshotPlace) -> tuple[KeptFile, ...]:
        """Copy the files of the states on object storage.

        Raises CheckpointIncomplete, ObjectStorageFailed.
        """
        if self.objects is None:
            return ()
        retrying, keep = self._retrying(), self.objects.keep
        states = (retrying(keep, query, number) for query, number in place.batches)
        return tuple(file for files in states for file in files)

    def add(self, name: str, content: bytes) -> Path:
        """Write a file that is part of the snapshot but not of the node's data. Raises OSError."""
        path = self._staged_here / name
        make_directory(path.parent, files=self.disk, durable=False)
        with self.disk.open(path, CREATE) as file:
            write_all(file, content)
        return path

    def clear(self) -> None:
        for staged in (self._staged_checkpoints, self._staged_here):
            self._delete(staged)

    @property
    def _staged_checkpoints(self) -> Path:
        return self.checkpoints / STAGED

    @property
    def _staged_here(self) -> Path:
        return self.home / STAGED

    def _link_checkpoint(self, query: str, number: int, names: Names) -> None:
        """Link a query's checkpoint; retry if Spark deletes a file before the file is linked."""
        checkpoint, target = self.checkpoints / query, self._staged_checkpoints / query

        def link() -> None:
            self._delete(target)
            batch = batch_of_mark(checkpoint, number)
            copy_as_of(checkpoint, batch, target, _Stored(checkpoint, names), self.disk)

        self._retrying()(link)

    def _retrying(self) -> Retrying:
        return Retrying(
            sleep=self.sleep,
            retry=retry_if_exception_type(CheckpointIncomplete),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_fixed(_PAUSE_SECONDS),
            reraise=True,
        )

    def _link_outbox(self, query: str, number: int) -> dict[str, Path]:
        """Link the batches up to batch ``number`` in the outbox, which some sink may lack.

        The outbox deletes only published batches, so no sink lacks a batch that is deleted before
        it is linked. The ``.left`` file names the last batch that the outbox has deleted. Without
        the ``.left`` file, a restored node would wait for the deleted batch.
        """
        found, left = dict[str, Path](), number
        for batch in range(number, self.outbox.floor(query), -1):
            kept = self.outbox.batch(query, batch)
            if kept is None:
                break
            name = f"outbox/{query}/{batch}.arrow"
            staged = self._staged_here / name
            make_directory(staged.parent, files=self.disk, durable=False)
            try:
                self.disk.link(kept.path, staged)
            except FileNotFoundError:
                break
            read_batch_file(staged, self.disk)  # raises if the batch is damaged
            found[name], left = staged, batch - 1
        name = f"outbox/{query}/{left}.left"
        return found | {name: self.add(name, b"")}

    def _delete(self, staged: Path) -> None:
        # What a failure leaves here takes space, and the next snapshot deletes it.
        with suppress(OSError):
            if staged.exists():
                self.disk.rmtree(staged)


@dataclass(frozen=True, slots=True)
class _Stored:
    """The paths, relative to a checkpoint, of files that an earlier snapshot stored."""

    checkpoint: Path
    names: Names

    def __contains__(self, path: object) -> bool:
        return self.names.knows(self.checkpoint / str(path))


def _below(root: Path, name: str) -> dict[str, Path]:
    return {f"{name}/{path.relative_to(root)}": path for path in _files(root)}


def _files(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file())
