"""Uploads files as chunks and downloads them, with a few chunks in memory at a time.

A file is read once to name its chunks, and once more if the store lacks one. ``Names`` remembers
the chunks by the file's inode, since a file of a snapshot is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from ha_engine.errors import ChunkDamaged, DatabaseUnreachable, SnapshotDamaged
from ha_engine.snapshot.chunks import digest_of, pack, split, unpack
from ha_engine.snapshot.manifest import StoredFile
from ha_engine.types import Chunk

T = TypeVar("T")
R = TypeVar("R")

CHUNKS_TOGETHER = 8
REFERRED_TOGETHER = 512

Progress = Callable[[int], None]
"""Called with the number of bytes that are done since the last call."""


class ChunkWriter(Protocol):
    """The part of the store that ``upload`` uses; see postgres.snapshot_store."""

    def refer(self, draft: int, digests: Iterable[bytes]) -> set[bytes]: ...
    def collect(self) -> int: ...
    def add(self, draft: int, chunks: Sequence[Chunk]) -> None: ...


class ChunkReader(Protocol):
    """The part of the store that ``download`` uses."""

    def chunks(self, digests: Sequence[bytes]) -> Mapping[bytes, Chunk]: ...


@dataclass(frozen=True, slots=True)
class _Identity:
    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> _Identity:
        found = path.stat()
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class Names:
    """Remembers the chunks of files. ``stored`` forgets files that nobody asked for since."""

    def __init__(self) -> None:
        self._known: dict[_Identity, tuple[bytes, ...]] = {}
        self._used: dict[_Identity, tuple[bytes, ...]] = {}

    def of(self, path: Path) -> tuple[bytes, ...]:
        """The digests of the file's chunks. Raises OSError."""
        identity = _Identity.of(path)
        names = self._known.get(identity) or tuple(map(digest_of, split(path)))
        self._used[identity] = names
        return names

    def knows(self, path: Path) -> bool:
        return _Identity.of(path) in self._known

    def stored(self) -> None:
        """Note that the store has all chunks that were asked for since the last call."""
        self._known, self._used = self._used, {}


def upload(
    store: ChunkWriter, draft: int, files: Mapping[str, Path], names: Names, progress: Progress
) -> tuple[tuple[StoredFile, ...], int]:
    """Make ``draft`` refer to every chunk of ``files``, and store those that are missing.

    Returns the files with their chunks, and the bytes that were new.
    Raises OSError, DraftLost, DatabaseUnreachable.
    """
    described = tuple(
        StoredFile(name, path.stat().st_size, names.of(path)) for name, path in files.items()
    )
    missing = _missing(store, draft, described)
    # Collect here: this draft now refers to the chunks that an earlier draft stored. Even if each
    # draft fails, the database never has more than what two drafts have stored.
    with suppress(DatabaseUnreachable):  # a slow database may still take the new chunks
        store.collect()
    new, chunks = 0, _chunks_of(described, files, missing, progress)
    for added, _ in in_portions(chunks, partial(store.add, draft), progress):
        new += sum(chunk.size for chunk in added)
    return described, new


def _missing(store: ChunkWriter, draft: int, files: Iterable[StoredFile]) -> set[bytes]:
    wanted = list(dict.fromkeys(digest for file in files for digest in file.chunks))
    missing: set[bytes] = set()
    for at in range(0, len(wanted), REFERRED_TOGETHER):
        missing |= store.refer(draft, wanted[at : at + REFERRED_TOGETHER])
    return missing


def _chunks_of(
    described: Iterable[StoredFile],
    files: Mapping[str, Path],
    missing: set[bytes],
    progress: Progress,
) -> Iterator[Chunk]:
    """Yield each missing chunk once, and remove it from ``missing``."""
    for file in described:
        if missing.isdisjoint(file.chunks):
            progress(file.size)
            continue
        for content in split(files[file.path]):
            if (digest := digest_of(content)) in missing:
                missing.remove(digest)
                yield pack(content)
            progress(len(content))


def in_portions(
    items: Iterable[T], call: Callable[[list[T]], R], progress: Progress
) -> Iterator[tuple[list[T], R]]:
    """Call ``call`` with a few items at a time.

    If the database does not answer in time, the line to it may be slow: repeat with half as many.
    Raises DatabaseUnreachable if a single item gets no answer.
    """
    coming, together = iter(items), CHUNKS_TOGETHER
    left = list(islice(coming, together))
    while left:
        portion = left[:together]
        try:
            outcome = call(portion)
        except DatabaseUnreachable:
            if len(portion) == 1:
                raise
            together = len(portion) // 2
            progress(0)  # ``pinned`` renews the pin of a revision in this call
        else:
            yield portion, outcome
            left = left[together:] or list(islice(coming, together))


def download(
    store: ChunkReader, files: Iterable[StoredFile], target: Path, progress: Progress
) -> None:
    """Write ``files`` below ``target`` and verify each chunk. Raises ChunkDamaged, OSError."""
    wanted = list(files)
    pieces = _contents(store, (digest for file in wanted for digest in file.chunks), progress)
    for file in wanted:
        path = target / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as opened:
            for content in islice(pieces, len(file.chunks)):
                opened.write(content)
                progress(len(content))
        if path.stat().st_size != file.size:
            raise SnapshotDamaged(f"{file.path} has {path.stat().st_size} bytes, not {file.size}")


def _contents(store: ChunkReader, digests: Iterable[bytes], progress: Progress) -> Iterator[bytes]:
    """The contents of the chunks, in order. Raises ChunkDamaged if one is missing or damaged."""
    for portion, found in in_portions(digests, store.chunks, progress):
        for digest in portion:
            if digest not in found:
                raise ChunkDamaged(digest, "it is missing")
            yield unpack(found[digest])
