"""Files into chunks and back, a few chunks in memory at a time.

A file is read once to name its chunks, and once more if the store lacks one. What has been named is
remembered by the file's inode, since a file of a snapshot is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ha_engine.errors import ChunkDamaged, SnapshotDamaged
from ha_engine.snapshot.chunks import cut, digest_of, pack, unpack
from ha_engine.snapshot.manifest import StoredFile
from ha_engine.types import Chunk

CHUNKS_TOGETHER = 8
REFERRED_TOGETHER = 512

Progress = Callable[[int], None]
"""Told of so many bytes that are done."""


class ChunkWriter(Protocol):
    """What ``upload`` asks of the store; see postgres.snapshot_store."""

    def refer(self, draft: int, digests: Iterable[bytes]) -> set[bytes]: ...
    def collect(self) -> int: ...
    def add(self, draft: int, chunks: Sequence[Chunk]) -> None: ...


class ChunkReader(Protocol):
    """What ``download`` asks of the store."""

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
    """The chunks of files that were named before; forgets those that were not asked for again."""

    def __init__(self) -> None:
        self._known: dict[_Identity, tuple[bytes, ...]] = {}
        self._used: dict[_Identity, tuple[bytes, ...]] = {}

    def of(self, path: Path) -> tuple[bytes, ...]:
        """Raises OSError."""
        identity = _Identity.of(path)
        names = self._known.get(identity) or tuple(map(digest_of, cut(path)))
        self._used[identity] = names
        return names

    def knows(self, path: Path) -> bool:
        return _Identity.of(path) in self._known

    def stored(self) -> None:
        """All that were asked for are in the store now."""
        self._known, self._used = self._used, {}


def upload(
    store: ChunkWriter, draft: int, files: Mapping[str, Path], names: Names, progress: Progress
) -> tuple[tuple[StoredFile, ...], int]:
    """Refers ``draft`` to every chunk of ``files``; answers these and the bytes that were new.

    Raises OSError, DraftLost, DatabaseUnreachable.
    """
    described = tuple(
        StoredFile(name, path.stat().st_size, names.of(path)) for name, path in files.items()
    )
    missing = _missing(store, draft, described)
    # Here, where this draft holds fast what an earlier one has brought: where each draft fails,
    # there is never more than what two of them have stored.
    store.collect()
    new = 0
    for file in described:
        if missing.isdisjoint(file.chunks):
            progress(file.size)
            continue
        for chunks in _in_groups(_chunks_of(files[file.path], missing, progress)):
            store.add(draft, chunks)
            missing.difference_update(chunk.digest for chunk in chunks)
            new += sum(chunk.size for chunk in chunks)
    return described, new


def _missing(store: ChunkWriter, draft: int, files: Iterable[StoredFile]) -> set[bytes]:
    wanted = list(dict.fromkeys(digest for file in files for digest in file.chunks))
    missing: set[bytes] = set()
    for at in range(0, len(wanted), REFERRED_TOGETHER):
        missing |= store.refer(draft, wanted[at : at + REFERRED_TOGETHER])
    return missing


def _chunks_of(path: Path, missing: set[bytes], progress: Progress) -> Iterator[Chunk]:
    for content in cut(path):
        if digest_of(content) in missing:
            yield pack(content)
        progress(len(content))


def _in_groups(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    group: dict[bytes, Chunk] = {}
    for chunk in chunks:
        group[chunk.digest] = chunk
        if len(group) == CHUNKS_TOGETHER:
            yield list(group.values())
            group = {}
    if group:
        yield list(group.values())


def download(
    store: ChunkReader, files: Iterable[StoredFile], target: Path, progress: Progress
) -> None:
    """Writes ``files`` below ``target``, each chunk verified. Raises ChunkDamaged, OSError."""
    for file in files:
        path = target / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as opened:
            for content in contents(store, file.chunks):
                opened.write(content)
                progress(len(content))
        if path.stat().st_size != file.size:
            raise SnapshotDamaged(f"{file.path} has {path.stat().st_size} bytes, not {file.size}")


def contents(store: ChunkReader, digests: Sequence[bytes]) -> Iterator[bytes]:
    """What the chunks hold, in order. Raises ChunkDamaged when one is missing or not sound."""
    for at in range(0, len(digests), CHUNKS_TOGETHER):
        group = digests[at : at + CHUNKS_TOGETHER]
        found = store.chunks(group)
        for digest in group:
            if digest not in found:
                raise ChunkDamaged(digest, "it is not there")
            yield unpack(found[digest])
