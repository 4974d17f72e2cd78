"""Files of a checkpoint that hold the state after one batch, and the one way to copy them
(RULES.md#r21).

Spark writes each file once, with its version in the name. The state after Spark's batch n has
version n + 1. So the state after a batch can be copied while later batches run, without a pause.
Deleting the newer files in place instead would leave newer state behind.

    offsets/n, commits/n             batch n was planned, and is done
    state/**/v.delta, v.snapshot     hdfs: what version v changed, or all of it
    state/**/v.changelog, v.zip      rocksdb: the same, where v.zip names files in SSTs and logs
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

from ha_engine.errors import CheckpointIncomplete

_VERSIONED = re.compile(r"(\d+)\.(delta|changelog|snapshot|zip)")
_WHOLE = ("snapshot", "zip")
_LOGS = ("offsets", "commits")
_ROCKSDB_FILES = (("sstFiles", "dfsSstFileName", "SSTs"), ("logFiles", "dfsLogFileName", "logs"))
_DEAR = 2
"""A chain may have this many times the bytes of the shortest one, plus _DEAR_BYTES, if more of it
is stored already."""
_DEAR_BYTES = 4 << 20


def last_finished(checkpoint: Path) -> int | None:
    """Spark's number of the newest batch that is done; None before the first one."""
    return max(_numbers(checkpoint / "commits"), default=None)


def copy_as_of(
    checkpoint: Path, batch: int, target: Path, stored: Container[str] = frozenset()
) -> None:
    """Fill the fresh directory ``target`` with what Spark needs to continue after its ``batch``.

    ``stored`` are paths, relative to the checkpoint, that cost nothing to keep. Files are linked
    where the file system can. Raises CheckpointIncomplete when a needed file is missing, as can
    happen for a moment while Spark cleans up; and OSError.
    """
    try:
        for path in list(files_as_of(checkpoint, batch, stored)):
            copy = target / path.relative_to(checkpoint)
            copy.parent.mkdir(parents=True, exist_ok=True)
            _link(path, copy)
    except FileNotFoundError as error:
        raise CheckpointIncomplete(f"{error.filename} was deleted before it was copied") from error


def files_as_of(
    checkpoint: Path, batch: int, stored: Container[str] = frozenset()
) -> Iterator[Path]:
    """The files that ``copy_as_of`` copies. Raises CheckpointIncomplete, OSError."""
    yield checkpoint / "metadata"
    for log in _LOGS:
        # Spark reads the batch before the last one too.
        yield from (
            checkpoint / log / str(n) for n in _numbers(checkpoint / log) if _near(n, batch)
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
class _Chain:
    """A whole state and all changes after it. ``files`` has the newest last."""

    files: tuple[Path, ...]

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def cost(self, checkpoint: Path, stored: Container[str]) -> int:
        fresh = (path for path in self.files if str(path.relative_to(checkpoint)) not in stored)
        return sum(path.stat().st_size for path in fresh)


def _chains(directory: Path, names: list[str], version: int) -> Iterator[_Chain]:
    """Every chain to the state of ``version``, the shortest first; version 0 is empty."""
    found = {n: _VERSIONED.fullmatch(n) for n in names}
    known = {(int(m[1]), m[2] in _WHOLE): directory / n for n, m in found.items() if m}
    changes: list[Path] = []
    for at in range(version, -1, -1):
        if whole := known.get((at, True)):
            yield _Chain((*_with_parts(whole), *reversed(changes)))
        elif at == 0 and changes:
            yield _Chain(tuple(reversed(changes)))
        if (change := known.get((at, False))) is None:
            return
        changes.append(change)


def _with_parts(whole: Path) -> Iterator[Path]:
    """``whole``, after the files that it names if it is a zip of RocksDB. Zips share such files."""
    if whole.suffix == ".zip":
        try:
            with zipfile.ZipFile(whole) as archive:
                named = json.loads(archive.read("metadata").decode().partition("\n")[2])
            for key, name, folder in _ROCKSDB_FILES:
                yield from (whole.parent / folder / one[name] for one in named.get(key, ()))
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise CheckpointIncomplete(f"{whole} does not name the files that it needs") from error
    yield whole


def _cheapest(checkpoint: Path, chains: list[_Chain], stored: Container[str]) -> _Chain:
    """The chain with the fewest bytes to store, of those not much larger than the shortest.

    A restore must not read much more than it needs.
    """
    longest = _DEAR * chains[0].size + _DEAR_BYTES
    allowed = [chain for chain in chains if chain.size <= longest]
    return min(allowed, key=lambda chain: chain.cost(checkpoint, stored))


def _directories(state: Path) -> Iterator[tuple[Path, list[str]]]:
    for directory, _, names in os.walk(state):
        visible = [name for name in names if not name.startswith(".")]
        if visible:
            yield Path(directory), visible


def _numbers(log: Path) -> Iterator[int]:
    if log.is_dir():
        yield from (int(entry.name) for entry in log.iterdir() if entry.name.isdecimal())


def _near(number: int, batch: int) -> bool:
    return batch - 1 <= number <= batch


def _link(path: Path, copy: Path) -> None:
    try:
        os.link(path, copy)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(path, copy)
