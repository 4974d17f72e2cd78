"""Upload and download files as chunks, with only a few chunks in memory at a time.

An upload reads a file once to compute the digests of its chunks. The upload reads the file again if
the store lacks a chunk. ``Names`` caches the digests by the file's inode, since a snapshot's files
never change.
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
from ha_engine.system.files import CREATE_NEW, OS_FILES, Files, make_directory, write_all
from ha_engine.types import Chunk

T = TypeVar("T")
R = TypeVar("R")

CHUNKS_TOGETHER = 8
REFERRED_TOGETHER = 512

Progress = Callable[[int], None]
"""A function that is called with the number of bytes transferred since its last call."""


class ChunkWriter(Protocol):
    """The methods of ``postgres.snapshot_store`` that ``upload`` uses."""

    def refer(self, draft: int, digests: Iterable[bytes]) -> set[bytes]: ...
    def collect(self) -> int: ...
    def add(self, draft: int, chunks: Sequence[Chunk]) -> None: ...


class ChunkReader(Protocol):
    """The methods of ``postgres.snapshot_store`` that ``download`` uses."""

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
    """A cache of the digests of the chunks of files.

    The method ``stored`` drops the files that no caller of ``of`` asked for since its last call.
    """

    def __init__(self, files: Files = OS_FILES) -> None:
        self._files = files
        self._known: dict[_Identity, tuple[bytes, ...]] = {}
        self._used: dict[_Identity, tuple[bytes, ...]] = {}

    def of(self, path: Path) -> tuple[bytes, ...]:
        """The digests of the chunks of a file. Raises OSError."""
        identity = _Identity.of(path)
        names = self._known.get(identity) or tuple(map(digest_of, self.pieces(path)))
        self._used[identity] = names
        return names

    def pieces(self, path: Path) -> Iterator[bytes]:
        """The contents of the chunks of a file. Raises OSError."""
        return split(path, self._files)

    def knows(self, path: Path) -> bool:
        return _Identity.of(path) in self._known

    def stored(self) -> None:
        """Cache only the files that ``of`` was called for since the last call of ``stored``."""
        self._known, self._used = self._used, {}


def upload(
    store: ChunkWriter, draft: int, files: Mapping[str, Path], names: Names, progress: Progress
) -> tuple[tuple[StoredFile, ...], int]:
    """Make the draft refer to every chunk of ``files``, and store the missing chunks.

    Returns the files with their chunks, and the number of uncompressed bytes that were missing.
    Raises OSError, DraftLost, DatabaseUnreachable.
    """
    described = tuple(
        StoredFile(name, path.stat().st_size, names.of(path)) for name, path in files.items()
    )
    missing = _missing(store, draft, described)
    # Delete unused chunks only now, when the draft refers to the chunks of an earlier draft. Even
    # if every draft fails, the database never has more chunks than two drafts have stored.
    with suppress(DatabaseUnreachable):  # a slow database may still take the new chunks
        store.collect()
    new, chunks = 0, _chunks_of(described, files, missing, names, progress)
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
    names: Names,
    progress: Progress,
) -> Iterator[Chunk]:
    """Yield each missing chunk once, and remove its digest from the set ``missing``."""
    for file in described:
        if missing.isdisjoint(file.chunks):
            progress(file.size)
            continue
        for content in names.pieces(files[file.path]):
            if (digest := digest_of(content)) in missing:
                missing.remove(digest)
                yield pack(content)
            progress(len(content))


def in_portions(
    items: Iterable[T], call: Callable[[list[T]], R], progress: Progress
) -> Iterator[tuple[list[T], R]]:
    """Call the function ``call`` with a few items at a time.

    If a call gets no answer in time, the network may be slow, so a retry has half as many items.
    Raises DatabaseUnreachable if a call with a single item gets no answer.
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
    store: ChunkReader,
    wanted: Sequence[StoredFile],
    target: Path,
    progress: Progress,
    files: Files = OS_FILES,
) -> None:
    """Download the files ``wanted`` into the directory ``target``, and verify each chunk.

    Raises ChunkDamaged, SnapshotDamaged, DatabaseUnreachable, OSError.
    """
    pieces = _contents(store, (digest for file in wanted for digest in file.chunks), progress)
    for file in wanted:
        path = target / file.path
        make_directory(path.parent, files=files, durable=False)
        with files.open(path, CREATE_NEW) as opened:
            for content in islice(pieces, len(file.chunks)):
                write_all(opened, content)
                progress(len(content))
        if path.stat().st_size != file.size:
            raise SnapshotDamaged(f"{file.path} has {path.stat().st_size} bytes, not {file.size}")


def _contents(store: ChunkReader, digests: Iterable[bytes], progress: Progress) -> Iterator[bytes]:
    """The contents of the chunks, in the order of ``digests``.

    Raises ChunkDamaged if a chunk is missing or damaged.
    """
    for portion, found in in_portions(digests, store.chunks, progress):
        for digest in portion:
            if digest not in found:
                raise ChunkDamaged(digest, "it is missing")
            yield unpack(found[digest])
