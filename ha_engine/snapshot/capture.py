"""Links the files of a snapshot into another directory, so that they stay while Spark runs.

Each file has the name that it gets in a node's data directory when it is restored.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from ha_engine.errors import CheckpointIncomplete
from ha_engine.outbox import Outbox
from ha_engine.query.checkpoint_files import copy_as_of, last_finished
from ha_engine.query.offsets import mark_of_batch
from ha_engine.snapshot.files import Names
from ha_engine.types import SnapshotPlace

_ATTEMPTS, _PAUSE_SECONDS = 5, 0.2
STAGED = ".snapshot"
"""A directory beside the linked files, so that it is on the same file system."""


@dataclass(frozen=True, slots=True)
class Capture:
    """``checkpoints`` is the root of Spark's checkpoints, ``home`` the node's data directory."""

    checkpoints: Path
    home: Path
    outbox: Outbox

    def files(self, place: SnapshotPlace, names: Names) -> dict[str, Path]:
        """Link the files and return them by name; they stay until ``clear``.

        Raises CheckpointIncomplete, OSError.
        """
        self.clear()
        found: dict[str, Path] = {}
        for query, number in place.batches:
            self._link_checkpoint(query, number, names)
            found |= _below(self._staged_checkpoints / query, f"checkpoints/{query}")
            found |= self._link_outbox(query, number)
        return found

    def add(self, name: str, content: bytes) -> Path:
        """Write a file that only the snapshot needs. Raises OSError."""
        path = self._staged_here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def clear(self) -> None:
        for staged in (self._staged_checkpoints, self._staged_here):
            shutil.rmtree(staged, ignore_errors=True)

    @property
    def _staged_checkpoints(self) -> Path:
        return self.checkpoints / STAGED

    @property
    def _staged_here(self) -> Path:
        return self.home / STAGED

    def _link_checkpoint(self, query: str, number: int, names: Names) -> None:
        """Link a query's checkpoint. Retry if Spark replaces a file before it is linked."""
        checkpoint, target = self.checkpoints / query, self._staged_checkpoints / query

        def link() -> None:
            shutil.rmtree(target, ignore_errors=True)
            batch = _batch_of_mark(checkpoint, number)
            copy_as_of(checkpoint, batch, target, _Stored(checkpoint, names))

        Retrying(
            retry=retry_if_exception_type(CheckpointIncomplete),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_fixed(_PAUSE_SECONDS),
            reraise=True,
        )(link)

    def _link_outbox(self, query: str, number: int) -> dict[str, Path]:
        """Link the batches up to ``number`` that some sink may lack.

        A batch that the outbox deletes meanwhile is published, so no sink lacks it. The ``.left``
        file names the last batch that had left the outbox. Without it a restored node would wait
        for that batch.
        """
        found, left = dict[str, Path](), number
        for batch in range(number, self.outbox.floor(query), -1):
            kept = self.outbox.batch(query, batch)
            if kept is None:
                break
            name = f"outbox/{query}/{batch}.arrow"
            staged = self._staged_here / name
            staged.parent.mkdir(parents=True, exist_ok=True)
            try:
                staged.hardlink_to(kept.path)
            except FileNotFoundError:
                break
            found[name], left = staged, batch - 1
        name = f"outbox/{query}/{left}.left"
        return found | {name: self.add(name, b"")}


@dataclass(frozen=True, slots=True)
class _Stored:
    """The files of a checkpoint that were stored before, by their path below it."""

    checkpoint: Path
    names: Names

    def __contains__(self, path: object) -> bool:
        return self.names.knows(self.checkpoint / str(path))


def _batch_of_mark(checkpoint: Path, number: int) -> int:
    """Spark's number of the batch that the mark ``number`` ends."""
    last = last_finished(checkpoint)
    if last is not None:
        batch = last - (mark_of_batch(checkpoint, last) - number)
        if 0 <= batch <= last:
            return batch
    raise CheckpointIncomplete(f"{checkpoint} has no finished batch {number}")


def _below(root: Path, name: str) -> dict[str, Path]:
    return {f"{name}/{path.relative_to(root)}": path for path in _files(root)}


def _files(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file())
