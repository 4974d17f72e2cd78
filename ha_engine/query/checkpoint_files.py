"""Find and copy the files of a checkpoint that hold the state after one batch (RULES.md#r21).

Spark writes each file of a checkpoint once, with a version in the name. The state after Spark's
batch n has version n + 1. The versions allow a copy of the state after a batch while later batches
run. A rollback that deletes newer files could leave newer state in the checkpoint.

``offsets/n`` exists once batch n is planned, and ``commits/n`` once batch n is done.
``v.delta`` below ``state`` has the changes of version v, and ``v.snapshot`` the whole state of
version v. The state store ``rocksdb`` writes ``v.changelog`` and ``v.zip`` instead, where
``v.zip`` names files in ``SSTs`` and ``logs``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from ha_engine.errors import CheckpointIncomplete
from ha_engine.query.object_path import AnyPath, CheckpointPath, ObjectPath
from ha_engine.system.files import OS_FILES, Files, make_directory

_VERSIONED = re.compile(r"(\d+)\.(delta|changelog|snapshot|zip)")
_WHOLE = ("snapshot", "zip")
LOGS = ("offsets", "commits")
_ROCKSDB_FILES = (("sstFiles", "dfsSstFileName", "SSTs"), ("logFiles", "dfsLogFileName", "logs"))
_MERGE_FACTOR = 2
"""A chain may have this many times the bytes of the shortest chain, plus _DEAR_BYTES, if more of
the chain is stored already."""
_MERGE_BYTES = 4 << 20


def last_finished(checkpoint: CheckpointPath) -> int | None:
    """Spark's number of the newest finished batch, or None if no batch is finished."""
    return max(finished_batches(checkpoint), default=None)


def finished_batches(checkpoint: CheckpointPath) -> Iterator[int]:
    """Spark's numbers of the finished batches that the checkpoint still names."""
    return batches_of(checkpoint / "commits")


def copy_as_of(
    checkpoint: Path,
    batch: int,
    target: Path,
    stored: Container[str] = frozenset(),
    files: Files = OS_FILES,
) -> None:
    """Copy the files that Spark needs to continue after its batch ``batch`` to the new ``target``.

    ``stored`` has paths, relative to the checkpoint, of files that are stored in a snapshot
    already. Files are linked if the file system supports links, else copied. Raises
    CheckpointIncomplete if a needed file is missing, for example while Spark cleans up. Raises
    OSError.
    """
    try:
        for path in list(files_as_of(checkpoint, batch, stored)):
            copy = target / path.relative_to(checkpoint)
            make_directory(copy.parent, files=files, durable=False)
            _link(path, copy, files)
    except FileNotFoundError as error:
        raise CheckpointIncomplete(f"{error.filename} was deleted before it was copied") from error


def files_as_of(
    checkpoint: AnyPath, batch: int, stored: Container[str] = frozenset()
) -> Iterator[AnyPath]:
    """The files that ``copy_as_of`` copies. Raises CheckpointIncomplete, OSError."""
    yield checkpoint / "metadata"
    for log in LOGS:
        # Spark also reads the files of the batch before the last batch.
        yield from (
            checkpoint / log / str(n) for n in batches_of(checkpoint / log) if _near(n, batch)
        )
    for directory, names in _directories(checkpoint / "state"):
        chains = list(_chains(directory, names, batch + 1))
        if chains:
            yield from _cheapest(checkpoint, chains, stored).files
        elif any(map(_VERSIONED.fullmatch, names)):
            raise CheckpointIncomplete(f"{directory} has no complete state of version {batch + 1}")
        elif directory.name not in {"SSTs", "logs"}:
            yield from (directory / name for name in names)


@dataclass(frozen=True, slots=True)
class _Chain(Generic[AnyPath]):
    """A whole state and all changes after that state. The newest file is the last in ``files``."""

    files: tuple[AnyPath, ...]

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def cost(self, checkpoint: AnyPath, stored: Container[str]) -> int:
        fresh = (path for path in self.files if str(path.relative_to(checkpoint)) not in stored)
        return sum(path.stat().st_size for path in fresh)


def _chains(directory: AnyPath, names: list[str], version: int) -> Iterator[_Chain[AnyPath]]:
    """Yield every chain of files that gives the state of ``version``, the shortest chain first.

    Version 0 is the empty state.
    """
    found = {n: _VERSIONED.fullmatch(n) for n in names}
    known: dict[tuple[int, bool], AnyPath] = {
        (int(m[1]), m[2] in _WHOLE): directory / n for n, m in found.items() if m
    }
    changes: list[AnyPath] = []
    for at in range(version, -1, -1):
        files: list[AnyPath] = changes[::-1]
        if (at, True) in known:
            whole: AnyPath = known[at, True]
            files[:0] = _with_parts(whole)
            yield _Chain(tuple(files))
        elif at == 0 and changes:
            yield _Chain(tuple(files))
        if (at, False) not in known:
            return
        changes.append(known[at, False])


def _with_parts(whole: AnyPath) -> Iterator[AnyPath]:
    """Yield ``whole``, and before it the files that it names if it is a zip of RocksDB.

    Several zips may name the same file.
    """
    if whole.suffix == ".zip":
        try:
            with zipfile.ZipFile(whole.open("rb")) as archive:
                named = json.loads(archive.read("metadata").decode().partition("\n")[2])
            for key, name, folder in _ROCKSDB_FILES:
                yield from (whole.parent / folder / one[name] for one in named.get(key, ()))
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise CheckpointIncomplete(f"{whole} does not name the files that it needs") from error
    yield whole


def _cheapest(
    checkpoint: AnyPath, chains: list[_Chain[AnyPath]], stored: Container[str]
) -> _Chain[AnyPath]:
    """Choose the chain with the fewest bytes that are not stored yet.

    Chains that are much larger than the shortest chain are left out, so that a restore reads
    little.
    """
    longest = _MERGE_FACTOR * chains[0].size + _MERGE_BYTES
    allowed = [chain for chain in chains if chain.size <= longest]
    return min(allowed, key=lambda chain: chain.cost(checkpoint, stored))


def _directories(state: AnyPath) -> Iterator[tuple[AnyPath, list[str]]]:
    for directory, names in _walk(state):
        visible = [name for name in names if not name.startswith(".")]
        if visible:
            yield directory, visible


def _walk(state: AnyPath) -> Iterator[tuple[AnyPath, list[str]]]:
    if isinstance(state, ObjectPath):
        return ((directory, names) for directory, _, names in state.walk())
    return ((Path(directory), names) for directory, _, names in os.walk(state))


def batches_of(log: CheckpointPath) -> Iterator[int]:
    if log.is_dir():
        yield from (int(entry.name) for entry in log.iterdir() if entry.name.isdecimal())


def _near(number: int, batch: int) -> bool:
    return batch - 1 <= number <= batch


def _link(path: Path, copy: Path, files: Files) -> None:
    try:
        files.link(path, copy)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(path, copy)
